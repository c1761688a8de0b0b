"""An account to connect: a vault_proxy, an MCP server that asks for an access, and its authorization server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.channels import raised
from services.kit.errors import ServiceError
from tests.support.oauth import oauth_server
from tests.support.oauth_codes import CodeServer, browse, changed
from tests.vault_proxy.conftest import Proxy
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server

REDIRECT = "http://127.0.0.1:7777/callback"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource"


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with, as the service raised it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return raised(caught.value)


@dataclass
class World:
    """What a test connects. `resource_changes` are what the MCP server says otherwise; `challenge` is its 401's."""

    proxy: Proxy
    oauth: CodeServer
    server: StrangeServer
    vault_id: str
    resource_changes: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = (f"{RESOURCE_METADATA}/mcp",)
    challenge: str = "Bearer"

    @property
    def origin(self) -> str:
        """The MCP server's."""
        return self.server.url.removesuffix("/mcp")

    def gate(self, request: Any) -> Reply | None:
        """Answers what comes without an access that is good, and whoever asks for the metadata."""
        if request.method == "GET" and request.path in self.places:
            said = {"resource": self.server.url, "authorization_servers": [self.oauth.issuer]}
            body = json.dumps(changed(said, self.resource_changes)).encode()
            return Reply(200, body, {"Content-Type": "application/json"})
        if request.path != "/mcp":
            return Reply(404)
        if self.oauth.accepts(request.headers.get("authorization")):
            return None
        return Reply(401, b"no", {"WWW-Authenticate": self.challenge})

    async def start(self, **fields: Any) -> pb.StartConnectionResponse:
        """Starts to connect."""
        asked = {"vault_id": self.vault_id, "url": self.server.url, "redirect_uri": REDIRECT, **fields}
        return await self.proxy.client.StartConnection(pb.StartConnectionRequest(**asked))

    async def refused_start(self, **fields: Any) -> ServiceError:
        """Starts what does not go."""
        return await failure(self.start(**fields))

    async def agree(self, started: pb.StartConnectionResponse) -> pb.FinishConnectionRequest:
        """Does what the person and the browser do."""
        back = await asyncio.to_thread(browse, started.authorization_url)
        return pb.FinishConnectionRequest(
            state=back.get("state", ""),
            code=back.get("code", ""),
            issuer=back.get("iss", ""),
            error=back.get("error", ""),
        )

    async def finish(self, request: pb.FinishConnectionRequest) -> pb.Credential:
        """Finishes it."""
        return (await self.proxy.client.FinishConnection(request)).credential

    async def connect(self, **fields: Any) -> pb.Credential:
        """Does all of it."""
        return await self.finish(await self.agree(await self.start(**fields)))

    async def says(self, text: str = "x") -> str:
        """Calls the MCP server's tool in a new session that has the vault."""
        server = McpServer(name="strange", url=self.server.url)
        grant = self.proxy.peer.grant(server, vault_ids=(self.vault_id,))
        return (await self.proxy.execute(grant, "strange__echo", {"text": text})).output


@asynccontextmanager
async def world_of(proxy: Proxy, **options: Any) -> AsyncIterator[World]:
    """Runs one, with a new vault."""
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
    with oauth_server(CodeServer, **options) as oauth:
        async with strange_server() as server:
            world = World(proxy, oauth, server, vault.vault_id)
            server.answer = world.gate
            yield world


def jwt(audience: Any) -> str:
    """Returns what looks like a signed access for an audience."""
    parts = ({"alg": "RS256"}, {"aud": audience, "sub": "somebody"})
    header, claims = (base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts)
    return f"{header}.{claims}.c2lnbmF0dXJl"
