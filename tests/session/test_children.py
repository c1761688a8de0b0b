"""Sessions that start sessions: who may, how many, what they may have, and what the end of one means for the others."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import Budgets, ChildLimits, HandSpec, SessionConfig
from services.kit import ids
from services.kit.errors import ServiceError
from services.kit.grants import GRANT_KEY
from services.session.families import NEVER_MADE, PARENT_OVER
from services.session.index import key_of
from tests.session.running import Run, Service, finished, message, note, refusal, replied, turn_ended

LIMITS = ChildLimits(max_depth=2, max_children=3, budgets=Budgets(max_turns=5))
PARENT = SessionConfig(no_hands=True, child_limits=LIMITS)


@dataclass
class Parent:
    """A session that a harness has taken up, and what it does for it."""

    service: Service
    id: str
    epoch: int
    grant: str

    async def call(self, method: str, request: Any, grant: str | None = None) -> Any:
        """Calls a method with the session's grant, or another."""
        shown = self.grant if grant is None else grant
        metadata = [(GRANT_KEY, shown)] if shown else []
        return await getattr(self.service.harness, method)(request, metadata=metadata)

    async def start(self, call: str = "c1", *events: ev.Event, **fields: Any) -> str:
        """Starts a child for a call."""
        config = SessionConfig(no_hands=True, **fields)
        request = pb.CreateSessionRequest(request_id=call, config=config, initial_events=events)
        return str((await self.call("CreateSession", request)).session.session_id)

    async def refused(self, call: str = "c1", **fields: Any) -> ServiceError:
        """Starts a child, which must be refused."""
        config = SessionConfig(no_hands=True, **fields)
        return await refusal(self.call("CreateSession", pb.CreateSessionRequest(request_id=call, config=config)))

    async def told(self) -> list[tuple[str, str]]:
        """Returns what the log says of children: kind and child."""
        found = []
        for event in await self.service.log(self.id):
            kind = event.WhichOneof("kind") or ""
            if kind.startswith("child_"):
                found.append((kind, getattr(event, kind).child_session_id))
        return found


async def parent(service: Service, config: SessionConfig = PARENT, *events: ev.Event) -> Parent:
    """Makes a session that may start others, and takes it up."""
    return await take_up(service, await service.create(*events, config=config))


async def take_up(service: Service, session_id: str) -> Parent:
    """Takes a session up."""
    return Parent(service, session_id, *await service.wake(session_id))


async def session(service: Service, session_id: str) -> pb.Session:
    """Returns what is said of a session."""
    found: pb.Session = (await service.client.GetSession(pb.GetSessionRequest(session_id=session_id))).session
    return found


async def test_a_child_is_linked_both_ways(service: Service) -> None:
    """The parent's log names child and call, the child's its parent, whose message it begins with; the same call again
    makes no second one."""
    mine = await parent(service)
    child = await mine.start("call-1", message("do it", "m"), title="t")
    assert await mine.start("call-1", message("do it", "m"), title="t") == child
    log = await service.log(child)
    began, said = log[0].session_started.config, log[1]
    assert (began.parent_session_id, began.tenant, began.budgets.max_turns) == (mine.id, "default", 5)
    assert (said.message_received.from_session_id, said.emitter) == (mine.id, "session")
    [started] = [event for event in await service.log(mine.id) if event.HasField("child_started")]
    assert started.child_started == ev.ChildStarted(child_session_id=child, tool_use_id="call-1")
    assert started.emitter == "session"
    assert await service.status(child) == "RUNNING"
    assert await mine.start("call-1", title="another") == child, "the call's first word counts"


async def test_nobody_starts_a_child_without_the_grant(service: Service) -> None:
    """No grant, a void one, one that was made up; what a harness says of parent and tenant is not listened to."""
    mine, other = await parent(service), await parent(service)
    config = SessionConfig(no_hands=True, parent_session_id=mine.id, tenant="other")
    request = pb.CreateSessionRequest(request_id="c", config=config)
    for grant in ("", mine.grant[:-2] + "xx", f"{mine.id}.x"):
        assert (await refusal(mine.call("CreateSession", request, grant))).reason == "GRANT_INVALID"
    made = (await other.call("CreateSession", request)).session
    assert (made.config.parent_session_id, made.config.tenant) == (other.id, "default")
    old = mine.grant
    await take_up(service, mine.id)
    assert (await refusal(mine.call("CreateSession", request, old))).reason == "GRANT_INVALID"
    error = await refusal(other.call("CreateSession", pb.CreateSessionRequest(config=config)))
    assert (error.reason, error.metadata) == ("ARGUMENT_INVALID", {"field": "request_id"})
    events = [message(), ev.Event(interrupt_requested=ev.InterruptRequested())]
    wrong = pb.CreateSessionRequest(request_id="d", config=SessionConfig(no_hands=True), initial_events=events)
    assert (await refusal(other.call("CreateSession", wrong))).reason == "EMITTER_DENIED"
    assert await mine.told() == []


