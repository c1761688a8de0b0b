"""What must be true of a session after anything went wrong: the invariants I1 to I12, over its log and the world.

Pure: values in, violations out. What a log alone shows is `services.session.verify`, which `handmesh verify` asks too;
here is what needs the world beside it: who was told what, what ran, what is left.

    I1   what was acknowledged is in the log            I7   nothing runs without leave, or for an ended session
    I2   positions are dense and in order               I8   only legal steps; messages are read once, in order
    I3   no event is there twice                        I9   watchers see what the log has, once; so do previews
    I4   epochs never go back                           I10  nothing is left of what has ended
    I5   one result for each call                       I11  no secret is where it should not be
    I6   what ran is what the log says, once            I12  what was healed went on within 30 seconds
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome
from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import Preview
from services.session import codec
from services.session.verify import Seen, Violation, check_acknowledged
from services.session.verify import check as check_log

HEAL_SECONDS = 30.0
_RAN = frozenset({ToolOutcome.TOOL_OUTCOME_OK, ToolOutcome.TOOL_OUTCOME_TOOL_ERROR})  # what only a run can say


@dataclass(frozen=True)
class World:
    """What was found outside the log of one session. `settled`: nobody is at work on it, and no fault is left.

    `effects` counts for each call what it did, as the place where it did it tells. `executions` are the records of
    sandboxes that live, by sandbox: execution ids, and whether each still runs.
    """

    settled: bool = True
    executions: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    effects: Mapping[str, int] = field(default_factory=dict)
    watched: Sequence[Sequence[Event]] = ()
    previews: Sequence[Preview] = ()
    sandboxes: frozenset[str] = frozenset()
    leftovers: Sequence[str] = ()
    secrets: Sequence[str] = ()
    seconds: float = 0.0


def check(events: Sequence[Event], acknowledged: Mapping[str, int], world: World) -> list[Violation]:
    """Says everything that is wrong. `acknowledged` are event ids and the positions that their emitters were told."""
    seen = [
        Seen(event.position, codec.stored_fact(event), event.epoch, codec.nanoseconds(event.emit_time))
        for event in events
    ]
    return [
        *check_log(seen),
        *check_acknowledged(seen, acknowledged),
        *_results(events, world),
        *_executions(events, world),
        *_leave(events, world),
        *_reading(events, world),
        *_watchers(events, world),
        *_previews(events, world),
        *_leftovers(events, world),
    ]


def _kind(event: Event) -> str:
    return event.WhichOneof("kind") or ""


def _only(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if _kind(event) == kind]


def _calls(events: Sequence[Event]) -> dict[str, int]:
    """Returns the calls of all replies and the position at which each was made."""
    return {
        block["id"]: event.position
        for event in _only(events, "model_replied")
        for block in json.loads(event.model_replied.content_json)
        if block["type"] == "tool_use"
    }


def _results(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I5: once a session has come to rest, every call is settled or waits for somebody."""
    if not world.settled or _only(events, "session_ended"):
        return
    settled = {event.tool_finished.tool_use_id for event in _only(events, "tool_finished")}
    settled |= {event.custom_tool_answered.tool_use_id for event in _only(events, "custom_tool_answered")}
    waiting = {event.tool_confirmation_requested.tool_use_id for event in _only(events, "tool_confirmation_requested")}
    waiting |= {event.custom_tool_requested.tool_use_id for event in _only(events, "custom_tool_requested")}
    waiting -= {event.tool_confirmed.tool_use_id for event in _only(events, "tool_confirmed")}
    for call, position in _calls(events).items():
        if call not in settled and call not in waiting:
            yield Violation("I5", position, f"nobody works any more, and call {call} has no result")


