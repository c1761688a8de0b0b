"""Who is not the session's harness any more does nothing: not to its log, in its hands, or with its credentials."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1 import config_pb2
from handmesh.session.v1 import event_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.harness.adapters.sandbox import RemoteHands
from services.harness.adapters.session import RemoteLog
from services.harness.adapters.vault_proxy import RemoteServers
from services.harness.ports import Standing
from services.kit import channels
from services.kit.errors import Conflict, ServiceError, Unauthenticated
from services.kit.ids import mint
from tests.crash.cells import PAUSES
from tests.crash.crew import LOOK_SECONDS, Crew
from tests.crash.story import Story, count
from tests.drills.size import size

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="package"),
]

SPEC = config_pb2.HandSpec().SerializeToString()
REVOKED_SECONDS = 5.0  # docs promise 1


@dataclass
class Brain:
    """A harness by hand: what it sees of the mesh, and what it acts under."""

    log: RemoteLog
    hands: RemoteHands
    servers: RemoteServers
    under: Standing

    async def run(self, sandbox_id: str, command: str, execution_id: str) -> str:
        """Runs a command."""
        asked = f'{{"command": "{command}"}}'
        return (await self.hands.execute(sandbox_id, "bash", asked, execution_id, self.under)).output


@asynccontextmanager
async def brains(crew: Crew) -> AsyncIterator[Any]:
    """Yields a function that takes a session up, as the harness that comes next."""
    tls, ports = crew.mesh.files.tls / "harness", crew.mesh.settings.ports
    async with AsyncExitStack() as stack:
        session, sandbox, proxy = [
            await stack.enter_async_context(channels.connect(ports.mesh(name), tls))
            for name in ("session", "sandbox", "vault_proxy")
        ]

        async def take_up(session_id: str) -> Brain:
            log = RemoteLog(SessionServiceStub(session), session_id)
            woke = pb.Event(event_id=mint("woke"), harness_woke=pb.HarnessWoke(harness="by_hand", instance="test:0"))
            while True:
                head = (await crew.client.session(session_id).get()).last_position
                try:
                    taken = await log.emit([woke], 0, head)
                    break
                except Conflict:
                    continue  # vault_proxy has just said that a credential was used
            return Brain(log, RemoteHands(sandbox), RemoteServers(proxy), Standing(taken.first_position, taken.grant))

        yield take_up


async def by_hand(crew: Crew) -> str:
    """Makes a session that no harness of the mesh takes up."""
    server = config_pb2.McpServer(name="shop", url=crew.shop.url)
    config = config_pb2.SessionConfig(harness="by_hand", mcp_servers=[server], vault_ids=[crew.shop.vault_id])
    return (await crew.client.create_session(config)).id


async def refused(call: Any, *reasons: str) -> None:
    """Checks that a call is refused for one of the reasons."""
    with pytest.raises(ServiceError) as told:
        await call
    assert told.value.reason in reasons


async def heard(brain: Brain, sandbox_id: str) -> None:
    """Waits until the sandbox service has heard that the brain is an old one."""
    async with asyncio.timeout(REVOKED_SECONDS):
        while True:
            try:
                await brain.run(sandbox_id, "true", mint("exec"))
            except (Conflict, Unauthenticated):
                return


async def test_an_old_brain_does_nothing(crew: Crew) -> None:
    """Once another one has taken over, though that one has said nothing to anybody but the log: append, execute,
    cancel, provision and a server's tool are refused, and none of it happens."""
    await crew.whole()
    async with brains(crew) as take_up:
        session_id = await by_hand(crew)
        old: Brain = await take_up(session_id)
        sandbox = (await old.hands.provision(session_id, "main", SPEC, 1, old.under)).sandbox_id
        assert await old.run(sandbox, "echo one >> runs; cat runs", "one") == "one"
        await old.servers.execute(
            old.under.grant, "shop__add_note", f'{{"text": "old {session_id}"}}', "note", False, 0
        )

        new: Brain = await take_up(session_id)
        await heard(old, sandbox)
        done = ToolResult(output="x", outcome=ToolOutcome.TOOL_OUTCOME_OK)
        late = pb.Event(event_id="late", tool_finished=pb.ToolFinished(tool_use_id="one", result=done))
        await refused(old.log.emit([late], old.under.epoch, None), "EPOCH_STALE")
        await refused(old.run(sandbox, "echo two >> runs", "two"), "EPOCH_STALE", "GRANT_INVALID")
        await refused(old.hands.cancel(sandbox, "three", old.under), "EPOCH_STALE", "GRANT_INVALID")
        await refused(old.hands.provision(session_id, "main", SPEC, 2, old.under), "EPOCH_STALE", "GRANT_INVALID")
        note = f'{{"text": "late {session_id}"}}'
        await refused(old.servers.execute(old.under.grant, "shop__add_note", note, "late", False, 0), "GRANT_INVALID")

        assert await new.run(sandbox, "cat runs", "three") == "one"
        known = {it.execution_id for it in await crew.client.executions(sandbox)}
        assert {"one", "three"} <= known and "two" not in known
        assert [it.sandbox_id for it in await crew.client.sandboxes(session_id)] == [sandbox]
        said = (await new.servers.execute(new.under.grant, "shop__list_notes", "{}", "list", False, 0)).output
        assert f"old {session_id}" in said and f"late {session_id}" not in said


