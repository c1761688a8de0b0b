"""Appending over gRPC: idempotent, fenced, one result per call, and what is refused."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from tests.session.running import WOKE, Service, finished, message, note, refusal, replied, turn_ended


async def test_an_event_comes_back_as_it_went_in(service: Service) -> None:
    """What the emitter said is kept; what the log says of it is set by the log."""
    session = await service.create()
    sent = message("höllo ☃", "m1")
    sent.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    claimed = ev.Event()
    claimed.CopyFrom(sent)
    claimed.position, claimed.emitter, claimed.epoch = 99, "session", 7
    answer = await service.emit(session, claimed)
    stored = (await service.events(session))[1]
    assert (stored.position, stored.emitter, stored.epoch, stored.emit_time) == (2, "client", 0, answer.emit_time)
    assert (stored.event_id, stored.message_received, stored.traceparent) == (
        "m1",
        sent.message_received,
        sent.traceparent,
    )


async def test_an_event_without_an_id_gets_one(service: Service) -> None:
    """The server mints a name, and two such events are two events."""
    session = await service.create()
    await service.emit(session, message())
    await service.emit(session, message())
    log = await service.log(session)
    assert len({event.event_id for event in log}) == 3
    assert all(event.event_id for event in log)


async def test_said_again_it_is_not_appended_again(service: Service) -> None:
    """A lost answer: the same event_id gives the first position and time, whatever else has come since."""
    session = await service.create()
    first = await service.emit(session, message("a", "m1"), expected_position=1)
    await service.emit(session, message("b", "m2"))
    again = await service.emit(session, message("a", "m1"), expected_position=1)
    assert (again.position, again.emit_time, again.duplicate) == (first.position, first.emit_time, True)
    assert [event.event_id for event in await service.log(session)] == ["session_started", "m1", "m2"]


async def test_a_name_stands_for_one_event(service: Service) -> None:
    """A client cannot take a name and have a harness's event mistaken for it, nor the other way."""
    session = await service.create(message())
    await service.emit(session, note("toolu_1"))
    epoch, _ = await service.wake(session)
    await service.emit(session, replied("toolu_1", read=epoch), epoch)
    error = await refusal(service.emit(session, finished("toolu_1", "toolu_1"), epoch))
    assert (error.code, error.reason, error.metadata) == ("INVALID_ARGUMENT", "EVENT_INVALID", {"field": "event_id"})


async def test_expected_position_is_compared_and_told(service: Service) -> None:
    """A log that has moved on refuses and says where it is; nothing was appended."""
    session = await service.create()
    await service.emit(session, message(), expected_position=1)
    error = await refusal(service.emit(session, message(), expected_position=1))
    assert (error.code, error.reason, error.metadata) == ("ABORTED", "POSITION_CONFLICT", {"last_position": "2"})
    assert await service.head(session) == 2


async def test_an_old_epoch_writes_nothing(service: Service) -> None:
    """Once another harness woke, the first one is fenced and told the epoch."""
    session = await service.create(message())
    first, _ = await service.wake(session)
    await service.emit(session, ev.Event(error_raised=ev.ErrorRaised(reason="INTERNAL")), first)
    second, _ = await service.wake(session)
    error = await refusal(service.emit(session, turn_ended(2), first))
    assert (error.code, error.reason, error.metadata) == ("ABORTED", "EPOCH_STALE", {"epoch": str(second)})
    assert (await service.emit(session, turn_ended(2), second)).position == second + 1
    assert [event.epoch for event in await service.log(session)] == [0, 0, first, first, second, second]


async def test_two_that_wake_at_once_are_one_epoch(service: Service) -> None:
    """Of two harnesses that take a session up at the same position, one gets it."""
    session = await service.create(message())
    answers = await asyncio.gather(*(service.wake(session, 2, f"w{n}") for n in range(2)), return_exceptions=True)
    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    lost = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert [position for position, _ in won] == [3]
    assert [error.code() for error in lost] == [grpc.StatusCode.ABORTED]


async def test_waking_again_after_a_lost_answer(service: Service) -> None:
    """The same HarnessWoke gives the same epoch and a grant of it, until another harness woke."""
    session = await service.create(message())
    first, grant = await service.wake(session, 2, "w1")
    again, other = await service.wake(session, 2, "w1")
    assert again == first and other != grant
    await service.wake(session)
    request = pb.EmitEventRequest(
        session_id=session, event=ev.Event(event_id="w1", harness_woke=WOKE), expected_position=2
    )
    error = await refusal(service.harness.EmitEvent(request))
    assert (error.reason, error.metadata) == ("EPOCH_STALE", {"epoch": "4"})


