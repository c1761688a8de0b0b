"""Forks: a session of its own that begins as another one did."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import AgentRef, SessionConfig
from services.kit import ids
from services.session import codec
from services.session.emitters import SESSION
from services.session.framing import Packer, frames
from services.session.lifecycle_fork import cut
from services.session.log import BATCH_SPAN, StoredBatch
from tests.session.running import Run, Service, finished, message, note, refusal, replied, turn_ended


async def fork(service: Service, session: str, **fields: Any) -> pb.Session:
    """Forks a session."""
    answer = await service.client.ForkSession(pb.ForkSessionRequest(session_id=session, **fields))
    found: pb.Session = answer.session
    return found


async def worked(service: Service) -> str:
    """Makes a session with a turn, a tool call and a hand: nine events."""
    session = await service.create(message("a", "m1"))
    epoch, _ = await service.wake(session)
    provisioned = ev.SandboxProvisioned(hand="main", sandbox_id=ids.mint("sbx"), generation=1)
    for event in (
        replied("c1", read=2),
        ev.Event(sandbox_provisioned=provisioned),
        ev.Event(tool_started=ev.ToolStarted(tool_use_id="c1", name="bash", hand="main")),
        finished("c1"),
        turn_ended(2),
    ):
        await service.emit(session, event, epoch)
    await service.emit(session, note("n1"))
    return session


async def test_a_fork_begins_as_the_original(service: Service) -> None:
    """The same events at the same positions, then what makes it another session; the original is as it was."""
    session = await worked(service)
    before = await service.log(session)
    made = await fork(service, session, position=6)
    log = await service.log(made.session_id)
    assert log[:6] == before[:6]
    kinds = [event.WhichOneof("kind") for event in log[6:]]
    assert (kinds, made.last_position) == (["session_forked", "hand_detached"], 8)
    assert log[6].session_forked == ev.SessionForked(from_session_id=session, position=6)
    assert log[7].hand_detached.hand == "main" and {event.emitter for event in log[6:]} == {SESSION}
    assert await service.log(session) == before


async def test_a_fork_is_at_the_end_unless_told(service: Service) -> None:
    """Without a position it has everything; of an ended or archived session all but that."""
    session = await service.create(note("n1"))
    assert (await service.log((await fork(service, session)).session_id))[2].session_forked.position == 2
    await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session))
    archived = await fork(service, session)
    assert not archived.archived
    assert (await service.emit(archived.session_id, message())).position == 5
    await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session, restore=True))
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    ended = await fork(service, session)
    assert (ended.status, ended.last_position) == (pb.SESSION_STATUS_IDLE, 5)
    error = await refusal(fork(service, session, position=5))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "SESSION_ENDED")


async def test_a_fork_is_a_session_of_its_own(service: Service) -> None:
    """It is listed, offered, woken and written to; no epoch of the original's holds in it, nor the other way round."""
    label = {"test": ids.mint("x")}
    session = await service.create(message(), config=SessionConfig(labels=label))
    old, _ = await service.wake(session)
    made = (await fork(service, session)).session_id
    assert (await refusal(service.emit(made, turn_ended(2), old))).reason == "EPOCH_STALE"
    answer = await service.client.ListSessions(pb.ListSessionsRequest(labels=label))
    assert [each.session_id for each in answer.sessions] == [made, session]
    async for claim in service.harness.ClaimWork(pb.ClaimWorkRequest(capacity=1_000)):
        if claim.session_id == made:
            break
    epoch, _ = await service.wake(made)
    await service.emit(made, turn_ended(2), epoch)
    assert (await service.status(made), await service.status(session)) == ("IDLE", "RUNNING")


async def test_a_fork_can_have_another_configuration(service: Service) -> None:
    """It holds from the first turn on; tenant and agent stay; a wrong one makes nothing."""
    session = await service.create(config=SessionConfig(agent=AgentRef(id="a"), title="old"))
    made = await fork(service, session, config=SessionConfig(title="new", tenant="other", labels={"k": "v"}))
    wanted = SessionConfig(title="new", tenant="default", agent=AgentRef(id="a"), labels={"k": "v"})
    assert made.config == wanted
    assert (await service.log(made.session_id))[-1].config_changed.config == wanted
    for config in (SessionConfig(agent=AgentRef(id="b")), SessionConfig(harness="?")):
        assert (await refusal(fork(service, session, config=config))).reason == "CONFIG_INVALID"


async def test_a_fork_of_a_fork(service: Service) -> None:
    """Each has what came before it; all chains are whole."""
    session = await service.create(note("n1"))
    made = session
    for number in range(3):
        made = (await fork(service, made)).session_id
        await service.emit(made, note(f"fork{number}"))
    log = await service.log(made)
    assert [event.session_forked.position for event in log if event.HasField("session_forked")] == [2, 4, 6]
    assert log[:2] == await service.log(session)


