"""The vault proxy, as doors need it: what to tell a sandbox, and a way out for one connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import grpc

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit import certificates
from services.kit.channels import raised
from services.kit.errors import Broken, Unavailable
from services.kit.grants import GRANT_KEY
from services.kit.identity import Peers
from services.sandbox.doors_core import EGRESS, GIT, Prepared
from services.sandbox.hand import Network

CALL_SECONDS = 10.0
DIAL_SECONDS = 10.0
BUFFER_BYTES = 128 << 10  # held of what the far side says and nobody takes
_KINDS = {GIT: pb.DOOR_KIND_GIT, EGRESS: pb.DOOR_KIND_EGRESS}

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class VaultProxy(Protocol):
    """The vault proxy. `grant` is of the session that a sandbox belongs to. Errors are ServiceErrors, as it raises."""

    async def prepare(self, grant: str, sandbox_id: str, network: Network) -> Prepared:
        """Says what a sandbox must be told."""
        ...

    async def connect(self, grant: str, sandbox_id: str, door: str, network: Network) -> Stream:
        """Opens a door for one connection: what is written is a tool's, what is read is for that tool."""
        ...


class VaultProxyClient:
    """A `VaultProxy` (see there) over its channel and its door listener."""

    def __init__(self, channel: grpc.aio.Channel, tls_dir: Path, peers: Peers | None = None) -> None:
        """Takes a channel as the sandbox service, the folder of that service's certificate, and who is who."""
        self._stub = VaultProxyServiceStub(channel)
        self._tls = certificates.client_context(tls_dir)
        self._peers = peers or Peers()

    async def prepare(self, grant: str, sandbox_id: str, network: Network) -> Prepared:
        """See `VaultProxy.prepare`."""
        request = pb.PrepareDoorsRequest(sandbox_id=sandbox_id, network=_policy(network))
        try:
            answer = await self._stub.PrepareDoors(request, metadata=((GRANT_KEY, grant),), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, "VAULT_UNAVAILABLE") from None
        return Prepared(
            tuple((it.variable, it.value) for it in answer.placeholders),
            answer.ca_certificate,
            tuple(it.repository for it in answer.repositories),
        )

    async def connect(self, grant: str, sandbox_id: str, door: str, network: Network) -> Stream:
        """See `VaultProxy.connect`."""
        request = pb.OpenDoorRequest(sandbox_id=sandbox_id, kind=_KINDS[door], network=_policy(network))
        try:
            answer = await self._stub.OpenDoor(request, metadata=((GRANT_KEY, grant),), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, "VAULT_UNAVAILABLE") from None
        reader, writer = await self._dial(answer.address)
        writer.write(answer.ticket.encode("ascii") + b"\n")
        return reader, writer

    async def _dial(self, address: str) -> Stream:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                reader, writer = await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=self._tls(), limit=BUFFER_BYTES
                )
        except (OSError, TimeoutError, ValueError):
            raise Unavailable("VAULT_UNAVAILABLE", "the doors of the vault proxy cannot be reached") from None
        if not self._peers.is_service("vault_proxy", writer.get_extra_info("peercert")):
            writer.transport.abort()
            raise Broken("INTERNAL", "another service answers where the doors of the vault proxy should be")
        return reader, writer


def _policy(network: Network) -> pb.NetworkPolicy:
    return pb.NetworkPolicy(
        allow=network.allow,
        allow_package_managers=network.allow_package_managers,
        allow_mcp_servers=network.allow_mcp_servers,
    )