def _executions(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I6: each call that the log says was started ran once at most, those with a result once; nothing else ran."""
    started = {event.tool_started.tool_use_id: event for event in _only(events, "tool_started")}
    finished = {event.tool_finished.tool_use_id: event.tool_finished.result for event in _only(events, "tool_finished")}
    for sandbox, records in world.executions.items():
        for call in records:
            if call not in started or started[call].tool_started.sandbox_id != sandbox:
                yield Violation(
                    "I6", 0, f"sandbox {sandbox} ran {call}, and the log does not say that it started there"
                )
        for call, event in started.items():
            ran = call in finished and finished[call].outcome in _RAN
            if event.tool_started.sandbox_id == sandbox and ran and call not in records:
                yield Violation("I6", event.position, f"call {call} has a result, and sandbox {sandbox} never ran it")
    for call, times in world.effects.items():
        position = started[call].position if call in started else 0
        result = finished.get(call)
        if times > 1:
            yield Violation("I6", position, f"call {call} was done {times} times")
        elif times and call not in started:
            yield Violation("I6", position, f"call {call} was done, and the log does not say that it started")
        elif not times and result is not None and result.outcome == ToolOutcome.TOOL_OUTCOME_OK:
            yield Violation("I6", position, f"call {call} is said to have been done, and was not")


def _leave(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I7: what was asked about ran only after a yes to that very call; nothing runs for a session that has ended."""
    asked: dict[str, str] = {}
    verdicts: dict[str, bool] = {}
    for event in events:
        match _kind(event):
            case "tool_confirmation_requested":
                asked[event.tool_confirmation_requested.tool_use_id] = event.tool_confirmation_requested.call_hash
            case "tool_confirmed":
                said = event.tool_confirmed
                right = not said.call_hash or said.call_hash == asked.get(said.tool_use_id)
                verdicts.setdefault(said.tool_use_id, said.allowed and right)
            case "tool_started":
                call = event.tool_started.tool_use_id
                if call in asked and not verdicts.get(call, False):
                    yield Violation("I7", event.position, f"call {call} was started without a yes")
    ends = _only(events, "session_ended")
    for sandbox, records in world.executions.items():
        for call, running in records.items():
            if ends and running and world.settled:
                yield Violation("I7", ends[0].position, f"the session has ended, and {call} runs in {sandbox}")


def _reading(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I8: what was read only grows, never beyond what was there, and ends with every message. I12: in time."""
    read = settled = 0
    for event in events:
        kind = _kind(event)
        if kind not in ("model_replied", "turn_ended"):
            continue
        now = getattr(event, kind).read_position
        if now >= event.position:
            yield Violation("I8", event.position, f"{kind} has read up to {now}, which is not there yet")
        if now < read:
            yield Violation("I8", event.position, f"{kind} has read up to {now}, and {read} was read before")
        read = max(read, now)
        settled = read if kind == "turn_ended" else settled
    if not world.settled or _only(events, "session_ended"):
        return
    waits = _only(events, "tool_confirmation_requested") or _only(events, "custom_tool_requested")
    for event in _only(events, "message_received"):
        if event.position > settled and not waits:
            yield Violation("I12", event.position, "nobody works any more, and this message has no answer")
    if world.seconds > HEAL_SECONDS:
        yield Violation("I12", len(events), f"it took {world.seconds:.1f} s to go on")


def _watchers(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I9: whoever watched saw the log from where they began, each position once, byte for byte."""
    stored = {event.position: event.SerializeToString(deterministic=True) for event in events}
    for number, watched in enumerate(world.watched):
        first = watched[0].position if watched else 1
        for expected, event in enumerate(watched, first):
            if event.position != expected:
                yield Violation("I9", expected, f"watcher {number} saw {event.position} instead")
                break
            if stored.get(event.position) != event.SerializeToString(deterministic=True):
                yield Violation("I9", expected, f"watcher {number} saw another event than the log has")
                break


def _previews(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I9: what was shown of an answer is in it, at its place."""
    replies = {event.event_id: event for event in _only(events, "model_replied")}
    for shown in world.previews:
        reply = replies.get(shown.event_id)
        if reply is None or shown.WhichOneof("delta") != "text":
            continue
        blocks = json.loads(reply.model_replied.content_json)
        text = blocks[shown.block_index].get("text", "") if shown.block_index < len(blocks) else ""
        if text[shown.offset : shown.offset + len(shown.text)] != shown.text:
            yield Violation("I9", reply.position, f"{shown.text[:40]!r} was shown, and is not in the answer")


def _leftovers(events: Sequence[Event], world: World) -> Iterator[Violation]:
    """I10: a session has the sandboxes that its log names, one for each hand, and none when it has ended. I11."""
    gone = {event.hand_detached.sandbox_id for event in _only(events, "hand_detached")}
    named = {event.sandbox_provisioned.sandbox_id: event for event in _only(events, "sandbox_provisioned")}
    ended = bool(_only(events, "session_ended"))
    if world.settled:
        for sandbox in sorted(world.sandboxes - (set() if ended else named.keys() - gone)):
            yield Violation("I10", 0, f"sandbox {sandbox} is {'left' if ended else 'not in the log'}")
    generations = Counter(
        (event.sandbox_provisioned.hand, event.sandbox_provisioned.generation) for event in named.values()
    )
    for (hand, generation), count in generations.items():
        if count > 1:
            yield Violation("I10", 0, f"hand {hand} has {count} sandboxes of generation {generation}")
    for what in world.leftovers:
        yield Violation("I10", 0, f"{what} is left")
    for where in world.secrets:
        yield Violation("I11", 0, f"a secret is in {where}")