async def test_the_number_of_children_is_the_logs(service: Service) -> None:
    """Ten at once where three may be: three are, and no more after those have ended."""
    mine = await parent(service)
    found = await asyncio.gather(*(mine.start(f"c{each}") for each in range(10)), return_exceptions=True)
    made = [each for each in found if isinstance(each, str)]
    assert len(made) == len(set(made)) == 3
    for child in made:
        await mine.call("EndSession", pb.EndSessionRequest(session_id=child, reason="enough"))
    error = await mine.refused("late")
    assert (error.code, error.reason, error.metadata) == (
        "FAILED_PRECONDITION",
        "CHILD_LIMIT",
        {"limit": "max_children"},
    )
    assert sorted(await mine.told()) == sorted(
        (kind, child) for kind in ("child_started", "child_ended") for child in made
    )
    none = await parent(service, SessionConfig(no_hands=True))
    assert (await none.refused()).metadata == {"limit": "max_children"}


async def test_depth_is_counted_from_every_session_above(service: Service) -> None:
    """A child may start others only one level less than its parent, and no client's change of it goes deeper."""
    top = await parent(service)
    deep = ChildLimits(max_depth=2)
    assert (await top.refused("c0", child_limits=deep)).metadata == {"limit": "max_depth"}
    child = await take_up(service, await top.start("c1", child_limits=ChildLimits(max_depth=1, max_children=2)))
    grandchild = await child.start("c2")
    assert (await child.refused("c3", child_limits=ChildLimits())).metadata == {"limit": "max_depth"}
    config = (await session(service, grandchild)).config
    config.child_limits.CopyFrom(ChildLimits(max_depth=8, max_children=8))
    await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=grandchild, config=config))
    error = await (await take_up(service, grandchild)).refused("c4")
    assert (error.reason, error.metadata) == ("CHILD_LIMIT", {"limit": "max_depth"})


async def test_budgets_are_what_the_parent_has_left(service: Service) -> None:
    """Filled in where nothing is asked; more than the limits, or than is left, is refused."""
    config = SessionConfig(no_hands=True, child_limits=LIMITS, budgets=Budgets(max_turns=4, max_tokens=1_000))
    mine = await parent(service, config, message(event_id="m"))
    usage = ev.TokenUsage(input_tokens=300, output_tokens=100)
    await service.emit(mine.id, replied(read=2, usage=usage), mine.epoch)
    await service.emit(mine.id, turn_ended(read=2), mine.epoch)
    made = (await session(service, await mine.start("c1", budgets=Budgets(max_turns=2)))).config.budgets
    assert made == Budgets(max_turns=2, max_tokens=600)
    for budgets in (Budgets(max_turns=4), Budgets(max_tokens=601)):
        [(field, _)] = budgets.ListFields()
        assert (await mine.refused(field.name, budgets=budgets)).metadata == {"limit": field.name}
    await service.emit(mine.id, message(event_id="m2"))
    await service.emit(mine.id, replied(read=5, usage=ev.TokenUsage(input_tokens=600)), mine.epoch)
    assert (await mine.refused("c3")).metadata == {"limit": "max_tokens"}


async def test_tool_calls_count_once(service: Service) -> None:
    """Those that were sent to a hand or a client are used, however far they have come since."""
    config = SessionConfig(no_hands=True, child_limits=LIMITS, budgets=Budgets(max_tool_calls=5))
    mine = await parent(service, config, message(event_id="m"))
    await service.emit(mine.id, replied("t1", "t2", "t3", read=2), mine.epoch)
    await service.emit(mine.id, ev.Event(tool_started=ev.ToolStarted(tool_use_id="t1")), mine.epoch)
    await service.emit(mine.id, finished("t1"), mine.epoch)
    asked = ev.CustomToolRequested(tool_use_id="t2", input_json="{}")
    await service.emit(mine.id, ev.Event(custom_tool_requested=asked), mine.epoch)
    assert (await session(service, await mine.start())).config.budgets.max_tool_calls == 3


