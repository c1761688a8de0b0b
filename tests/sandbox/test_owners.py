"""Hands change their owners: both logs say so, the old owner is refused at once, and nothing that ran is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import ChildLimits, HandSpec, SessionConfig
from services.kit.errors import ServiceError
from services.kit.ids import mint
from tests.sandbox.owning import OTHER_KEY, Brain, Ground, ground
from tests.session.running import refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

OK, INTERRUPTED = tool_pb2.TOOL_OUTCOME_OK, tool_pb2.TOOL_OUTCOME_INTERRUPTED
POINTS = ("leaving", "fenced", "decided", "left", "owned", "arrived")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Both services, for all tests of this file."""
    async with ground(tmp_path_factory.mktemp("owners")) as made:
        yield made


def was(error: ServiceError, reason: str, **metadata: str) -> None:
    """Checks a refusal."""
    assert (error.reason, {name: error.metadata.get(name) for name in metadata}) == (reason, metadata), error


async def until(it: Ground, sandbox_id: str, execution_id: str) -> None:
    """Waits until the hand has an execution."""
    while execution_id not in await it.executions(sandbox_id):
        await asyncio.sleep(0.01)


async def test_a_hand_goes_from_one_session_to_another(it: Ground) -> None:
    """Both logs say so, once, with generation and session; files go with it; the old owner's calls are refused."""
    b = await it.brain()
    a = await it.brain(to=[b.id])
    sandbox_id = await it.made(a, "box")
    assert (await it.bash(sandbox_id, "echo kept > note; export MINE=a", "one", a)).result.outcome == OK
    moved = await it.transfer(sandbox_id, b.id, by=a, expected_generation=1, to_hand="tool")
    assert (moved.session_id, moved.hand, moved.generation, moved.leaving) == (b.id, "tool", 2, False)
    was(await refusal(it.bash(sandbox_id, "touch late", "late", a)), "HAND_TRANSFERRED", session_id=b.id)
    result = (await it.bash(sandbox_id, "cat note; echo ${MINE:-none}; ls late", "two", b)).result
    assert result.output.split("\n")[:2] == ["kept", "none"] and "No such file" in result.output
    (gone,), (come,) = await it.told(a), await it.told(b)
    said, heard = gone.hand_transferred, come.hand_attached
    assert (gone.emitter, gone.event_id) == ("sandbox", f"transfer-{sandbox_id}-1")
    assert (said.hand, said.sandbox_id, said.to_session_id, said.generation) == ("box", sandbox_id, b.id, 1)
    assert (come.emitter, come.event_id) == ("sandbox", f"attach-{sandbox_id}-2")
    assert (heard.hand, heard.sandbox_id, heard.generation, heard.from_session_id) == ("tool", sandbox_id, 2, a.id)
    assert {id: run.generation for id, run in (await it.executions(sandbox_id)).items()} == {"one": 1, "two": 2}


async def test_what_runs_settles_first_and_has_its_result(it: Ground) -> None:
    """What ends in time ends by itself, what does not is cancelled; each caller hears of it, and a later one too."""
    a, b = await it.brain(), await it.brain()
    sandbox_id = await it.made(a)
    short = asyncio.ensure_future(it.bash(sandbox_id, "until test -e go; do sleep 0.01; done; echo done", "short", a))
    await until(it, sandbox_id, "short")
    moving = asyncio.ensure_future(it.transfer(sandbox_id, b.id, to_hand="x"))
    while not (await it.sandbox(sandbox_id)).leaving:
        await asyncio.sleep(0.01)
    was(await refusal(it.bash(sandbox_id, "true", "late", a)), "HAND_TRANSFERRED", session_id=b.id)
    assert await it.told(a) == [] == await it.told(b)
    put = pb.PutResourcesRequest(sandbox_id=sandbox_id, epoch=a.epoch)
    was(await refusal(it.harness.PutResources(put, metadata=a.shown)), "HAND_TRANSFERRED", session_id=b.id)
    for folder in (Path(it.process.environment["HANDMESH_STATE_DIR"]) / "process").rglob("workspace"):
        if sandbox_id in str(folder):
            (folder / "go").touch()
    assert (await moving).session_id == b.id
    assert (await short).result.output == "done"
    again = (await it.bash(sandbox_id, "until test -e go; do sleep 0.01; done; echo done", "short", a)).result
    assert (again.output, again.outcome) == ("done", OK)

    long = asyncio.ensure_future(it.bash(sandbox_id, "echo begun; sleep 60", "long", b))
    await until(it, sandbox_id, "long")
    assert (await it.transfer(sandbox_id, a.id, seconds=0)).generation == 3
    assert (await long).result.outcome == INTERRUPTED
    was(await refusal(it.bash(sandbox_id, "true", "two", b)), "HAND_TRANSFERRED", session_id=a.id)
    was(await refusal(it.bash(sandbox_id, "true", "short", b)), "HAND_TRANSFERRED", session_id=a.id)


