"""Every process of a mesh with two replicas of each service is restarted, one after another, under running sessions."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from handmesh.client import Client, Session, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2
from services.session.verify import check, check_acknowledged
from tests.crash.story import insist
from tests.drills.conftest import SCRIPT
from tests.drills.process import seen
from tests.drills.size import FULL, size

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.timeout(1_200),
    pytest.mark.asyncio(loop_scope="module"),
]

SESSIONS = size(6, 50)
TURN_SECONDS = size(60, 240)
SERVICES = ("session", "vault_proxy", "sandbox", "harness")
KILLED = [*SERVICES] if not FULL else [f"{service}{more}" for more in ("-2", "") for service in SERVICES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """A mesh with two replicas of each service."""
    settings = MeshSettings(
        tmp_path_factory.mktemp("mesh"),
        Scripted(SCRIPT.with_name("rolling.yaml")),
        os.environ,
        Ports.free(),
        (Ports.free(),),
    )
    async with await Mesh.start(settings) as mesh:
        yield mesh


@pytest_asyncio.fixture(loop_scope="module")
async def client(mesh: Mesh) -> AsyncIterator[Client]:
    """A client of all its replicas; at the end no sandbox is left."""
    async with connect(data_directory=mesh.files.data_directory) as connected:
        yield connected
        for sandbox in await connected.sandboxes():
            await connected.release(sandbox.sandbox_id)


@dataclass
class Worker:
    """A session that is told to work again whenever its turn has ended, and what its client saw."""

    session: Session
    acknowledged: dict[str, int] = field(default_factory=dict)
    events: list[ev.Event] = field(default_factory=list)
    turns: int = 0
    longest: float = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Works until told to stop, and then to the end of its turn."""
        watching = self.session.watch()
        while not stop.is_set():
            event_id, began = f"work-{self.session.id}-{self.turns}", time.monotonic()
            self.acknowledged[event_id] = await insist(lambda: self.session.send("work", event_id=event_id))  # noqa: B023
            async with asyncio.timeout(TURN_SECONDS):
                async for event in watching:
                    self.events.append(event)
                    ended = event.turn_ended.read_position if event.HasField("turn_ended") else 0
                    if ended >= self.acknowledged[event_id]:
                        break
            self.turns += 1
            self.longest = max(self.longest, time.monotonic() - began)

    def count(self, kind: str) -> int:
        """Counts the events of a kind."""
        return sum(event.WhichOneof("kind") == kind for event in self.events)

    async def problems(self, client: Client) -> list[str]:
        """Says what is wrong: with the log, with its turns, and with what was done in the sandbox."""
        log = [event async for event in self.session.events()]
        found = [str(it) for it in check(seen(log)) + check_acknowledged(seen(log), self.acknowledged)]
        if [event.position for event in self.events] != list(range(1, len(self.events) + 1)):
            found.append("the watcher missed an event, or saw one twice")
        if self.events != log[: len(self.events)]:
            found.append("the watcher saw other events than the log has")
        verified = await client.session_link.call(
            client.session_stub.VerifySession, session_pb2.VerifySessionRequest(session_id=self.session.id)
        )
        found += [str(it) for it in verified.violations]
        done = ev.TurnEndReason.TURN_END_REASON_DONE
        found += [
            f"a turn ended as {it.turn_ended.reason}"
            for it in log
            if it.HasField("turn_ended") and it.turn_ended.reason != done
        ]
        found += [f"an error: {it.error_raised}" for it in log if it.HasField("error_raised")]
        for it in log:
            if it.HasField("tool_finished") and it.tool_finished.result.outcome != tool_pb2.TOOL_OUTCOME_OK:
                found.append(f"a tool ended as {it.tool_finished.result}")
        ran = await self._lines(client, log)
        if not ran == self.turns == self.count("tool_started") == self.count("tool_finished"):
            found.append(f"{self.turns} turns, {self.count('tool_started')} started, {ran} ran")
        return found

    async def _lines(self, client: Client, log: list[ev.Event]) -> int:
        sandboxes = {it.sandbox_provisioned.sandbox_id for it in log if it.HasField("sandbox_provisioned")}
        lines = 0
        for sandbox_id in sandboxes:
            pieces = [piece async for piece in client.read_file(sandbox_id, "/workspace/runs.txt")]
            lines += b"".join(pieces).count(b"\n")
        return lines


async def rolled(mesh: Mesh, client: Client, parts: list[str], kill: bool) -> None:
    """Restarts parts under running sessions; nothing is lost, nothing fails, nothing is done twice."""
    sessions = await asyncio.gather(*(insist(client.create_session) for _ in range(SESSIONS)))
    workers = [Worker(session) for session in sessions]
    stop = asyncio.Event()
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run(stop))
        for part in parts:
            await _more_turns(workers)
            if kill:
                await mesh.kill(part)
            await mesh.restart(part)
        await _more_turns(workers)
        stop.set()
    seconds = time.monotonic() - began
    problems = {w.session.id: it for w in workers if (it := await w.problems(client))}
    turns, longest = sum(worker.turns for worker in workers), max(worker.longest for worker in workers)
    how = "SIGKILL" if kill else "SIGTERM"
    print(
        f"\n{how} of {len(parts)} processes under {SESSIONS} sessions: "
        f"{turns} turns in {seconds:.0f} s, {longest:.1f} s the longest"
    )
    woke = Counter(worker.count("harness_woke") for worker in workers)
    assert problems == {}, (mesh.files.data_directory, woke)
    for session in sessions:
        await session.end()


async def _more_turns(workers: list[Worker]) -> None:
    """Waits until so many turns have ended as there are sessions."""
    wanted = sum(worker.turns for worker in workers) + len(workers) // 2
    async with asyncio.timeout(TURN_SECONDS):
        while sum(worker.turns for worker in workers) < wanted:
            await asyncio.sleep(0.05)


async def test_all_are_told_to_go(mesh: Mesh, client: Client) -> None:
    """SIGTERM to each process in turn: 0 lost events, 0 failed turns, 0 duplicate executions."""
    await rolled(mesh, client, mesh.settings.services, kill=False)


async def test_all_are_killed(mesh: Mesh, client: Client) -> None:
    """SIGKILL of each process in turn (in `make test` of one replica of each service): the same holds."""
    await rolled(mesh, client, KILLED, kill=True)