async def test_a_child_has_no_more_than_its_parent(service: Service) -> None:
    """One field refused on the wire (the rules themselves: test_children_rules)."""
    mine = await parent(service)
    request = pb.CreateSessionRequest(request_id="c", config=SessionConfig(hands={"main": HandSpec()}))
    error = await refusal(mine.call("CreateSession", request))
    assert (error.code, error.reason, error.metadata) == ("PERMISSION_DENIED", "CHILD_DENIED", {"field": "hands[main]"})


async def send(mine: Parent, to: str, event_id: str = "m", text: str = "hi", grant: str | None = None) -> Any:
    """Writes to another session."""
    content = json.dumps([{"type": "text", "text": text}])
    return await mine.call(
        "SendMessage", pb.SendMessageRequest(session_id=to, event_id=event_id, content_json=content), grant
    )


async def test_sessions_write_to_children_and_parent_only(service: Service) -> None:
    """Once for each event id, under a name that the writer cannot choose; nobody else is written to, nor without the
    grant."""
    mine, stranger = await parent(service), await parent(service)
    child = await take_up(service, await mine.start())
    down, again = await send(mine, child.id), await send(mine, child.id)
    assert (again.position, again.duplicate) == (down.position, True)
    up = await send(child, mine.id, "finished-c1")
    said = (await service.log(mine.id))[up.position - 1]
    assert (said.message_received.from_session_id, said.emitter) == (child.id, "session")
    assert said.event_id.startswith("from-")
    sibling = await take_up(service, await mine.start("c2"))
    for writer, to in (
        (mine, stranger.id),
        (stranger, child.id),
        (child, sibling.id),
        (mine, mine.id),
        (child, child.id),
    ):
        assert (await refusal(send(writer, to))).reason == "SESSION_NOT_FOUND"
    for grant in ("", stranger.grant[:-1] + "x"):
        assert (await refusal(send(mine, child.id, grant=grant))).reason == "GRANT_INVALID"
    error = await refusal(send(mine, child.id, "big", "x" * 256 * 1024))
    assert (error.reason, error.metadata) == ("EVENT_TOO_LARGE", {"limit_bytes": "262144"})
    await mine.call("EndSession", pb.EndSessionRequest(session_id=child.id))
    assert (await refusal(send(mine, child.id, "late"))).reason == "SESSION_ENDED"


async def test_a_client_does_not_write_for_a_session(service: Service) -> None:
    """`from_session_id` of a client's message is cleared, and a harness emits no message itself."""
    mine = await parent(service)
    forged = message(event_id="f")
    forged.message_received.from_session_id = mine.id
    other = await service.create(forged)
    assert not (await service.log(other))[1].message_received.from_session_id
    for kind in (message("x"), ev.Event(child_started=ev.ChildStarted(child_session_id=other))):
        assert (await refusal(service.emit(mine.id, kind, mine.epoch))).reason == "EMITTER_DENIED"


async def test_a_session_ends_its_own_children_only(service: Service) -> None:
    """The parent's log says why; twice is the same as once; for anybody else's it is as if they were not there."""
    mine, stranger = await parent(service), await parent(service)
    child = await mine.start()
    assert (await refusal(stranger.call("EndSession", pb.EndSessionRequest(session_id=child)))).reason == (
        "SESSION_NOT_FOUND"
    )
    assert (await refusal(mine.call("EndSession", pb.EndSessionRequest(session_id=mine.id)))).reason == (
        "SESSION_NOT_FOUND"
    )
    assert (
        await refusal(mine.call("EndSession", pb.EndSessionRequest(session_id=child), ""))
    ).reason == "GRANT_INVALID"
    for _ in range(2):
        ended = (await mine.call("EndSession", pb.EndSessionRequest(session_id=child, reason="done"))).session
        assert ended.status == pb.SESSION_STATUS_ENDED
    last = (await service.log(mine.id))[-1]
    assert last.child_ended == ev.ChildEnded(child_session_id=child, reason="done")


@pytest.mark.parametrize("how", ["EndSession", "ArchiveSession", "DeleteSession"])
async def test_children_end_with_their_parent(service: Service, how: str) -> None:
    """All of them and theirs, whichever way the parent goes; none can be started any more."""
    top = await parent(service)
    child = await take_up(service, await top.start("c1", child_limits=ChildLimits(max_children=2)))
    others = [await top.start("c2"), await child.start("c3")]
    request = getattr(pb, f"{how}Request")(session_id=top.id)
    await getattr(service.client, how)(request)
    for each in (child.id, *others):
        assert await service.status(each) == "ENDED"
        assert (await service.log(each))[-1].session_ended.reason == PARENT_OVER
    assert (await top.refused("late")).reason == "GRANT_INVALID"


