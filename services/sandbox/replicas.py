"""The other replicas of this service, by their addresses, which are their nodes' names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc

from handmesh.replicas.ranking import sign
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from services.kit import channels

SERVICE = "handmesh.sandbox.v1.SandboxService"
ONCE = ((SERVICE, "Execute"), (SERVICE, "Provision"))  # without an id one said again is another one: callers know
_METHODS = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].methods


class Replica:
    """One of them. Connects at the first call."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.sign = sign(address)
        self._channel = channel
        self._stub = SandboxServiceStub(channel)

    def call(self, method: str) -> Any:
        """Returns a method of it, by its full name."""
        return getattr(self._stub, method.rpartition("/")[2])

    def is_up(self) -> bool:
        """Says whether it is worth asking about what it may not have: it is not known to be away."""
        state = self._channel.get_state(try_to_connect=True)
        return state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Replicas:
    """All others, and this one's own name; `addresses` holds it, too."""

    service = SERVICE

    def __init__(self, node: str, addresses: Sequence[str], tls_dir: Path) -> None:
        self._stack = AsyncExitStack()
        self._sign = sign(node)
        self.methods = {f"/{SERVICE}/{method.name}": True for method in _METHODS}
        self.others: list[Replica] = []
        for address in addresses:
            if address != node:
                channel = channels.connect(address, tls_dir, ONCE)
                self._stack.push_async_callback(channel.close)
                self.others.append(Replica(address, channel))

    def owner(self, sandbox_id: str) -> Replica | None:
        """Returns the replica whose node an id names; None for this one, and when it names none that is known."""
        if not sandbox_id or sandbox_id.endswith(self._sign):
            return None
        return next((peer for peer in self.others if sandbox_id.endswith(peer.sign)), None)

    def knows(self, sandbox_id: str) -> bool:
        """Says whether an id names the node of a replica that there is."""
        return sandbox_id.endswith((self._sign, *(peer.sign for peer in self.others)))

    def up(self) -> list[Replica]:
        """Returns those that are not known to be away."""
        return [peer for peer in self.others if peer.is_up()]

    async def close(self) -> None:
        """Ends the connections."""
        await self._stack.aclose()