DENIED = [
    ev.Event(harness_woke=WOKE),
    ev.Event(tool_finished=ev.ToolFinished(tool_use_id="t1", result={"output": "x"})),
    ev.Event(session_ended=ev.SessionEnded()),
    ev.Event(config_changed=ev.ConfigChanged()),
    ev.Event(custom=ev.Custom(type="not.ignorable")),
    turn_ended(1),
]


@pytest.mark.parametrize("event", DENIED, ids=lambda event: event.WhichOneof("kind"))
async def test_a_client_cannot_play_the_harness(service: Service, event: ev.Event) -> None:
    """Kinds that are not a client's are refused, alone, in a batch and with a new session."""
    session = await service.create()
    batch = pb.EmitEventsRequest(session_id=session, events=[message(), event])
    for call in (
        service.client.EmitEvent(pb.EmitEventRequest(session_id=session, event=event, epoch=1, expected_position=1)),
        service.client.EmitEvents(batch),
        service.client.CreateSession(pb.CreateSessionRequest(initial_events=[event])),
    ):
        error = await refusal(call)
        assert (error.code, error.reason) == ("PERMISSION_DENIED", "EMITTER_DENIED")
        assert error.metadata == {"kind": event.WhichOneof("kind")}
    assert await service.head(session) == 1


@pytest.mark.parametrize(
    "used",
    [
        ev.Event(credential_used=ev.CredentialUsed(server="mcp", result="ok")),
        ev.Event(tools_changed=ev.ToolsChanged(server="mcp", added=["mcp__a"])),
    ],
    ids=["credential", "tools"],
)
async def test_only_the_vault_proxy_says_what_it_sees(service: Service, used: ev.Event) -> None:
    """CredentialUsed and ToolsChanged are the vault proxy's, and the only things that are."""
    session = await service.create()
    request = pb.EmitEventRequest(session_id=session, event=used)
    assert (await refusal(service.harness.EmitEvent(request))).reason == "EMITTER_DENIED"
    await service.vault_proxy.EmitEvent(request)
    assert (await service.events(session))[1].emitter == "vault_proxy"
    said = pb.EmitEventRequest(session_id=session, event=message())
    assert (await refusal(service.vault_proxy.EmitEvent(said))).reason == "EMITTER_DENIED"


async def test_one_result_for_each_call(service: Service) -> None:
    """A second result is refused whoever brings it, and so is one for a call that nobody made."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    await service.emit(session, replied("t1", read=epoch), epoch)
    await service.emit(session, ev.Event(tool_started=ev.ToolStarted(tool_use_id="t1", name="bash")), epoch)
    await service.emit(session, finished("t1", "a"), epoch)
    error = await refusal(service.emit(session, finished("t1", "b"), epoch))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "TOOL_CALL_SETTLED")
    assert error.metadata == {"tool_use_id": "t1"}
    error = await refusal(service.emit(session, finished("t2"), epoch))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "TOOL_CALL_UNKNOWN")


async def test_a_batch_is_all_or_nothing(service: Service) -> None:
    """A batch has consecutive positions; if one event is refused none is there; said again, it is there once."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    batch = [replied("t1", read=epoch), finished("t1"), turn_ended(epoch + 2)]
    for number, event in enumerate(batch):
        event.event_id = f"b{number}"
    request = pb.EmitEventsRequest(session_id=session, events=batch, epoch=epoch)
    bad = pb.EmitEventsRequest(session_id=session, events=[*batch, finished("t1", "again")], epoch=epoch)
    assert (await refusal(service.harness.EmitEvents(bad))).reason == "TOOL_CALL_SETTLED"
    assert await service.head(session) == epoch
    first = await service.harness.EmitEvents(request)
    again = await service.harness.EmitEvents(request)
    assert (first.first_position, first.duplicate) == (epoch + 1, False)
    assert (again.first_position, again.duplicate, again.emit_time) == (epoch + 1, True, first.emit_time)
    log = await service.log(session)
    assert [event.position for event in log] == list(range(1, epoch + 4))
    assert {event.emit_time.ToNanoseconds() for event in log[epoch:]} == {first.emit_time.ToNanoseconds()}


