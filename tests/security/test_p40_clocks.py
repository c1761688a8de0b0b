"""P40: the clock of one service is wrong, and jumps under sessions at work.

Leases and waits go by monotonic time, order by position, and only the session service's own clock says how long a
grant lives. So a wrong clock may cost a turn (the vault does not believe a word of the day before), and then says so;
it loses nothing, runs nothing twice, and costs nothing more once it is right again. The clocks are real: libfaketime's,
preloaded into the service's process, where wall time is what a file says and monotonic time stays. (SIGKILL between all
steps, the other half of P40, is `tests/crash`.)
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from handmesh.client import Client, Session, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import HOST, SERVICES, Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.session.v1 import config_pb2
from handmesh.session.v1.event_pb2 import TurnEndReason
from handmesh.session.v1.session_pb2 import VerifySessionRequest
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from tests.crash.crew import shop
from tests.drills.size import FULL
from tests.support.requirements import faketime

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.faketime,
    pytest.mark.asyncio(loop_scope="module"),
]

SCRIPT = """
conversations:
  - name: a command and a call with a credential
    when: {user: work}
    repeat: true
    steps:
      - say:
          - tool_use: {tool: bash, input: {command: echo ran >> runs; wc -l < runs}}
          - tool_use: {name: shop__who_am_i, input: {}}
      - say: [{text: Done.}]
"""
TURN_SECONDS = 60.0
LOOK_SECONDS = 2.5  # the library looks once a second
JUMPS = ("-90", "-600", "+600", "+86400") if FULL else ("-600", "+86400")  # seconds: minutes, a day


@dataclass
class Skewed:
    """A mesh in which each service has a clock of its own."""

    mesh: Mesh
    client: Client
    clocks: Path
    config: config_pb2.SessionConfig

    async def set(self, service: str, offset: str) -> None:
        """Sets a service's clock so many seconds off, and waits until it has looked into the file again."""
        fresh = self.clocks / f"{service}.new"
        fresh.write_text(offset)
        fresh.rename(self.clocks / service)  # never seen half written
        await asyncio.sleep(LOOK_SECONDS)

    async def work(self, session: Session) -> TurnEndReason:
        """Sends the session to work; returns how the turn ended."""
        position = await session.send("work")
        async with asyncio.timeout(TURN_SECONDS):
            async for event in session.watch(start=position):
                if event.HasField("turn_ended"):
                    return event.turn_ended.reason
        raise AssertionError("no turn ended")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def skewed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Skewed]:
    """Starts it, with all clocks right."""
    directory = tmp_path_factory.mktemp("skewed")
    clocks, script = directory / "clocks", directory / "script.yaml"
    clocks.mkdir()
    script.write_text(SCRIPT)
    extra = {}
    for service in SERVICES:
        (clocks / service).write_text("+0")
        extra[service] = {
            "LD_PRELOAD": str(faketime()),
            "FAKETIME_TIMESTAMP_FILE": str(clocks / service),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
    extra["vault_proxy"]["HANDMESH_OUTBOUND_ALLOW"] = HOST
    settings = MeshSettings(directory / "mesh", Scripted(script), os.environ, Ports.free(), extra=extra)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(shop(directory))
        mesh = await stack.enter_async_context(await Mesh.start(settings))
        client = await stack.enter_async_context(connect(data_directory=settings.data_directory))
        vault = await client.vaults.create("shop")
        secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=server.token))
        await client.vaults.add(vault.vault_id, secret, origin=server.url.removesuffix("/mcp"), name="shop")
        config = config_pb2.SessionConfig(
            vault_ids=[vault.vault_id], mcp_servers=[config_pb2.McpServer(name="shop", url=server.url)]
        )
        yield Skewed(mesh, client, clocks, config)
        for sandbox in await client.sandboxes():
            await client.release(sandbox.sandbox_id)  # hands outlive their mesh


async def test_the_clock_of_a_service_is_what_the_file_says(skewed: Skewed) -> None:
    """The control: an event that the session service stores while its clock is a day ahead is a day ahead."""
    session = await skewed.client.create_session(skewed.config)
    await skewed.set("session", "+86400")
    try:
        await session.send("later")
    finally:
        await skewed.set("session", "+0")
    times = [event.emit_time.ToSeconds() async for event in session.events()]
    assert times[-1] - times[0] > 80_000
    await session.end()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_wrong_clock_loses_nothing_and_runs_nothing_twice(skewed: Skewed, service: str) -> None:
    """Whichever service's clock jumps, and wherever to: each turn ends, each command ran once, the log is whole and in
    order, and with the clock right again the session goes on as before."""
    session = await skewed.client.create_session(skewed.config)
    assert await skewed.work(session) == TurnEndReason.TURN_END_REASON_DONE
    ended = []
    try:
        for jump in JUMPS:
            await skewed.set(service, jump)
            ended.append(await skewed.work(session))
    finally:
        await skewed.set(service, "+0")
    assert await skewed.work(session) == TurnEndReason.TURN_END_REASON_DONE
    events = [event async for event in session.events()]
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    commands = {event.tool_started.tool_use_id for event in events if event.HasField("tool_started")}
    results = [event.tool_finished for event in events if event.HasField("tool_finished")]
    assert len(results) == len({each.tool_use_id for each in results}) >= len(commands)
    counted = [int(each.result.output) for each in results if each.result.output.strip().isdigit()]
    assert counted == list(range(1, len(counted) + 1)), "a command ran twice, or not at all"
    request = VerifySessionRequest(session_id=session.id)
    assert not (await skewed.client.session_link.call(skewed.client.session_stub.VerifySession, request)).violations
    if service in ("harness", "sandbox"):
        assert set(ended) == {TurnEndReason.TURN_END_REASON_DONE}, "what only waits and works needs no right clock"
    await session.end()
    print(service, [TurnEndReason.Name(each) for each in ended], file=sys.stderr)
