"""What is said together with a fact: what is decided once the fact is in the log, in the same append.

It saves a step to the log, and changes nothing else: it is appended only where the log ends with what it was decided
by, and a log that has it is the same as if it had been said alone.
"""

from __future__ import annotations

from itertools import islice

from handmesh.session.v1.event_pb2 import Event
from services.harness.adapters import codec
from services.harness.turn import core
from services.harness.turn.state import State, fold
from services.harness.turn.traits import Traits

MAX_EVENTS = 16  # of one append
MAX_BYTES = 1_000_000  # of one append; the log takes 1 MiB


def with_what_follows(state: State, event: Event, epoch: int, now: float, traits: Traits) -> list[Event]:
    """Returns an event that is to be the log's next one, and what is to be appended with it.

    The end of the turn, or the starts of the calls that the event lets run.
    """
    mine = Event()
    mine.CopyFrom(event)
    mine.position, mine.epoch = state.head + 1, epoch
    after = fold(state, codec.fact_of(mine))
    follows: list[Event] = []
    match core.decide(after, now, traits):
        case core.EndTurn() as end:
            follows = [turn_ended(after, end, epoch)]
        case core.RunCalls(calls=calls):
            before = {call.id for call in core.running(core.decide(state, now, traits))}
            new = (run for run in calls if run.started is None and run.call.id not in before)
            follows = [codec.call_started(run.call, run.hand, run.sandbox_id) for run in islice(new, MAX_EVENTS - 1)]
    events = [event, *follows]
    return events if sum(each.ByteSize() for each in events) <= MAX_BYTES else [event]


def turn_ended(state: State, end: core.EndTurn, epoch: int) -> Event:
    """Says that the turn ends."""
    stop = state.reply.stop_reason if state.reply and end.reason != "INTERRUPTED" else ""
    return codec.turn_ended(epoch, state.head, end.reason, end.read, stop, state.used.in_turn)