BAD_EVENTS = [
    (ev.Event(), "EVENT_INVALID"),
    (message(event_id="a b"), "ID_INVALID"),
    (message(event_id="x" * 129), "ID_INVALID"),
    (ev.Event(message_received=ev.MessageReceived(content_json="hello")), "EVENT_INVALID"),
    (ev.Event(message_received=ev.MessageReceived(content_json="[]")), "EVENT_INVALID"),
    (ev.Event(message_received=ev.MessageReceived(content_json='["x"]')), "EVENT_INVALID"),
    (ev.Event(message_received=ev.MessageReceived(content_json="[" * 100_000)), "EVENT_INVALID"),
    (ev.Event(message_received=ev.MessageReceived(content_json='[{"type":"text","n":NaN}]')), "EVENT_INVALID"),
    (ev.Event(message_received=ev.MessageReceived(content_json="[" + "9" * 5_000 + "]")), "EVENT_INVALID"),
    (ev.Event(tool_confirmed=ev.ToolConfirmed(tool_use_id="t" * 1_000_000)), "ID_INVALID"),
    (ev.Event(custom_tool_answered=ev.CustomToolAnswered(tool_use_id="t1")), "EVENT_INVALID"),
    (ev.Event(traceparent="x" * 200, interrupt_requested=ev.InterruptRequested()), "EVENT_INVALID"),
]


@pytest.mark.parametrize(("event", "reason"), BAD_EVENTS, ids=[str(number) for number in range(len(BAD_EVENTS))])
async def test_nonsense_is_refused(service: Service, event: ev.Event, reason: str) -> None:
    """What no reader could make sense of never gets into a log."""
    session = await service.create()
    error = await refusal(service.emit(session, event))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", reason)
    assert await service.head(session) == 1


async def test_an_unknown_kind_is_taken_only_if_it_may_be_skipped(service: Service) -> None:
    """A newer harness can emit what this server does not know, if readers may skip it; its bytes are kept."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    unknown = bytes([0xF2, 0x06, 3]) + b"abc"  # field 110, length-delimited
    strange = ev.Event.FromString(ev.Event(event_id="x1").SerializeToString() + unknown)
    assert (await refusal(service.emit(session, strange, epoch))).reason == "EVENT_INVALID"
    strange.ignorable = True
    assert (await refusal(service.emit(session, strange))).reason == "EMITTER_DENIED"
    await service.emit(session, strange, epoch)
    stored = (await service.log(session))[-1]
    assert unknown in stored.SerializeToString()


@pytest.mark.parametrize("size", [900_000, 1_048_000, 1_100_000, 7_900_000, 70_000_000])
async def test_the_size_of_an_event(service: Service, size: int) -> None:
    """An event over 1 MiB is an error to its caller only: the next call goes through."""
    session = await service.create()
    call = service.emit(session, note("big", size))
    if size < 1_048_576:
        await call
    else:
        error = await refusal(call)
        assert error.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")  # over 8 MiB grpc itself refuses
        if size < 8_000_000:
            assert (error.reason, error.metadata) == ("EVENT_TOO_LARGE", {"limit_bytes": "1048576"})
    await service.emit(session, message())
    assert (await service.log(session))[-1].HasField("message_received")


async def test_writers_that_race_leave_no_gap_and_no_double(service: Service) -> None:
    """Three clients append at once, each says everything twice: each event is there once, positions are dense."""
    session = await service.create()

    async def write(name: str) -> None:
        for number in range(40):
            first, again = await asyncio.gather(
                service.emit(session, note(f"{name}{number}")), service.emit(session, note(f"{name}{number}"))
            )
            assert first.position == again.position

    await asyncio.gather(*(write(name) for name in "abc"))
    log = await service.log(session)
    assert [event.position for event in log] == list(range(1, 122))
    assert len({event.event_id for event in log}) == 121
    for name in "abc":
        mine = [event.event_id for event in log if event.event_id.startswith(name) and event.HasField("custom")]
        assert mine == [f"{name}{number}" for number in range(40)]


async def test_sessions_that_interleave(service: Service) -> None:
    """Appends of three sessions in turn: compare-and-append holds for each by itself."""
    sessions = [await service.create() for _ in range(3)]
    for position in range(1, 20):
        for session in sessions:
            answer = await service.emit(session, note(f"n{position}"), expected_position=position)
            assert answer.position == position + 1


async def test_a_caller_that_goes_away_does_not_undo(service: Service) -> None:
    """A call that is cancelled at any moment leaves the session able to go on, and the event there at most once."""
    session = await service.create()
    for number in range(30):
        call = service.client.EmitEvent(pb.EmitEventRequest(session_id=session, event=note(f"n{number}")))
        await asyncio.sleep(number / 10_000)
        call.cancel()
        await asyncio.wait({asyncio.ensure_future(_quietly(call))})
        await service.emit(session, note(f"n{number}"))
    log = await service.log(session)
    assert [event.position for event in log] == list(range(1, 32))
    assert [event.event_id for event in log[1:]] == [f"n{number}" for number in range(30)]


async def _quietly(call: grpc.aio.Call) -> None:
    try:
        await call
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass
