"""Services one version apart work together, and sessions go on while each service is replaced.

One mesh begins as the last release. Its services are replaced one by one, in several orders, with sessions in it that
are in a tool call, asleep and waiting for a person.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from handmesh.client import Client, Session, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.migration import finish_migration, plan_migration, start_migration
from handmesh.launcher.ports import SERVICES, Ports
from handmesh.launcher.settings import MeshFiles, MeshSettings, Scripted
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.session.v1 import config_pb2, session_pb2
from handmesh.session.v1.event_pb2 import Event, ToolConfirmed
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from services.kit import channels
from services.kit.ids import mint
from tests.drills.size import FULL
from tests.e2e.test_mesh import ends, last_words, only, outcomes, turn
from tests.upgrade.previous import previous_release

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.vault,
    pytest.mark.asyncio(loop_scope="module"),
]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("script.yaml")
SECONDS = 60.0
ALL_OLD = frozenset(SERVICES)
# Who is still of the last release, step by step: session first. A harness also goes before the others, and back again.
STEPS = [{"harness", "sandbox", "vault_proxy"}, {"sandbox", "vault_proxy"}, {"harness"}, set()]
if FULL:
    STEPS[2:2] = [{"harness", "vault_proxy"}, {"harness", "sandbox"}]
    STEPS += [{"harness", "sandbox", "vault_proxy"}, set(SERVICES), set()]


def extra(old: frozenset[str], folder: Path, data: Path) -> dict[str, dict[str, str]]:
    """Says to each service which program it is; the operators of the store are of the last release with the session.

    Services of 0.1.0 read the file of API keys by themselves; later ones ask the session service.
    """
    told: dict[str, dict[str, str]] = {name: {} for name in (*SERVICES, "migrate", "janitor")}
    # Services are started beside each other, and tests beside this one: 15 s may be too few for a server to answer.
    told["vault_proxy"] |= {"HANDMESH_OUTBOUND_ALLOW": "127.0.0.1", "HANDMESH_MCP_CONNECT_SECONDS": "60"}
    for name in old | ({"migrate", "janitor"} if "session" in old else set()):
        told[name] |= {"PYTHONPATH": str(folder), "HANDMESH_API_KEYS_FILE": str(MeshFiles(data).api_keys)}
    return told


@dataclass
class Upgrade:
    """A mesh under way from one version to the next, and the program of the one before."""

    mesh: Mesh
    client: Client
    folder: Path
    url: str
    vault_id: str
    old: frozenset[str] = ALL_OLD
    migrated: bool = False

    async def to(self, old: frozenset[str]) -> None:
        """Replaces what has to be, session first, and back session last. Before a newer one the store is migrated."""
        before, self.old = self.old, old
        self.mesh.settings = replace(
            self.mesh.settings, extra=extra(old, self.folder, self.mesh.settings.data_directory)
        )
        changed = [
            name for name in ("session", "vault_proxy", "sandbox", "harness") if (name in before) != (name in old)
        ]
        if "session" in changed and "session" not in old:
            if before == ALL_OLD and not self.migrated:
                assert "made SCHEMA" in await plan_migration(self.mesh.settings)
                self.migrated = True
            await finish_migration(start_migration(self.mesh.settings))
            assert await plan_migration(self.mesh.settings) == []
        if "session" in changed:
            await self.mesh.restart("janitor")
        for name in changed if len(old) < len(before) else reversed(changed):
            await self.mesh.restart(name)

    def program_of(self, service: str) -> str:
        """Returns what a running service was started from, as the kernel knows it."""
        variables = Path(f"/proc/{self.mesh.pids[service]}/environ").read_bytes().split(b"\0")
        return next((each[11:].decode() for each in variables if each.startswith(b"PYTHONPATH=")), "")

    async def shop(self) -> Session:
        """Begins a session whose tool is behind the vault proxy and needs a credential."""
        server = config_pb2.McpServer(name="shop", url=self.url)
        config = config_pb2.SessionConfig(no_hands=True, mcp_servers=[server], vault_ids=[self.vault_id])
        return await self.client.create_session(config, "shop")


@asynccontextmanager
async def shop(directory: Path, token: str) -> AsyncIterator[str]:
    """Runs the demo MCP server, and gives its URL."""
    (directory / "token").write_text(token)
    arguments = ("-m", "handmesh.demo_mcp", "--listen", "127.0.0.1:0", "--token-file", str(directory / "token"))
    server = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert server.stdout is not None
    try:
        yield json.loads(await server.stdout.readline())["url"]
    finally:
        server.terminate()
        await server.wait()


async def credential(client: Client, url: str, token: str) -> str:
    """Puts the shop's token into a vault, by the old services; returns the vault's id."""
    vault = await client.vaults.create("shop")
    secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=token))
    await client.vaults.add(vault.vault_id, secret, origin=url.removesuffix("/mcp"), name="shop")
    return vault.vault_id


@pytest_asyncio.fixture(loop_scope="module")
async def upgrade(tmp_path: Path) -> AsyncIterator[Upgrade]:
    """A mesh that is the last release as a whole, store and operators included."""
    folder, token = previous_release(), f"canary-{mint('tok')}"
    settings = MeshSettings(
        tmp_path / "data",
        Scripted(SCRIPT),
        {**os.environ, "PYTHONPATH": str(ROOT)},
        Ports.free(),
        extra=extra(ALL_OLD, folder, tmp_path / "data"),
    )
    async with (
        shop(tmp_path, token) as url,
        await Mesh.start(settings) as mesh,
        connect(data_directory=mesh.files.data_directory) as client,
    ):
        yield Upgrade(mesh, client, folder, url, await credential(client, url, token))
        for sandbox in await client.sandboxes():
            await client.release(sandbox.sandbox_id)


async def until(session: Session, kind: str) -> Event:
    """Waits for the first event of a kind."""
    async with asyncio.timeout(SECONDS):
        async for event in session.watch():
            if event.WhichOneof("kind") == kind:
                return event
    raise AssertionError(f"{session.id} has no {kind}")


async def of_the_future(mesh: Mesh, session: Session) -> None:
    """Puts an event into a log that neither version knows, as a harness of a version to come would, under its epoch."""
    unknown = bytes([0xF2, 0x06, 3]) + b"abc"  # field 110, length-delimited
    event = Event.FromString(Event(event_id="future", ignorable=True).SerializeToString() + unknown)
    request = session_pb2.EmitEventRequest(session_id=session.id, event=event, epoch=(await session.get()).epoch)
    async with channels.connect(mesh.settings.ports.mesh("session"), mesh.files.tls / "harness") as channel:
        await SessionServiceStub(channel).EmitEvent(request)


async def verified(client: Client, session: Session) -> list[Event]:
    """Returns a session's log; nothing is wrong with it, and nothing failed in it."""
    request = session_pb2.VerifySessionRequest(session_id=session.id)
    answer = await client.session_link.call(client.session_stub.VerifySession, request)
    assert list(answer.violations) == []
    events = [event async for event in session.events()]
    assert [event.position for event in events] == list(range(1, answer.last_position + 1))
    assert only(events, "error_raised") == [] and set(ends(events)) == {"DONE"}
    calls = [it.tool_use_id for it in only(events, "tool_finished")]
    assert len(calls) == len(set(calls)) and set(outcomes(events)) == {"OK"}
    return events