async def test_a_grant_is_for_its_own_session_and_epoch(crew: Crew) -> None:
    """With no grant, another session's, or a made-up epoch a harness's certificate is worth nothing in a sandbox."""
    await crew.whole()
    async with brains(crew) as take_up:
        mine: Brain = await take_up(await by_hand(crew))
        theirs: Brain = await take_up(await by_hand(crew))
        session_id = mine.log.session_id
        sandbox = (await mine.hands.provision(session_id, "main", SPEC, 1, mine.under)).sandbox_id
        for standing, reason in (
            (Standing(mine.under.epoch, ""), "GRANT_INVALID"),
            (Standing(mine.under.epoch, "made up"), "GRANT_INVALID"),
            (theirs.under, "GRANT_INVALID"),
            (Standing(mine.under.epoch + 1, mine.under.grant), "EPOCH_STALE"),
            (Standing(0, mine.under.grant), "EPOCH_STALE"),
        ):
            await refused(mine.hands.execute(sandbox, "bash", '{"command": "true"}', "x", standing), reason)
            await refused(mine.hands.provision(session_id, "main", SPEC, 1, standing), reason)
        assert await crew.client.executions(sandbox) == []


async def test_a_grant_dies_with_its_session(crew: Crew) -> None:
    """After the end of a session its harness runs nothing in its sandbox, also before that is gone."""
    await crew.whole()
    async with brains(crew) as take_up:
        brain: Brain = await take_up(await by_hand(crew))
        session_id = brain.log.session_id
        sandbox = (await brain.hands.provision(session_id, "main", SPEC, 1, brain.under)).sandbox_id
        await brain.run(sandbox, "true", "x")
        await crew.client.session(session_id).end()
        async with asyncio.timeout(REVOKED_SECONDS):
            while True:
                try:
                    await brain.run(sandbox, "true", mint("exec"))
                except ServiceError as problem:
                    assert problem.reason in ("GRANT_INVALID", "SANDBOX_GONE")
                    break


async def test_a_sandbox_that_nobody_was_told_of(crew: Crew) -> None:
    """Provision fails after the sandbox was made: who asks again gets it, also another harness; when the session has
    another environment by then, it goes. There is never a second one."""
    await crew.whole()
    async with brains(crew) as take_up:
        session_id = await by_hand(crew)
        first: Brain = await take_up(session_id)

        async def there() -> list[str]:
            return [it.sandbox_id for it in await crew.client.sandboxes(session_id)]

        crew.arm("sandbox.sandbox_made", "error")
        made = (await first.hands.provision(session_id, "main", SPEC, 1, first.under)).sandbox_id  # the channel repeats
        await crew.struck("sandbox.sandbox_made")
        assert await there() == [made]
        second: Brain = await take_up(session_id)
        assert (await second.hands.provision(session_id, "main", SPEC, 1, second.under)).sandbox_id == made
        other = config_pb2.HandSpec(environment="other").SerializeToString()
        changed = await second.hands.provision(session_id, "main", other, 1, second.under)
        assert (changed.environment, await there()) == ("other", [changed.sandbox_id])
        assert changed.sandbox_id != made


async def test_stopped_brains_are_taken_over_from_and_leave(crew: Crew) -> None:
    """SIGSTOP past the deadline at many points, side by side; others take over and end the turns; SIGCONT: what the
    old brains still say is refused, and they leave."""
    await crew.whole()
    cells = PAUSES[: size(3, len(PAUSES))]
    names = [f"alone{number}" for number in range(len(cells))]
    for name in ("harness", "second"):
        await crew.drop_harness(name)
    await asyncio.gather(*(crew.add_harness(name, capacity=1) for name in names))  # one session each
    stories: list[Story] = []
    stopped: list[int] = []
    async with asyncio.TaskGroup() as group:
        for kind in dict.fromkeys(cell.kind for cell in cells):  # a kind's sessions come to no other's points
            points = [cell.point for cell in cells if cell.kind == kind]
            for point in points:
                crew.arm(point, "pause")
            begun = await asyncio.gather(*(Story.begin(crew, kind) for _ in points))
            stories += begun
            for story in begun:
                group.create_task(story.tell())
            stopped += await asyncio.gather(*(crew.struck(point) for point in points))
        crew.wanted.add("harness")
        await crew.add_harness("second")
    assert len(set(stopped)) == len(cells)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    async with asyncio.timeout(30):
        while any([await crew.runs(name) for name in names]):
            await asyncio.sleep(LOOK_SECONDS)
    taken_over = 0
    for story in stories:
        log = await story.log()
        assert await story.violations() == []
        assert count(log, "turn_ended") == 1
        taken_over += count(log, "harness_woke") >= 2
    assert taken_over == sum(cell.step != 13 for cell in cells)  # at step 13 there is nothing to take over
    for name in names:
        await crew.drop_harness(name)
