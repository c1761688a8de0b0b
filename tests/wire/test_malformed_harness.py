"""A harness that does wrong is refused, and harms nobody else: other sessions of the mesh go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.tool_pb2 import TOOL_OUTCOME_OK, ToolResult
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from tests.wire.rogue import GRANT, KIND, Rogue, refusal, rogue

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.asyncio(loop_scope="module"),
]

PATIENCE = 20.0
TOOL = "run: echo run >> runs; cat runs"  # see script.yaml
MANY = 40  # sessions that are offered to one who does not work
REPLY = ev.ModelReplied(content_json='[{"type": "text", "text": "x"}]', stop_reason="end_turn", read_position=2)


async def neighbour(client: Client) -> None:
    """Another session of the mesh: its message is answered, and its tool runs once."""
    session = await client.create_session(content=TOOL)
    async with asyncio.timeout(PATIENCE):
        async for event in session.watch():
            if event.HasField("tool_finished"):
                assert event.tool_finished.result.output == "run"
            if event.HasField("turn_ended"):
                break
    await session.end()


@pytest_asyncio.fixture(loop_scope="module")
async def bad(mesh: Mesh, client: Client) -> AsyncIterator[Rogue]:
    """Such a harness. A neighbour is at work beside it."""
    async with rogue(mesh, client) as one:
        beside = asyncio.create_task(neighbour(client))
        yield one
        await beside


@pytest.mark.parametrize("ahead", [-1, 1, 1_000_000])
async def test_a_wrong_epoch(bad: Rogue, client: Client, ahead: int) -> None:
    """Under an epoch that is not the session's, older or made up, nothing is appended."""
    mine = await bad.take_up()
    error = await refusal(bad.say(mine.session_id, mine.epoch + ahead, model_replied=REPLY))
    assert (error.code, error.reason) == ("ABORTED", "EPOCH_STALE")
    assert (await client.session(mine.session_id).get()).last_position == mine.epoch


async def test_a_session_that_it_has_not_taken_up(bad: Rogue, client: Client) -> None:
    """Without a HarnessWoke of its own a harness appends nothing, and with one only where the log ends."""
    session = await client.create_session(SessionConfig(harness=KIND), "hello")
    error = await refusal(bad.say(session.id, 0, model_replied=REPLY))
    assert (error.code, error.reason) == ("ABORTED", "EPOCH_STALE")
    woke = ev.Event(event_id="woke", harness_woke=ev.HarnessWoke(harness=KIND, instance="rogue:1"))
    late = pb.EmitEventRequest(session_id=session.id, event=woke, expected_position=1)
    assert (await refusal(bad.session.EmitEvent(late))).reason == "POSITION_CONFLICT"
    assert (await session.get()).last_position == 2


@pytest.mark.parametrize("grant", ["", "made up", "another session's"])
async def test_a_wrong_grant(bad: Rogue, client: Client, grant: str) -> None:
    """With no grant, or one that is not the session's, a harness makes no sandbox for it and runs nothing."""
    mine, theirs = await bad.take_up(), await bad.take_up()
    shown = ((GRANT, theirs.grant if grant == "another session's" else grant),)
    made = sandbox_pb2.ProvisionRequest(
        session_id=mine.session_id, epoch=mine.epoch, request_id=f"{mine.session_id}/x/1"
    )
    assert (await refusal(bad.sandbox.Provision(made, metadata=shown))).reason == "GRANT_INVALID"
    assert await client.sandboxes(mine.session_id) == []


async def test_a_sandbox_of_another_session(bad: Rogue, client: Client) -> None:
    """With the grant of its own session a harness does nothing in a sandbox of another one."""
    owner = await client.create_session(content=TOOL)
    async with asyncio.timeout(PATIENCE):
        async for event in owner.watch():
            if event.HasField("turn_ended"):
                break
    (sandbox,) = await client.sandboxes(owner.id)
    before = len(await client.executions(sandbox.sandbox_id))
    mine = await bad.take_up()
    asked = sandbox_pb2.ExecuteRequest(
        sandbox_id=sandbox.sandbox_id, name="bash", input='{"command": "id"}', execution_id="x", epoch=mine.epoch
    )
    assert (await refusal(bad.sandbox.Execute(asked, metadata=((GRANT, mine.grant),)))).reason == "GRANT_INVALID"
    assert len(await client.executions(sandbox.sandbox_id)) == before