async def test_a_mesh_goes_from_the_last_release_to_this_one_under_its_sessions(upgrade: Upgrade) -> None:
    """Nothing is lost, no turn fails and each tool runs once, in each mixture: an old harness with a new session, a new
    harness with old hands, old and new hands and vault proxies with each. A harness can go back, in the drill the whole
    mesh can. An event of a kind that is yet to come is in a log all the while."""
    client = upgrade.client
    ask = config_pb2.ToolPolicy(pattern="bash", action=config_pb2.TOOL_POLICY_ACTION_ASK)
    long = await client.create_session(content="long")
    asked = await client.create_session(config_pb2.SessionConfig(tool_policies=[ask]), "ask")
    sleeper = await client.create_session(content="again")
    assert ends(await turn(sleeper)) == ["DONE"]
    await of_the_future(upgrade.mesh, sleeper)
    hand = (await until(long, "tool_started")).tool_started.sandbox_id
    asks = (await until(asked, "tool_confirmation_requested")).tool_confirmation_requested
    for number, old in enumerate(STEPS, 2):
        await upgrade.to(frozenset(old))
        assert [upgrade.program_of(name) == str(upgrade.folder) for name in SERVICES] == [it in old for it in SERVICES]
        await sleeper.send("again")
        fresh, bought = await client.create_session(content="again"), await upgrade.shop()
        assert ends(await turn(sleeper, number)) == ["DONE"] * number
        assert last_words(await turn(fresh)) == "1" and "7" in last_words(await turn(bought))
        await verified(client, fresh)
        await verified(client, bought)
    touch = sandbox_pb2.ExecuteRequest(sandbox_id=hand, name="bash", input=json.dumps({"command": "touch go"}))
    await client.sandbox_link.call(client.sandbox_stub.Execute, touch)
    confirmed = ToolConfirmed(tool_use_id=asks.tool_use_id, allowed=True, call_hash=asks.call_hash)
    await asked.emit(Event(event_id="yes", tool_confirmed=confirmed))
    assert [last_words(await turn(session)) for session in (long, asked)] == ["1", "1"]
    for session in (long, asked):
        await verified(client, session)
    assert len(only(await verified(client, sleeper), "tool_finished")) == len(STEPS) + 1
    assert last_words(await turn(sleeper, len(STEPS) + 1)) == str(len(STEPS) + 1)