async def test_a_request_makes_one_fork(service: Service) -> None:
    """Said again it answers the same, also when the original has gone on; for something else it is refused."""
    session = await service.create(note("n1"))
    request = ids.mint("req")
    made = await fork(service, session, request_id=request)
    await service.emit(session, note("n2"))
    assert await fork(service, session, request_id=request) == made
    error = await refusal(fork(service, session, request_id=request, position=1))
    assert (error.code, error.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


async def test_what_cannot_be_forked(service: Service) -> None:
    """A position that is not there, a session that is not there, and another tenant's."""
    session = await service.create()
    for position, wanted in ((2, "POSITION_OUT_OF_RANGE"), (-1, "ARGUMENT_INVALID")):
        assert (await refusal(fork(service, session, position=position))).reason == wanted
    request = pb.ForkSessionRequest(session_id=session)
    assert (await refusal(service.other.ForkSession(request))).reason == "SESSION_NOT_FOUND"
    assert (await refusal(fork(service, ids.mint("sess")))).reason == "SESSION_NOT_FOUND"


async def test_a_fork_while_the_original_is_written(service: Service) -> None:
    """Whatever is appended meanwhile, the fork has exactly the events up to its position."""
    session = await service.create()

    async def write() -> None:
        for number in range(100):
            await service.emit(session, note(f"n{number}"))

    writing = asyncio.create_task(write())
    made = []
    while not writing.done():
        made.append(await fork(service, session))
    await writing
    original = await service.log(session)
    for each in made:
        log = await service.log(each.session_id)
        assert log[:-1] == original[: len(log) - 1]
        assert log[-1].session_forked.position == len(log) - 1


@pytest.mark.nats
async def test_a_broken_fork_is_gone_on_with(run: Run) -> None:
    """A copy that broke off anywhere is completed by the same request at another replica; until then no list has it."""
    async with run() as service:
        session = await service.create()
        for number in range(40):
            await service.emit(session, note(f"n{number}"))
        for there in (1, 16, 20, 41):
            request = pb.ForkSessionRequest(session_id=session, request_id=ids.mint("req"))
            asked = request.SerializeToString(deterministic=True)
            forks = service.parts.forks
            claimed = await forks._requests.claim("default", request.request_id, _digest(asked), "fork")
            await forks._index.announce(claimed.session_id, "default", 1)
            await forks._copy(session, claimed.session_id, there, 0, "")
            answer = await service.client.ListSessions(pb.ListSessionsRequest())
            assert claimed.session_id not in [each.session_id for each in answer.sessions]
            async with run() as other:
                made = (await other.client.ForkSession(request)).session
                assert made.session_id == claimed.session_id
                log = await other.log(made.session_id)
                assert log[:-1] == await other.log(session) and log[-1].HasField("session_forked")


@pytest.mark.nats
async def test_the_same_request_at_two_replicas(run: Run) -> None:
    """Both answer with one fork, which is whole."""
    async with run() as one, run() as two:
        session = await one.create()
        for number in range(60):
            await one.emit(session, note(f"n{number}"))
        for _ in range(5):
            request = ids.mint("req")
            made = await asyncio.gather(*(fork(each, session, request_id=request) for each in (one, two)))
            assert made[0] == made[1]
            log = await one.log(made[0].session_id)
            assert log[:-1] == await two.log(session)


def _digest(asked: bytes) -> str:
    return hashlib.sha256(asked).hexdigest()


_sizes = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=BATCH_SPAN), min_size=1, max_size=8)


@given(sizes=_sizes, data=st.data())
def test_repacking_changes_no_byte(sizes: list[list[int]], data: st.DataObject) -> None:
    """Packed batches hold the same bytes at the same positions, in a chain, however the events lay before."""
    stored: list[StoredBatch] = []
    for part in sizes:
        first = stored[-1].last_position + 1 if stored else 1
        events = [note(f"e{first + at}", size) for at, size in enumerate(part)]
        stored.append(StoredBatch(first, len(part), "", codec.seal(events, ["client"] * len(part), first, 1, 0)))
    end = data.draw(st.integers(1, stored[-1].last_position))
    packer = Packer()
    made: list[StoredBatch | None] = []
    for batch in stored:
        if batch.first_position <= end:
            made += [packer.add(frame) for frame in frames(cut(batch, end))]
    batches = [batch for batch in (*made, packer.rest()) if batch is not None]
    wanted = [event for batch in stored for event in codec.unseal(batch.data) if event.position <= end]
    assert list(codec.unseal(b"".join(batch.data for batch in batches))) == wanted
    assert all(batch.count == BATCH_SPAN for batch in batches[:-1])
    assert [batch.prev_digest for batch in batches] == ["", *(batch.digest for batch in batches[:-1])]


@given(st.binary(max_size=60), st.integers(1, 5))
def test_bytes_that_are_no_batch_are_refused(data: bytes, count: int) -> None:
    """Frames are whole and as many as the batch says, or there is an error: never a part of an event."""
    try:
        found = list(frames(StoredBatch(1, count, "", data)))
    except ValueError:
        return
    assert len(found) == count and b"".join(frame.data for frame in found) == data
