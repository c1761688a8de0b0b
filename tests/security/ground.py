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
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, Resource
from handmesh.session.v1.config_pb2 import HandSpec, McpServer, SessionConfig
from handmesh.session.v1.event_pb2 import Event
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import connect as connect_service
from tests.sandbox.test_doors_trust import Authority
from tests.support.canary import core, mint
from tests.support.git_host import GitHost
from tests.support.oauth import OAuthServer, oauth_server
from tests.support.requirements import lack_of
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
APP, AGENT = "acme/app", ("refs/heads/agent/*",)
VARIABLE = "WEB_KEY"


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


_BROWSER = """
import os, ssl, sys, urllib.error, urllib.request
os.environ.pop("no_proxy", None), os.environ.pop("NO_PROXY", None)
headers = dict(each.split(": ", 1) for each in sys.argv[3::2])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
try:
    print(opener.open(urllib.request.Request(sys.argv[1], headers=headers), timeout=20).read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
"""


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
    git: GitHost  # wants a password; it has acme/app, which sessions may use, and acme/other
    web: StrangeServer  # speaks TLS; a variable's secret may go there, at `localhost`
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

    async def behind_doors(
        self, hand: str = "open", name: str = APP, patterns: Sequence[str] = AGENT
    ) -> tuple[Session, str]:
        """Starts a session with a repository of the git host, and returns it and its sandbox."""
        repository = GitRepository(url=self.git.url(name), push_patterns=patterns)
        resource = Resource(mount_path="/workspace/app", git_repository=repository)
        config = SessionConfig(
            hands={"main": HandSpec(environment=hand, resources=[resource])}, vault_ids=[self.vault_id]
        )
        session = await self.me.client.create_session(config, "start")
        self.sessions.append(session)
        events = await self.turn(session)
        made = [event.sandbox_provisioned.sandbox_id for event in events if event.HasField("sandbox_provisioned")]
        assert made, [event for event in events if event.HasField("tool_finished")]
        return session, made[0]

    async def run(self, sandbox_id: str, command: str) -> str:
        """Runs a command in a sandbox, as a tool does, and returns what it prints."""
        call = sandbox_pb2.ExecuteRequest(sandbox_id=sandbox_id, name="bash")
        call.input = json.dumps({"command": command, "timeout_ms": 60_000})
        answer = await self.me.client.sandbox_link.call(self.me.client.sandbox_stub.Execute, call, 90.0)
        return str(answer.result.output)

    @property
    def web_place(self) -> str:
        """Returns `host:port` of the web server, by the name that a secret may go to."""
        return self.web.url.removeprefix("https://").removesuffix("/mcp").replace("127.0.0.1", "localhost")

    async def browse(self, sandbox_id: str, url: str, *headers: str) -> str:
        """Asks for a URL from inside of a sandbox, through its egress door; certificates are not checked there."""
        told = "".join(f' -H "{each}"' for each in headers)
        return await self.run(
            sandbox_id, f"cat > /tmp/browse <<'END'\n{_BROWSER}\nEND\npython3 /tmp/browse {url!r}{told}"
        )

    async def refusals(self, session: Session, *reasons: str) -> list[Any]:
        """Waits until a session's log has refusals of doors for these reasons, and returns all that it has."""
        async with asyncio.timeout(TURN_SECONDS):
            while True:
                found = [event.door_refused async for event in session.events() if event.HasField("door_refused")]
                if {each.reason for each in found} >= set(reasons):
                    return found
                await asyncio.sleep(0.05)

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
    async with AsyncExitStack() as stack:
        shop = await asyncio.to_thread(start_shop, folder, "127.0.0.1:0", secret("bearer"))
        stack.callback(shop.stop)
        oauth = stack.enter_context(oauth_server(client_secret=secret("client"), mint=lambda: secret("account")))
        strange = await stack.enter_async_context(strange_server(call=_bank_call, answer=_gate_of(oauth)))
        host = GitHost(folder / "git", secret("git"))
        stack.callback(host.close)
        for name in (APP, "acme/other", "acme/app-other"):
            await asyncio.to_thread(host.make, name)
        tls = Authority(folder, "localhost")
        (folder / "web.pem").write_text(tls.pem)
        web = await stack.enter_async_context(strange_server(tls=tls.context, answer=_web))
        variables["vault_proxy"] |= {"HANDMESH_OUTBOUND_ALLOW": "127.0.0.1, localhost"}
        variables["vault_proxy"] |= {"HANDMESH_OUTBOUND_CA_FILE": str(folder / "web.pem")}
        variables["sandbox"] |= {"HANDMESH_GIT_ALLOW": "127.0.0.1"}
        (folder / "environments.toml").write_text(_environments(web))
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
            environments_file=folder / "environments.toml",
            trace_directory=data / "traces" if lack_of("traces") is None else None,
            extra={service: {**variables[service], **extra.get(service, {})} for service in SERVICES},
        )
        mesh = await stack.enter_async_context(await Mesh.start(settings))
        await _start_model(stack, mesh, folder, model)
        people = [_person(stack, ports, key, tenant) for tenant, key in keys.items()]
        ground = Ground(mesh, people[0], people[1], taps, shop, oauth, strange, host, web, "", cores)
        ground.vault_id = await _fill(ground)
        stack.push_async_callback(_release, ground)
        yield ground


def _web(request: Request) -> Reply:
    """Says what it was sent, as careless servers do."""
    return Reply(200, f"you showed {request.headers.get('authorization')}\n".encode(), {"Content-Type": "text/plain"})


def _environments(web: StrangeServer) -> str:
    """Returns recipes: without a network, and those whose sandboxes may reach the web server by two names."""
    port = web.url.split(":")[2].removesuffix("/mcp")
    allowed = json.dumps([f"localhost:{port}", f"127.0.0.1:{port}"])
    tables = [
        f'[environments.{name}]\nbackend = "{backend}"\n{network}'
        for name, backend, network in (
            ("default", "bubblewrap", ""),
            ("docker", "docker", ""),
            ("open", "bubblewrap", f"network.allow = {allowed}\n"),
            ("open-docker", "docker", f"network.allow = {allowed}\n"),
        )
    ]
    return "\n".join(tables)


def _person(stack: AsyncExitStack, ports: Ports, key: str, tenant: str) -> Person:
    addresses = Addresses.of_ports(ports)
    client = connect(addresses, key)
    link = Link(addresses.vault_proxy, key, None)
    stack.push_async_callback(client.close)
    stack.push_async_callback(link.close)
    return Person(client, link, VaultProxyServiceStub(link.channel), tenant)


async def _release(ground: Ground) -> None:
    for person in (ground.me, ground.neighbour):
        for sandbox in await person.client.sandboxes():
            await person.client.release(sandbox.sandbox_id)


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
    assert ground.git.value is not None
    await ground.me.add(vault_id, ground.git.origin, pb.CredentialSecret(git=pb.GitAccess(value=ground.git.value)))
    key = mint("web", ground.cores["credentials"])
    variable = pb.EnvironmentVariable(variable=VARIABLE, value=key, allowed_hosts=["localhost"], in_headers=True)
    await ground.me.add(vault_id, "", pb.CredentialSecret(environment_variable=variable))
    return vault_id