async def test_of_two_transfers_one_comes_first(it: Ground) -> None:
    """The generation tells: the other is a conflict. The same one again is the same one."""
    a, b, c = await it.brain(), await it.brain(), await it.brain()
    sandbox_id = await it.made(a)
    given = {"expected_generation": 1, "to_hand": "x"}
    asked = [it.transfer(sandbox_id, to, **given) for to in (b.id, c.id, b.id)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    done = [each for each in answers if isinstance(each, pb.Sandbox)]
    assert len(done) in (1, 2) and len({each.session_id for each in done}) == 1
    winner = next(each for each in (b, c) if each.id == done[0].session_id)
    assert (await it.transfer(sandbox_id, winner.id, **given)).generation == 2
    assert [event.hand_transferred.to_session_id for event in await it.told(a)] == [winner.id]
    other = c if winner is b else b
    was(await refusal(it.transfer(sandbox_id, other.id, **given)), "GENERATION_CONFLICT", generation="2")
    assert await it.told(other) == []


async def test_what_cannot_be_is_refused_before_anything_happens(it: Ground) -> None:
    """A name that is taken, a session that is over, another tenant's, none: the hand stays as it was, and works."""
    a, b = await it.brain(), await it.brain(box=HandSpec(environment="process"))
    stranger = await it.brain(OTHER_KEY)
    over = await it.brain()
    await it.session.client.EndSession(session_pb2.EndSessionRequest(session_id=over.id))
    sandbox_id, second = await it.made(a, "box"), await it.made(a, "second")
    was(await refusal(it.transfer(sandbox_id, b.id)), "HAND_NAME_TAKEN", hand="box")
    await it.transfer(second, b.id)
    was(await refusal(it.transfer(sandbox_id, b.id, to_hand="second")), "HAND_NAME_TAKEN", hand="second")
    was(await refusal(it.transfer(sandbox_id, b.id, to_hand="mesh")), "ARGUMENT_INVALID", field="hand")
    was(await refusal(it.transfer(sandbox_id, over.id)), "SESSION_ENDED")
    was(await refusal(it.transfer(sandbox_id, stranger.id)), "SESSION_NOT_FOUND")
    was(await refusal(it.transfer(sandbox_id, mint("sess"))), "SESSION_NOT_FOUND")
    was(await refusal(it.transfer(sandbox_id, b.id, by=b, to_hand="y")), "GRANT_INVALID")
    was(await refusal(it.transfer(sandbox_id, b.id, by=a, to_hand="y")), "HAND_OVER_DENIED", session_id=b.id)
    was(await refusal(it.transfer(sandbox_id, a.id, to_hand="y")), "ARGUMENT_INVALID", field="to_session_id")
    theirs = pb.TransferRequest(sandbox_id=sandbox_id, to_session_id=stranger.id)
    was(await refusal(it.other.Transfer(theirs)), "SANDBOX_GONE")
    found = await it.sandbox(sandbox_id)
    assert (found.session_id, found.generation, found.leaving) == (a.id, 1, False)
    assert (await it.bash(sandbox_id, "true", "one", a)).result.outcome == OK
    assert [event.hand_transferred.sandbox_id for event in await it.told(a)] == [second]


async def test_a_hand_stays_when_its_new_session_ends_meanwhile(it: Ground) -> None:
    """It is undone as one: no log says anything, and the old owner goes on."""
    a, b = await it.brain(), await it.brain()
    sandbox_id = await it.made(a, "box")
    run = asyncio.ensure_future(it.bash(sandbox_id, "sleep 60", "run", a))
    await until(it, sandbox_id, "run")
    moving = asyncio.ensure_future(it.transfer(sandbox_id, b.id))
    while not (await it.sandbox(sandbox_id)).leaving:
        await asyncio.sleep(0.01)
    await it.session.client.EndSession(session_pb2.EndSessionRequest(session_id=b.id))
    cancel = pb.CancelExecutionRequest(sandbox_id=sandbox_id, execution_id="run", epoch=a.epoch)
    await it.harness.CancelExecution(cancel, metadata=a.shown)
    was(await refusal(moving), "SESSION_ENDED")
    assert (await run).result.outcome == INTERRUPTED
    found = await it.sandbox(sandbox_id)
    assert (found.session_id, found.hand, found.leaving) == (a.id, "box", False)
    assert (await it.bash(sandbox_id, "true", "next", a)).result.outcome == OK
    assert await it.told(a) == []


async def test_a_standing_hand_outlives_the_sessions_that_have_it(it: Ground) -> None:
    """Made by its name, once; attached by the session whose configuration names it; when that ends it stands again."""
    name = "bench"
    sandbox_id = await it.stands(name)
    assert await it.stands(name) == sandbox_id
    a = await it.brain(tool=HandSpec(standing_hand=name))
    b = await it.brain(
        tool=HandSpec(standing_hand=sandbox_id),
        other=HandSpec(standing_hand="nothing"),
        eye=HandSpec(standing_hand=name, read_only=True),
    )
    was(await refusal(it.bash(sandbox_id, "true", "x", a)), "GRANT_INVALID")
    got = await it.attached(a, "tool", name)
    assert (got.sandbox_id, got.session_id, got.hand, got.standing_hand) == (sandbox_id, a.id, "tool", name)
    assert (await it.attached(a, "tool", name)).generation == got.generation == 2
    (come,) = await it.told(a)
    assert (come.hand_attached.hand, come.hand_attached.description) == ("tool", "what bench is for")
    assert (await it.bash(sandbox_id, "echo a > note", "x", a)).result.outcome == OK
    was(await refusal(it.attached(b, "tool", sandbox_id)), "HAND_TAKEN", session_id=a.id)
    was(await refusal(it.attached(b, "other", "nothing")), "HAND_UNKNOWN", hand="nothing")
    was(await refusal(it.attached(b, "other", name)), "ARGUMENT_INVALID", field="standing_hand")
    was(await refusal(it.attached(b, "eye", name)), "HAND_READ_ONLY", name="eye")
    await it.session.client.EndSession(session_pb2.EndSessionRequest(session_id=a.id))
    while (await it.sandbox(sandbox_id)).session_id or (await it.sandbox(sandbox_id)).leaving:
        await asyncio.sleep(0.05)
    assert (await it.attached(b, "tool", sandbox_id)).session_id == b.id
    assert (await it.bash(sandbox_id, "cat note", "y", b)).result.output == "a"
    stood = await it.transfer(sandbox_id, by=b)
    assert (stood.session_id, stood.standing_hand) == ("", name)
    assert [event.WhichOneof("kind") for event in await it.told(b)] == ["hand_attached", "hand_detached"]


async def test_a_sessions_hand_can_be_made_to_stand(it: Ground) -> None:
    """Then it has a name of its tenant's, which must be free, and does not end with the session."""
    a = await it.brain()
    taken, sandbox_id = await it.stands("shelf"), await it.made(a, "box")
    was(await refusal(it.transfer(sandbox_id, by=a, to_hand="shelf")), "HAND_NAME_TAKEN", hand="shelf")
    stood = await it.transfer(sandbox_id, by=a, to_hand="shelf-two")
    assert (stood.session_id, stood.hand, stood.standing_hand) == ("", "shelf-two", "shelf-two")
    assert await it.stands("shelf-two") == sandbox_id != taken
    await it.session.client.EndSession(session_pb2.EndSessionRequest(session_id=a.id))
    run = pb.ExecuteRequest(sandbox_id=sandbox_id, name="bash", input='{"command": "echo here"}')
    assert (await it.client.Execute(run)).result.output == "here"
    was(await refusal(it.other.Execute(run)), "SANDBOX_GONE")


async def test_a_shared_hand_can_only_be_read(it: Ground) -> None:
    """By the tools that are read-only, until it is taken back, or its owner changes; the reader's log says both."""
    b, c = await it.brain(), await it.brain()
    a = await it.brain(to=[b.id])
    sandbox_id = await it.made(a, "box")
    await it.bash(sandbox_id, "echo hello > note", "one", a)
    share = pb.ShareHandRequest(sandbox_id=sandbox_id, session_id=b.id, hand="eye", epoch=a.epoch)
    for _ in range(2):
        seen = (await it.harness.ShareHand(share, metadata=a.shown)).sandbox
    assert [(each.session_id, each.hand) for each in seen.readers] == [(b.id, "eye")]
    assert (await it.bash(sandbox_id, "note", "two", b, name="read")).result.output.strip() == "hello"
    was(await refusal(it.bash(sandbox_id, "true", "three", b)), "HAND_READ_ONLY", name="bash")
    was(await refusal(it.bash(sandbox_id, "note", "four", c, name="read")), "GRANT_INVALID")
    for call in (
        it.harness.PutResources(pb.PutResourcesRequest(sandbox_id=sandbox_id, epoch=b.epoch), metadata=b.shown),
        it.transfer(sandbox_id, c.id, by=b),
        it.harness.CancelExecution(
            pb.CancelExecutionRequest(sandbox_id=sandbox_id, execution_id="one", epoch=b.epoch), metadata=b.shown
        ),
    ):
        was(await refusal(call), "HAND_READ_ONLY")
    share.revoke = True
    for _ in range(2):
        await it.harness.ShareHand(share, metadata=a.shown)
    was(await refusal(it.bash(sandbox_id, "note", "five", b, name="read")), "GRANT_INVALID")
    share.revoke = False
    await it.harness.ShareHand(share, metadata=a.shown)
    await it.transfer(sandbox_id, c.id)
    assert (await it.sandbox(sandbox_id)).readers == []
    come, gone, again, last = await it.told(b)
    assert (come.hand_attached.read_only, come.hand_attached.from_session_id) == (True, a.id)
    assert (gone.hand_detached.hand, again.hand_attached.hand, last.hand_detached.hand) == ("eye", "eye", "eye")


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_at_any_step_leaves_one_transfer(it: Ground, point: str) -> None:
    """SIGKILL of the sandbox service: the next one finishes it, each log says it once, what ran has its result."""
    b = await it.brain()
    a = await it.brain(to=[b.id])
    sandbox_id = await it.made(a, "box")
    it.arm(f"sandbox.hand_{point}")
    error = await refusal(it.transfer(sandbox_id, b.id, by=a, expected_generation=1))
    assert error.code == "UNAVAILABLE"
    await it.struck()
    await settled(it, sandbox_id, b)
    assert (await it.transfer(sandbox_id, b.id, by=a, expected_generation=1)).generation == 2
    was(await refusal(it.bash(sandbox_id, "true", "late", a)), "HAND_TRANSFERRED", session_id=b.id)
    assert (await it.bash(sandbox_id, "true", "next", b)).result.outcome == OK
    assert [event.event_id for event in await it.told(a)] == [f"transfer-{sandbox_id}-1"]
    assert [event.event_id for event in await it.told(b)] == [f"attach-{sandbox_id}-2"]


async def test_a_harness_gives_hands_to_its_own_kin_only(it: Ground) -> None:
    """To the session's parent and to those that it has started; to no other of the tenant, be it to be read."""
    parent = await it.brain(child=HandSpec(environment="process"))
    a = await it.brain()
    config = SessionConfig(no_hands=True, parent_session_id=parent.id)
    await it.session.client.UpdateSession(
        session_pb2.UpdateSessionRequest(session_id=parent.id, config=SessionConfig(child_limits=ChildLimits()))
    )
    start = session_pb2.CreateSessionRequest(request_id="c", config=config)
    started = await it.session.harness.CreateSession(start, metadata=parent.shown)
    child = Brain(started.session.session_id, *await it.session.wake(started.session.session_id))
    sandbox_id = await it.made(parent, "child")
    share = pb.ShareHandRequest(sandbox_id=sandbox_id, session_id=a.id, epoch=parent.epoch)
    was(await refusal(it.harness.ShareHand(share, metadata=parent.shown)), "HAND_OVER_DENIED", session_id=a.id)
    was(await refusal(it.transfer(sandbox_id, a.id, by=parent)), "HAND_OVER_DENIED", session_id=a.id)
    nowhere = mint("sess")
    was(await refusal(it.transfer(sandbox_id, nowhere, by=parent)), "HAND_OVER_DENIED", session_id=nowhere)
    assert (await it.transfer(sandbox_id, child.id, by=parent, to_hand="tool")).session_id == child.id
    assert (await it.transfer(sandbox_id, parent.id, by=child, to_hand="back")).previous_session_id == child.id


async def settled(it: Ground, sandbox_id: str, owner: Brain) -> None:
    """Waits until a hand has arrived, by what the service does by itself."""
    while True:
        found = await it.sandbox(sandbox_id)
        if (found.session_id, found.leaving) == (owner.id, False) and await it.told(owner):
            return
        await asyncio.sleep(0.02)
