"""The ground that attacks on the mesh run on: a mesh of real parts, a tap on each connection between its services,
a canary in every credential, and a tenant next door.

`Ground.work` lets a session do what sessions do: work in hands, call MCP tools with credentials, be told no. What an
attacker has taken over is a service's certificate (`as_service`), a client's key (`client`, `neighbour`), or a grant
that was overheard (`grant_of`).
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from handmesh.client import Client, Session, connect
from handmesh.client.addresses import Addresses
from handmesh.client.channels import Link
from handmesh.client.health import listens
from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import SERVICES, Ports, free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.launcher.settings import Claude, MeshSettings, child_environment
from handmesh.session.v1.config_pb2 import HandSpec, McpServer, SessionConfig
from handmesh.session.v1.event_pb2 import Event
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import connect as connect_service
from tests.support.canary import core, mint
from tests.support.oauth import OAuthServer, oauth_server
from tests.support.tap import Tap, tapped
from tests.vault_proxy.conftest import Shop, start_shop
from tests.vault_proxy.strange_server import Reply, Request, StrangeServer, strange_server

SCRIPT = Path(__file__).with_name("script.yaml")
CALLS = (  # which service dials which, and by which setting
    ("harness", "session", "HANDMESH_SESSION_ADDRESS"),
    ("harness", "sandbox", "HANDMESH_SANDBOX_ADDRESS"),
    ("harness", "vault_proxy", "HANDMESH_VAULT_PROXY_ADDRESS"),
    ("sandbox", "session", "HANDMESH_SESSION_ADDRESS"),
    ("vault_proxy", "session", "HANDMESH_SESSION_ADDRESS"),
)
GRANT = re.compile(rb"(sess_[a-z0-9]{26})\.[A-Za-z0-9_-]{43}")
TURN_SECONDS = 60.0
LONG_AGO = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Person:
    """Somebody with an API key, and what they can call with it."""

    client: Client
    link: Link
    vaults: VaultProxyServiceStub
    tenant: str

    async def call(self, method: str, request: Any) -> Any:
        """Calls the API of credentials. Raises HandmeshError."""
        return await self.link.call(getattr(self.vaults, method), request)

    async def new_vault(self) -> str:
        """Makes a vault and returns its id."""
        return str((await self.call("CreateVault", pb.CreateVaultRequest(name="attacked"))).vault.vault_id)

    async def add(self, vault_id: str, origin: str, secret: pb.CredentialSecret) -> str:
        """Adds a credential and returns its id."""
        request = pb.AddCredentialRequest(vault_id=vault_id, name="key", origin=origin, secret=secret)
        return str((await self.call("AddCredential", request)).credential.credential_id)


def bearer(value: str) -> pb.CredentialSecret:
    """Returns a credential that is sent as it is."""
    return pb.CredentialSecret(static_bearer=pb.StaticBearer(value=value))


@dataclass
class Ground:
    """A mesh that runs, and who stands around it."""

    mesh: Mesh
    me: Person
    neighbour: Person  # of another tenant
    taps: list[Tap]
    shop: Shop
    oauth: OAuthServer
    strange: StrangeServer  # lets in who shows an access of `oauth`
    vault_id: str
    cores: dict[str, str] = field(repr=False)  # of the model's key, and of every other secret
    sessions: list[Session] = field(default_factory=list)

    @property
    def data(self) -> Path:
        """The mesh's data directory."""
        return self.mesh.files.data_directory

    @property
    def servers(self) -> list[McpServer]:
        """The MCP servers that sessions use."""
        return [McpServer(name="shop", url=self.shop.url), McpServer(name="bank", url=self.strange.url)]

    def as_service(self, name: str, callee: str) -> grpc.aio.Channel:
        """Opens a channel past the taps, with the certificate of a service that was taken over."""
        return connect_service(self.mesh.settings.ports.mesh(callee), self.mesh.files.tls / name)

    def grant_of(self, session_id: str) -> str:
        """Returns the newest grant of a session, as it was overheard."""
        heard = [found.group().decode() for found in self._grants() if found.group(1) == session_id.encode()]
        return heard[-1]

    def _grants(self) -> Sequence[re.Match[bytes]]:
        answers = next(tap.answered for tap in self.taps if (tap.caller, tap.callee) == ("harness", "session"))
        return list(GRANT.finditer(answers))

    async def work(self, content: str, hands: Sequence[str] = ("default",), **config: Any) -> Session:
        """Lets a session do a turn, and returns it."""
        config.setdefault("mcp_servers", self.servers)
        config.setdefault("vault_ids", [self.vault_id])
        names = {"main": HandSpec(environment=hands[0])} if len(hands) == 1 else {}
        names |= {name: HandSpec(environment=name) for name in hands} if len(hands) > 1 else {}
        session = await self.me.client.create_session(SessionConfig(hands=names, **config), content)
        self.sessions.append(session)
        await self.turn(session)
        return session

    async def turn(self, session: Session, turns: int = 1) -> list[Event]:
        """Follows a session until so many turns have ended, and returns its log."""
        events: list[Event] = []
        async with asyncio.timeout(TURN_SECONDS):
            async for event in session.watch():
                events.append(event)
                if sum(event.HasField("turn_ended") for event in events) == turns:
                    break
        return events


@asynccontextmanager
async def ground_of(folder: Path, **extra: dict[str, str]) -> AsyncIterator[Ground]:
    """Starts it all below a folder; ends it, and releases the sandboxes that are left. `extra` adds to a service's
    environment."""
    data = folder / "mesh"
    data.mkdir()
    ensure_certificates(data / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    keys = {"default": ensure_api_key(data).read_text().strip(), "other": f"hmk_{secrets.token_hex(26)}"}
    rows = [
        {"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant, "name": "x"}
        for tenant, key in keys.items()
    ]
    (folder / "keys.json").write_text(json.dumps(rows))
    cores = {"model": core(), "credentials": core()}

    def secret(what: str) -> str:
        return mint(f"{what}{secrets.token_hex(2)}", cores["credentials"])

    ports, variables = (
        Ports.free(),
        {service: {"HANDMESH_API_KEYS_FILE": str(folder / "keys.json")} for service in SERVICES},
    )
    variables["vault_proxy"] |= {"HANDMESH_OUTBOUND_ALLOW": "127.0.0.1"}
    async with AsyncExitStack() as stack:
        shop = await asyncio.to_thread(start_shop, folder, "127.0.0.1:0", secret("bearer"))
        stack.callback(shop.stop)
        oauth = stack.enter_context(oauth_server(client_secret=secret("client"), mint=lambda: secret("account")))
        strange = await stack.enter_async_context(strange_server(call=_bank_call, answer=_gate_of(oauth)))
        taps = [
            await stack.enter_async_context(tapped(data / "tls", caller, callee, ports.mesh(callee)))
            for caller, callee, _ in CALLS
        ]
        for tap, (caller, _, setting) in zip(taps, CALLS, strict=True):
            variables[caller][setting] = tap.address
        model = f"127.0.0.1:{free_ports(1)[0]}"
        settings = MeshSettings(
            data,
            Claude(mint("model", cores["model"]), f"http://{model}"),
            os.environ,
            ports,
            log_level="debug",
            extra={service: {**variables[service], **extra.get(service, {})} for service in SERVICES},
        )
        mesh = await stack.enter_async_context(await Mesh.start(settings))
        await _start_model(stack, mesh, folder, model)
        people = [_person(stack, ports, key, tenant) for tenant, key in keys.items()]
        ground = Ground(mesh, people[0], people[1], taps, shop, oauth, strange, "", cores)
        ground.vault_id = await _fill(ground)
        stack.push_async_callback(_release, ground)
        yield ground


def _person(stack: AsyncExitStack, ports: Ports, key: str, tenant: str) -> Person:
    addresses = Addresses.of_ports(ports)
    client = connect(addresses, key)
    link = Link(addresses.vault_proxy, key, None)
    stack.push_async_callback(client.close)
    stack.push_async_callback(link.close)
    return Person(client, link, VaultProxyServiceStub(link.channel), tenant)


async def _release(ground: Ground) -> None:
    for sandbox in await ground.me.client.sandboxes():
        await ground.me.client.release(sandbox.sandbox_id)


async def _start_model(stack: AsyncExitStack, mesh: Mesh, folder: Path, address: str) -> None:
    arguments = ["-P", "-m", "handmesh.scripted_model", "--script", str(SCRIPT), "--listen", address]
    command = Command(
        name="model",
        arguments=[sys.executable, *arguments],
        environment=child_environment(mesh.settings),
        log=folder / "model.log",
        directory=folder,
    )
    process = Process.start(command)
    stack.push_async_callback(process.stop)
    while not await listens(address):
        assert process.exit_code is None, (folder / "model.log").read_text()
        await asyncio.sleep(0.02)


def _gate_of(oauth: OAuthServer) -> Any:
    """Lets in who shows an access that the authorization server gave; says to others what they showed."""

    def answer(request: Request) -> Reply | None:
        shown = request.headers.get("authorization")
        return None if oauth.accepts(shown) else Reply(401, f"you showed {shown}".encode())

    return answer


def _bank_call(request: Request) -> Reply | None:
    """Says what it was sent, as careless servers do."""
    shown = request.headers.get("authorization", "")
    block = {"type": "text", "text": f"you showed {shown}"}
    body = {"jsonrpc": "2.0", "id": request.rpc["id"], "result": {"content": [block]}}
    return Reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})


async def _fill(ground: Ground) -> str:
    """Puts a credential of each kind that MCP servers need into a vault: one as it is, one that has to be renewed."""
    vault_id = await ground.me.new_vault()
    await ground.me.add(vault_id, ground.shop.origin, bearer(ground.shop.token))
    given = ground.oauth.grant()
    account = pb.McpOauth(
        access=given.access,
        refresh=given.refresh,
        renewal_endpoint=ground.oauth.url,
        client_id=ground.oauth.client_id,
        client_auth=ground.oauth.client_auth,
        client_secret=ground.oauth.client_secret,
    )
    account.expire_time.FromJsonString(LONG_AGO)
    origin = ground.strange.url.removesuffix("/mcp")
    await ground.me.add(vault_id, origin, pb.CredentialSecret(mcp_oauth=account))
    return vault_id