async def test_a_deleted_child_is_told(service: Service) -> None:
    """A client deletes a child: its parent's log says that it ended."""
    mine = await parent(service)
    child = await mine.start()
    await service.client.DeleteSession(pb.DeleteSessionRequest(session_id=child))
    assert await mine.told() == [("child_started", child), ("child_ended", child)]


async def test_an_interrupt_reaches_all_below(service: Service) -> None:
    """Those at work are asked to stop, once; one at rest is not, and what it has started is."""
    top = await parent(service)
    middle = await take_up(service, await top.start("c1", child_limits=ChildLimits(max_children=2)))
    busy, below = await top.start("c2", message()), await middle.start("c3", message())
    asked = ev.Event(event_id="stop", interrupt_requested=ev.InterruptRequested())
    for _ in range(2):  # said again after a lost answer
        await service.emit(top.id, asked)
    for session_id, times in ((middle.id, 0), (busy, 1), (below, 1)):
        log = await service.log(session_id)
        assert sum(event.HasField("interrupt_requested") for event in log) == times


async def test_a_fork_has_nobody_s_children(service: Service) -> None:
    """A fork of a parent cannot touch the original's children, and one of a child is nobody's child."""
    mine = await parent(service)
    child = await mine.start("c1", message())
    forked = (await service.client.ForkSession(pb.ForkSessionRequest(session_id=mine.id))).session.session_id
    fork = await take_up(service, forked)
    for call in (send(fork, child), fork.call("EndSession", pb.EndSessionRequest(session_id=child))):
        assert (await refusal(call)).reason == "SESSION_NOT_FOUND"
    assert (await service.parts.writer.current(forked)).children == {}
    await service.client.EndSession(pb.EndSessionRequest(session_id=forked))
    assert await service.status(child) == "RUNNING"
    loose = (await service.client.ForkSession(pb.ForkSessionRequest(session_id=child))).session
    assert not loose.config.HasField("parent_session_id")
    await service.client.EndSession(pb.EndSessionRequest(session_id=mine.id))
    assert [await service.status(each) for each in (child, loose.session_id)] == ["ENDED", "RUNNING"]


async def test_an_imported_log_reaches_nobody(service: Service) -> None:
    """Whatever it says of children, another tenant's among them: none is ended, interrupted or written to by it."""
    foreign = (
        await service.other.CreateSession(pb.CreateSessionRequest(initial_events=[message()]))
    ).session.session_id
    mine = await parent(service, PARENT, message(event_id="m"))
    own = await mine.start("c1", message())
    log = await service.log(mine.id)
    forged = ev.Event(event_id="f", position=len(log) + 1, emit_time=log[-1].emit_time, emitter="session")
    forged.child_started.CopyFrom(ev.ChildStarted(child_session_id=foreign))

    async def told() -> Any:
        yield pb.ImportSessionRequest(request_id=ids.mint("req"), events=[*log, forged])

    copy = await take_up(service, (await service.client.ImportSession(told())).session.session_id)
    assert [kind for kind, _ in await copy.told()] == ["child_started", "child_started"]
    for child in (own, foreign):
        for call in (send(copy, child), copy.call("EndSession", pb.EndSessionRequest(session_id=child))):
            assert (await refusal(call)).reason == "SESSION_NOT_FOUND"
    await service.emit(copy.id, ev.Event(interrupt_requested=ev.InterruptRequested()))
    await service.client.EndSession(pb.EndSessionRequest(session_id=copy.id))
    assert await service.status(own) == "RUNNING"
    answer = await service.other.GetSession(pb.GetSessionRequest(session_id=foreign))
    assert (answer.session.status, answer.session.last_position) == (pb.SESSION_STATUS_RUNNING, 2)


