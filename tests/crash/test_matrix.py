"""The crash matrix: whatever dies, wherever, the session goes on, and the checker finds nothing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from handmesh.client import HandmeshError
from handmesh.session.v1 import session_pb2
from tests.crash.cells import AWAY, CLAUDE_CODE, ENDS, ERRORS, KILLS, OUTSIDE, SHORT_PAUSES, STOPPED, Cell
from tests.crash.crew import Crew, without_openbao
from tests.crash.story import Story, count, insist, outcomes
from tests.drills.size import FULL, size

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="package"),
]

TIMES = size(1, 5)
LOOK_SECONDS = 0.02
SHORT_SECONDS = 1.0  # nobody is given up for that
ANSWERS = {"echo": 1, "review": 3, "family": 3}
GIVE_UP_SECONDS = 0.3  # before what was killed is there again
SESSIONS = 6  # side by side, for failures


async def finish(story: Story, allowed: frozenset[str] = frozenset({"OK"})) -> None:
    """Follows a story to its end and holds it to everything that must be true."""
    await story.tell()
    log = await story.log()
    assert await story.violations() == []
    assert set(outcomes(log)) <= allowed
    assert count(log, "model_replied") == ANSWERS.get(story.kind, 2)  # one that is in the log is not asked for again
    assert count(log, "turn_ended") == 1
    assert count(log, "context_compacted") == (story.kind == "long")  # nor is a summary
    if story.kind == "family":
        [child] = await story.children()
        await child.follow()
        assert await child.violations() == [] and outcomes(await child.log()) == ["OK", "OK"]


async def test_nothing_is_wrong_when_nothing_dies(crew: Crew) -> None:
    """The stories themselves, side by side."""
    stories = await asyncio.gather(
        *(
            Story.begin(crew, kind)
            for kind in ("both", "asked", "yours", "shop", "slow", "memory", "echo", "review", "family", "long")
        )
    )
    await asyncio.gather(*(finish(story) for story in stories))


@pytest.mark.parametrize("cell", KILLS * TIMES if FULL else KILLS[::2], ids=str)
async def test_a_kill(crew: Crew, cell: Cell) -> None:
    """SIGKILL at the cell's point: what was said stays said, what ran ran once, and the turn ends."""
    crew.arm(cell.point, f"kill after {cell.passes}")
    try:
        story = await Story.begin(crew, cell.kind, at_once=cell.at_once)
        await finish(story, cell.outcomes)
        await crew.struck(cell.point)
    finally:
        assert crew.disarm() == []


@pytest.mark.claude_code
@pytest.mark.parametrize("cell", CLAUDE_CODE[: size(3, len(CLAUDE_CODE))] * TIMES, ids=str)
async def test_a_kill_with_claude_code(crew: Crew, cell: Cell) -> None:
    """The same when the real Claude Code is the brain, whose process goes with the harness's."""
    crew.arm(cell.point, f"kill after {cell.passes}")
    try:
        story = await Story.begin(crew, cell.kind, at_once=cell.at_once, harness="claude_code")
        await finish(story, cell.outcomes)
        await crew.struck(cell.point)
    finally:
        assert crew.disarm() == []


async def running(story: Story) -> None:
    """Waits until a command of the session runs."""
    async with asyncio.timeout(30):
        while not await story.running():
            await asyncio.sleep(LOOK_SECONDS)


@pytest.mark.parametrize("victim", OUTSIDE * TIMES)
async def test_a_kill_while_a_command_runs(crew: Crew, victim: str) -> None:
    """Step 7: the command runs on and ran once; whoever has the session then gets its output."""
    story = await Story.begin(crew, "slow")
    async with asyncio.TaskGroup() as group:
        group.create_task(finish(story))
        await running(story)
        os.kill(story.owner() if victim == "harness" else crew.pids()[victim], signal.SIGKILL)
    await crew.whole()


