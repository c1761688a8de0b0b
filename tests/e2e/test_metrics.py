"""What a mesh counts while sessions work, and that none of it says who they are or what they say."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import struct
import sys
import termios

import pytest
import pytest_asyncio

from handmesh.client import Client, HandmeshError, Session, connect
from handmesh.client.session import message
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import SERVICES
from handmesh.session.v1.config_pb2 import HandSpec, McpServer, SessionConfig
from handmesh.session.v1.event_pb2 import Event
from tests.support.canary import mint, spelled
from tests.support.counted import Counts, scrape

pytestmark = [
    pytest.mark.metrics,
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.asyncio(loop_scope="module"),
]

TURN_SECONDS = 60.0
Scrapes = dict[str, Counts]


async def scraped(mesh: Mesh) -> Scrapes:
    """Reads all four services."""
    return {service: await scrape(mesh.settings.ports.metrics(service)) for service in SERVICES}


async def until(session: Session, kind: str) -> None:
    """Follows a session until an event of a kind."""
    async with asyncio.timeout(TURN_SECONDS):
        async for event in session.watch(previews=True):
            if not hasattr(event, "offset") and event.WhichOneof("kind") == kind:
                return


class Moved:
    """How much a sample went up between two scrapes."""

    def __init__(self, before: Scrapes, after: Scrapes) -> None:
        self._before = before
        self._after = after

    def of(self, service: str, name: str, **labels: str) -> float:
        return self._after[service].of(name, **labels) - self._before[service].of(name, **labels)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worked(mesh: Mesh) -> tuple[Moved, str]:
    """A session that works with tools, one whose model is overloaded once, one that cannot have its hand."""
    canary = mint()
    before = await scraped(mesh)
    async with connect(data_directory=mesh.files.data_directory) as client:
        config = SessionConfig(title=canary, labels={"it": canary}, model=canary, system=canary)
        session = await client.create_session(config, f"work {canary}")
        await until(session, "turn_ended")
        await until(await client.create_session(content="overloaded"), "turn_ended")
        servers = [McpServer(name="shop", url=f"http://127.0.0.1:9/{canary[:12]}")]
        await until(await client.create_session(SessionConfig(mcp_servers=servers), "hello"), "turn_ended")
        nowhere = SessionConfig(hands={"main": HandSpec(environment="nowhere")})
        await until(await client.create_session(nowhere, "work"), "turn_ended")
        with pytest.raises(HandmeshError):
            await client.session("sess_" + "0" * 26).get()
        with pytest.raises(HandmeshError):
            await session.emit(Event(message_received=message(canary)), expected_position=1)
    return Moved(before, await scraped(mesh)), canary


async def test_each_thing_that_happened_is_counted_once(worked: tuple[Moved, str]) -> None:
    """Turns, answers, tokens, tools, waking, appends, sandboxes and calls move by as much as was done."""
    moved, _ = worked
    of = moved.of
    assert of("session", "handmesh_events_total", kind="session_started") == 4
    assert of("session", "handmesh_turns_total", reason="done", harness="messages") == 3
    assert of("session", "handmesh_turns_total", reason="failed", harness="messages") == 1
    assert of("session", "handmesh_turn_seconds_count") == 4
    for name, count in (("wake_claim", 4), ("wake", 4), ("wake_first_byte", 3)):
        assert of("session", f"handmesh_{name}_seconds_count") == count, name
    assert of("session", "handmesh_appends_total", outcome="appended") == of("session", "handmesh_append_events_count")
    assert of("session", "handmesh_appends_total", outcome="POSITION_CONFLICT") >= 1
    assert of("session", "handmesh_append_events_sum") == of("session", "handmesh_events_total")
    answers = of("session", "handmesh_events_total", kind="model_replied")
    assert of("harness", "handmesh_model_answers_total") == answers
    assert of("harness", "handmesh_model_first_token_seconds_count") == answers
    assert of("harness", "handmesh_model_tokens_total", kind="output") > 0
    assert of("harness", "handmesh_model_answers_total", model="other") >= 2
    assert of("harness", "handmesh_model_failures_total", reason="MODEL_OVERLOADED") == 1
    assert of("harness", "handmesh_model_retries_total", reason="MODEL_OVERLOADED") == 1
    assert of("harness", "handmesh_tools_total", tool="bash", outcome="ok") == 1
    assert of("harness", "handmesh_tools_total", tool="write", outcome="ok") == 1
    assert of("harness", "handmesh_tool_seconds_count") == 2
    assert of("sandbox", "handmesh_sandboxes_provisioned_total") == 1
    assert of("sandbox", "handmesh_sandbox_provision_seconds_count") == 1
    assert of("sandbox", "handmesh_executions_total", tool="bash", outcome="ok") == 1
    assert of("sandbox", "handmesh_grpc_calls_total", method="SandboxService/Execute", code="OK") == 2
    assert of("sandbox", "handmesh_grpc_calls_total", code="INVALID_ARGUMENT") >= 1
    assert of("session", "handmesh_grpc_calls_total", method="SessionService/GetSession", code="NOT_FOUND") == 1
    assert of("vault_proxy", "handmesh_grpc_calls_total", method="VaultProxyService/ListTools") == 1


async def test_what_is_now_is_read_when_asked(mesh: Mesh, client: Client) -> None:
    """A call at work, a claim, a watcher, the stream of revocations and who waits show as long as they are."""
    await client.create_session(content="hello")  # so that somebody has woken
    session = await client.create_session(content="take your time")
    watching = asyncio.create_task(until(session, "turn_ended"))
    await until(session, "tool_started")
    now = await scraped(mesh)
    assert now["harness"].of("handmesh_runs") >= 1
    assert now["harness"].of("handmesh_runs_capacity") == 100
    assert now["harness"].of("handmesh_draining") == 0
    assert now["session"].of("handmesh_claims") >= 1
    assert now["session"].of("handmesh_harness_streams") == 1
    assert now["session"].of("handmesh_watchers") >= 1
    assert now["session"].of("handmesh_grpc_calls_in_flight", method="SessionService/WatchEvents") >= 1
    for service in ("sandbox", "vault_proxy"):
        assert now[service].of("handmesh_revocations_watched") == 1
    for service in SERVICES:
        assert now[service].of("handmesh_service_info", service=service) == 1
        assert now[service].of("process_resident_memory_bytes") > 1e7
        assert now[service].of("handmesh_event_loop_lag_seconds_count") > 0
    await client.create_session(SessionConfig(harness="nobodys"), "hello")
    async with asyncio.timeout(TURN_SECONDS):
        while not (await scrape(mesh.settings.ports.metrics("session"))).of(
            "handmesh_work_queue_sessions", harness="other"
        ):
            await asyncio.sleep(0.2)
    await session.end()
    watching.cancel()


async def test_no_metric_says_what_was_said(worked: tuple[Moved, str], mesh: Mesh) -> None:
    """Neither content nor names nor ids of sessions, in no spelling; a series for what is planted would be found."""
    _, canary = worked
    for service, counts in (await scraped(mesh)).items():
        page = counts.text.encode()
        assert [each for each in spelled(canary) if each in page] == [], service
        assert b"sess_" not in page
        assert b"nowhere" not in page
        assert b"nobodys" not in page
    assert any(each in f'x{{model="{canary}"}} 1'.encode() for each in spelled(canary))


async def test_top_shows_what_sessions_do(mesh: Mesh, client: Client) -> None:
    """The command names the tool that is at work, its hand and harness, and what sleeps; as a table and as JSON."""
    asleep = await client.create_session(content="hello")
    await until(asleep, "turn_ended")
    working = await client.create_session(content="take your time")
    await until(working, "tool_started")

    async def top(*options: str) -> str:
        command = [sys.executable, "-m", "handmesh.cli", "top", "--once", "--interval", "0.2", *options]
        where = ["--data-dir", str(mesh.files.data_directory)]
        process = await asyncio.create_subprocess_exec(*command, *where, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert process.returncode == 0
        return said.decode()

    rows = {row["session_id"]: row for row in map(json.loads, (await top("--json")).splitlines())}
    row = rows[working.id]
    assert (row["state"], row["doing"], row["hand"], row["harness"]) == ("in tool", "bash", "main", "messages")
    assert row["instance"] == mesh.settings.ports.client("harness")
    assert (rows[asleep.id]["state"], rows[asleep.id]["turns"]) == ("asleep", 1)
    assert rows[asleep.id]["tokens"] > 0
    table = await top("--sort", "age")
    assert f"{working.id}  in tool" in table
    await working.end()


async def test_top_obeys_keys_and_leaves(mesh: Mesh, client: Client) -> None:
    """On a terminal it draws again and again; `s` sorts, `a` hides who sleeps, `q` leaves it as it was."""
    asleep = await client.create_session(content="hello")
    await until(asleep, "turn_ended")
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    before = termios.tcgetattr(its)
    arguments = [sys.executable, "-m", "handmesh.cli", "top", "--interval", "0.2"]
    process = await asyncio.create_subprocess_exec(
        *arguments,
        *("--data-dir", str(mesh.files.data_directory)),
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "TERM": "xterm"},
    )

    async def shown(text: str) -> None:
        drawn = b""
        async with asyncio.timeout(TURN_SECONDS):
            while text.encode() not in drawn:
                drawn += await asyncio.to_thread(os.read, ours, 65_536)

    try:
        await shown(asleep.id)
        os.write(ours, b"s")
        await shown("by tokens/s")
        os.write(ours, b"a")
        await shown("q leaves")
        os.write(ours, b"q")
        async with asyncio.timeout(TURN_SECONDS):
            assert await process.wait() == 0
        assert termios.tcgetattr(its) == before
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
        os.close(its)