@pytest.mark.nats
async def test_the_count_holds_over_replicas(run: Run) -> None:
    """Two session services, twelve calls at once: as many children as may be."""
    async with run() as one, run() as two:
        mine = await parent(one)
        theirs = Parent(two, mine.id, mine.epoch, mine.grant)
        calls = [each.start(f"c{number}") for number in range(6) for each in (mine, theirs)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        made = {each for each in found if isinstance(each, str)}
        assert len(made) == 3 and len(await mine.told()) == 3
        assert {child for _, child in await mine.told()} == made


# --- what a process that died has left ---


async def break_off(mine: Parent, monkeypatch: pytest.MonkeyPatch, call: str = "c1") -> None:
    """Starts a child and dies after the parent's log has it."""

    def die(point: str) -> None:
        if point == "session.child_started":
            raise RuntimeError("a process that died")

    with monkeypatch.context() as patched:
        patched.setattr("services.session.children.failpoints.hit", die)
        assert (await mine.refused(call)).reason == "INTERNAL"


async def test_a_child_that_broke_off_is_gone_on_with(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call finds it, and the parent's log counts it once."""
    mine = await parent(service)
    await break_off(mine, monkeypatch)
    [(_, child)] = await mine.told()
    assert await mine.start("c1") == child
    assert await mine.told() == [("child_started", child)]


async def test_a_parent_that_ends_while_a_child_is_made(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's log has the child and then its own end, and the child's log begins last: it ends at once."""
    mine, sessions = await parent(service), service.parts.sessions
    begin = sessions.begin

    async def late(session_id: str, draft: Any) -> Any:
        await sessions.end(mine.id, "", None)
        return await begin(session_id, draft)

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "begin", late)
        child = await mine.start("c1", message())
    assert await service.status(child) == "ENDED"


async def test_a_child_that_nobody_goes_on_with_is_cleared(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time it can never come to be, and the parent's log says so; not before."""
    mine, orphans = await parent(service), service.parts.upkeep._orphans
    await break_off(mine, monkeypatch)
    [(_, child)] = await mine.told()
    await orphans.look()
    assert len(await mine.told()) == 1
    monkeypatch.setattr("services.session.orphans.UNMADE_SECONDS", -1.0)
    await orphans.look()
    assert (await service.log(mine.id))[-1].child_ended == ev.ChildEnded(child_session_id=child, reason=NEVER_MADE)
    assert (await mine.refused("c1")).reason == "SESSION_NOT_FOUND"


async def test_what_was_not_carried_through_is_found(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end of a child that was not told, a child that outlives its parent, an interrupt that went no further."""
    families = service.parts.sessions._families
    top, gone = await parent(service), await parent(service)
    told, stopped = await top.start("c1"), await top.start("c2", message())
    left = await gone.start("c3", message())

    async def nothing(*_: Any) -> None:
        return None

    with monkeypatch.context() as dying:
        for name in ("tell", "settle", "interrupt"):
            dying.setattr(families, name, nothing)
        await service.client.EndSession(pb.EndSessionRequest(session_id=told))
        await service.client.EndSession(pb.EndSessionRequest(session_id=gone.id))
        await service.emit(top.id, message())
        await service.emit(top.id, ev.Event(interrupt_requested=ev.InterruptRequested()))
    assert await service.status(left) == "RUNNING"
    await service.parts.upkeep._orphans.look()
    assert ("child_ended", told) in await top.told()
    assert await service.status(left) == "ENDED"
    before = await service.log(stopped)
    assert before[-1].HasField("interrupt_requested")
    await service.parts.upkeep._orphans.look()
    assert await service.log(stopped) == before, "once"


async def test_an_interrupt_does_not_stop_what_was_said_after_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks later tells a child's old work from new."""
    mine = await parent(service)
    child = await mine.start("c1", message())
    await service.emit(mine.id, ev.Event(interrupt_requested=ev.InterruptRequested()))
    await service.emit(child, turn_ended(read=3), (await take_up(service, child)).epoch)
    await send(mine, child, "again")
    before = await service.log(child)
    await service.parts.upkeep._orphans.look()
    assert await service.log(child) == before


async def test_the_index_names_the_parent(service: Service) -> None:
    """What is behind the calls finds children by it; a client's change of the child keeps it."""
    mine = await parent(service)
    child = await mine.start()
    config = (await session(service, child)).config
    config.title = "new"
    changed = (await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=child, config=config))).session
    assert changed.config.parent_session_id == mine.id
    await service.parts.listing.sync()
    assert service.parts.listing.children_of(mine.id) == [child]
    entry = await service.store.registry.get("sessions", key_of("default", child))
    assert entry is not None and json.loads(entry.value)["parent"] == mine.id


async def test_a_parent_that_is_full_or_unknown(service: Service) -> None:
    """Nothing is started for a session whose grant is void; ids that are no session's are refused by their form."""
    mine = await parent(service)
    await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=mine.id))
    assert (await mine.refused()).reason == "GRANT_INVALID"
    assert (await refusal(send(mine, "sess_x"))).reason == "ID_INVALID"
    assert (await refusal(send(await parent(service), ids.mint("sess")))).reason == "SESSION_NOT_FOUND"
    await service.emit(await service.create(), note())