@pytest.mark.parametrize("victim", list(STOPPED) * TIMES)
async def test_a_stop_while_a_command_runs(crew: Crew, victim: str) -> None:
    """Step 7: SIGSTOP from outside. Whoever needs that part waits for it, or says so and comes again."""
    await crew.whole()
    story = await Story.begin(crew, "slow")
    async with asyncio.TaskGroup() as group:
        group.create_task(finish(story))
        await running(story)
        os.kill(pid := crew.pids()[victim], signal.SIGSTOP)
        await asyncio.sleep(STOPPED[victim])
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("what", AWAY * TIMES)
async def test_no_credential_can_be_had(crew: Crew, what: str) -> None:
    """Step 11 without OpenBao: the log says what is missing, and the turn ends; the next session has its tool again."""
    await crew.whole()
    async with without_openbao(crew, what.split()[0]):
        story = await Story.begin(crew, "shop")
        await story.tell()
        log = await story.log()
    assert next(event.error_raised.part for event in log if event.HasField("error_raised")) == "vault_proxy"
    assert count(log, "turn_ended") == 1 and await story.violations() == []
    await finish(await Story.begin(crew, "shop"))


@pytest.mark.parametrize("cell", ENDS * TIMES, ids=str)
async def test_a_kill_while_a_session_ends(crew: Crew, cell: Cell) -> None:
    """Step 14: the end is carried through by whoever comes after: nothing of the session is left."""
    story = await Story.begin(crew, "both")
    await finish(story)
    crew.arm(cell.point, "kill")
    request = session_pb2.EndSessionRequest(session_id=story.session.id)
    stub, link = crew.client.session_stub, crew.client.session_link
    ended = await insist(lambda: link.call(stub.EndSession, request))
    assert ended.session.status == session_pb2.SESSION_STATUS_ENDED
    await crew.struck(cell.point)
    async with asyncio.timeout(70):
        while await insist(lambda: crew.client.sandboxes(story.session.id)):
            await asyncio.sleep(LOOK_SECONDS)
    assert await story.violations() == []


async def test_a_kill_while_a_family_ends(crew: Crew) -> None:
    """Step 14: the parent's end is in its log, and whoever was to end its child is gone. Nobody asks again: a session
    service ends it all the same."""
    story = await Story.begin(crew, "family")
    await finish(story)
    [child] = await story.children()
    crew.arm("session.end_stored", "kill")
    with pytest.raises(HandmeshError):
        request = session_pb2.EndSessionRequest(session_id=story.session.id)
        await crew.client.session_link.call(crew.client.session_stub.EndSession, request, timeout=GIVE_UP_SECONDS)
    await crew.struck("session.end_stored")
    async with asyncio.timeout(30):
        while not count(await child.log(), "session_ended"):
            await asyncio.sleep(LOOK_SECONDS)
    await crew.whole()


@pytest.mark.parametrize("cell", SHORT_PAUSES * TIMES, ids=str)
async def test_a_short_pause(crew: Crew, cell: Cell) -> None:
    """SIGSTOP for a second: everybody waits, and nothing is lost or done twice."""
    await crew.whole()
    crew.arm(cell.point, f"pause after {cell.passes}")
    story = await Story.begin(crew, cell.kind)
    async with asyncio.TaskGroup() as group:
        group.create_task(finish(story))
        pid = await crew.struck(cell.point)
        await asyncio.sleep(SHORT_SECONDS)
        os.kill(pid, signal.SIGCONT)
    assert crew.disarm() == []


@pytest.mark.parametrize("kind", list(ERRORS) * TIMES)
async def test_failures(crew: Crew, kind: str) -> None:
    """Every part fails at every point once, in sessions side by side: all of them go on."""
    await crew.whole()
    prepared = SESSIONS if kind == "memory" else 0  # files, each of which is written before
    for point in ERRORS[kind]:
        crew.arm(point, f"error after {prepared}")
    stories = await asyncio.gather(*(Story.begin(crew, kind, at_once=True) for _ in range(SESSIONS)))
    await asyncio.gather(*(finish(story, frozenset({"OK", "UNKNOWN"})) for story in stories))
    assert crew.disarm() == []


async def test_no_secret_is_where_it_should_not_be(crew: Crew) -> None:
    """I11, at the end: the server's token is in no file of the mesh, its logs and the model's part among them."""
    found = await asyncio.create_subprocess_exec(
        "grep", "-rlF", "-e", crew.shop.token, str(crew.mesh.files.data_directory)
    )
    assert await found.wait() == 1  # grep's word for: nowhere