async def test_a_second_result(bad: Rogue, client: Client) -> None:
    """A call has one result: the first stays, whoever says another one; and what is no call has none."""
    mine = await bad.take_up()
    called = '[{"type": "tool_use", "id": "one", "name": "bash", "input": {}}]'
    reply = ev.ModelReplied(content_json=called, stop_reason="tool_use", read_position=mine.epoch)
    await bad.say(mine.session_id, mine.epoch, model_replied=reply)
    results = [
        ev.ToolFinished(tool_use_id=call, result=ToolResult(output=text, outcome=TOOL_OUTCOME_OK))
        for call, text in (("one", "first"), ("one", "second"), ("two", "third"))
    ]
    await bad.say(mine.session_id, mine.epoch, tool_finished=results[0])
    error = await refusal(bad.say(mine.session_id, mine.epoch, tool_finished=results[1]))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "TOOL_CALL_SETTLED")
    error = await refusal(bad.say(mine.session_id, mine.epoch, tool_finished=results[2]))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "TOOL_CALL_UNKNOWN")
    said = [event.tool_finished.result.output async for event in client.session(mine.session_id).events(5)]
    assert said == ["first"]


@pytest.mark.parametrize(
    ("size", "told"),
    [(1_100_000, ("INVALID_ARGUMENT", "EVENT_TOO_LARGE")), (9_000_000, ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"))],
)
async def test_an_oversized_event(bad: Rogue, client: Client, size: int, told: tuple[str, str]) -> None:
    """What is over the limit of an event, or of a message, is refused; the harness may go on over the same channel."""
    mine = await bad.take_up()
    big = ev.ModelReplied(content_json=f'[{{"type": "text", "text": "{"x" * size}"}}]', read_position=mine.epoch)
    request = pb.EmitEventRequest(
        session_id=mine.session_id, event=ev.Event(event_id="big", model_replied=big), epoch=mine.epoch
    )
    error = await refusal(bad.session.EmitEvent(request))
    assert (error.code, error.reason) == told
    assert await bad.say(mine.session_id, mine.epoch, model_replied=REPLY) == mine.epoch + 1


async def test_a_slow_reader(bad: Rogue, client: Client) -> None:
    """Who opens watches and never reads them holds up neither the session that is watched nor who reads beside."""
    mine = await bad.take_up()
    deaf = [
        bad.session.WatchEvents(pb.WatchEventsRequest(session_id=mine.session_id, start_position=1)) for _ in range(20)
    ]
    text = f'[{{"type": "text", "text": "{"x" * 900_000}"}}]'
    for number in range(10):
        reply = ev.ModelReplied(content_json=text, read_position=mine.epoch)
        assert await bad.say(mine.session_id, mine.epoch, model_replied=reply) == mine.epoch + 1 + number
    async with asyncio.timeout(PATIENCE):
        async for event in client.session(mine.session_id).watch():
            if event.position == mine.epoch + 10:
                break
    for call in deaf:
        call.cancel()


async def test_a_claim_that_nobody_reads(bad: Rogue, client: Client) -> None:
    """Who opens a stream of offers and never reads it has sessions of its type only for as long as it is open."""
    kind = "deaf"
    deaf = bad.session.ClaimWork(pb.ClaimWorkRequest(capacity=MANY, harness_types=[kind], instance="deaf:1"))
    await deaf.wait_for_connection()
    made = {(await client.create_session(SessionConfig(harness=kind), "hello")).id for _ in range(MANY)}
    await neighbour(client)
    deaf.cancel()
    assert await _offered(bad, kind, len(made)) == made


async def test_a_claim_without_work(bad: Rogue, client: Client) -> None:
    """Who takes what it is offered and does nothing has it for as long as the stream is open, and no longer."""
    kind = "idle"
    idle = bad.session.ClaimWork(pb.ClaimWorkRequest(capacity=MANY, harness_types=[kind], instance="idle:1"))
    made = {(await client.create_session(SessionConfig(harness=kind), "hello")).id for _ in range(3)}
    seen: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        while seen != made:
            offer = await idle.read()
            assert offer is not grpc.aio.EOF
            seen |= {offer.session_id} - {""}
    await neighbour(client)
    idle.cancel()
    assert await _offered(bad, kind, len(made)) == made


async def test_work_of_another_type(bad: Rogue, client: Client) -> None:
    """Who claims as a type, and does another type's work, is given nothing of it."""
    stream = bad.session.ClaimWork(pb.ClaimWorkRequest(capacity=5, harness_types=[KIND + "-x"], instance="rogue:1"))
    await stream.wait_for_connection()
    offered = asyncio.create_task(_first_offer(stream))
    await neighbour(client)
    assert not offered.done()
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await offered


async def _first_offer(stream: grpc.aio.UnaryStreamCall) -> str:
    while True:
        offer = await stream.read()
        if offer.session_id:
            return str(offer.session_id)


async def _offered(bad: Rogue, kind: str, count: int) -> set[str]:
    """Returns the sessions that a good harness of the type is offered."""
    good = bad.session.ClaimWork(pb.ClaimWorkRequest(capacity=count, harness_types=[kind], instance="good:1"))
    found: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            found |= {(await good.read()).session_id} - {""}
    good.cancel()
    return found
