"""What `handmesh top` shows, made of what two calls say: a summary of sessions and the harnesses' runs. Pure.

stuck     it needs a harness and none has it; or neither its log nor what its harness does has moved for long
waiting   for a person's decision, or for a client's tool
in tool   a tool call is at work
thinking  the model is asked
working   whatever else a harness does: it takes the session up, looks for tools, makes a hand
queued    it needs a harness, and waits for one since a moment
retrying  it waits to ask again what has failed
paused    a budget is used up
damaged   its log is damaged
asleep    it waits for a message
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from handmesh.cli.spending import tokens_of
from handmesh.harness.v1 import harness_pb2
from handmesh.session.v1 import session_pb2 as pb

STATES = (
    "stuck",
    "waiting",
    "in tool",
    "thinking",
    "working",
    "queued",
    "retrying",
    "paused",
    "damaged",
    "asleep",
)  # in the order in which they are shown
STUCK_SECONDS = 300.0  # without anything new
UNCLAIMED_SECONDS = 10.0  # that a session may wait for a harness before it is called stuck
RATE_SECONDS = 10.0  # over which tokens per second are taken
MOST_RATED = 10_000  # sessions
SORTS = ("state", "tokens/s", "cost", "age")

_STILL = {
    pb.SESSION_STATUS_IDLE: "asleep",
    pb.SESSION_STATUS_WAITING: "waiting",
    pb.SESSION_STATUS_PAUSED: "paused",
    pb.SESSION_STATUS_DAMAGED: "damaged",
    pb.SESSION_STATUS_ENDED: "asleep",
}


@dataclass(frozen=True)
class Run:
    """A run, and which harness has it."""

    run: harness_pb2.Run
    instance: str


@dataclass(frozen=True)
class Row:
    """A session. `seconds`: for how long it has been in its state. `rate`: output tokens per second, None unknown.

    `doing` is the tool at work and how many more there are, or what the harness does; `hand` who has the tool.
    `tokens`, `cost_micros` and `turns` are None when they are not known.
    """

    session_id: str
    state: str
    seconds: float
    doing: str = ""
    hand: str = ""
    harness: str = ""
    instance: str = ""
    rate: float | None = None
    tokens: int | None = None
    cost_micros: int | None = None
    turns: int | None = None


def rows_of(
    sessions: Iterable[pb.Session], runs: Mapping[str, Run], now: float, stuck: float = STUCK_SECONDS
) -> list[Row]:
    """Makes the rows. `now` is Unix time in seconds, `stuck` the seconds after which what does not move is stuck."""
    return [_row(session, runs.get(session.session_id), now, stuck) for session in sessions]


def _row(session: pb.Session, run: Run | None, now: float, stuck: float) -> Row:
    state, since, doing, hand = _state(session, run)
    seconds = max(0.0, now - since)
    moved = max(0.0, now - max(since, session.update_time.ToNanoseconds() / 1e9))
    if state == "queued" and seconds > UNCLAIMED_SECONDS:
        state, doing = "stuck", "no harness has it"
    elif state in ("thinking", "working") and moved > stuck:
        state, doing = "stuck", doing or state
    known = session.epoch > 0 or session.turns > 0
    return Row(
        session.session_id,
        state,
        seconds,
        doing,
        hand,
        session.config.harness,
        run.instance if run is not None else "",
        None,
        tokens_of(session.usage) if known else None,
        session.cost_micros if known else None,
        session.turns if known else None,
    )


def _state(session: pb.Session, run: Run | None) -> tuple[str, float, str, str]:
    """Returns the state, since when, what is done, and by which hand."""
    updated = session.update_time.ToNanoseconds() / 1e9
    if session.status in _STILL:
        doing = session.paused_budget or ", ".join(session.waiting_tool_use_ids[:2])
        return _STILL[session.status], updated, doing, ""
    if run is not None and run.run.calls:
        oldest = run.run.calls[0]
        more = f" +{len(run.run.calls) - 1}" if len(run.run.calls) > 1 else ""
        return "in tool", oldest.start_time.ToNanoseconds() / 1e9, oldest.tool_name + more, oldest.hand
    if session.status == pb.SESSION_STATUS_RETRYING:
        return "retrying", updated, "", ""
    if run is None:
        return "queued", updated, "", ""
    since = run.run.step_time.ToNanoseconds() / 1e9
    if run.run.step == "model":
        return "thinking", since, "", ""
    return "working", since, run.run.step, ""


def ordered(rows: Iterable[Row], sort: str = "state") -> list[Row]:
    """Sorts rows: by state, those first that somebody should look at; or by a number, the biggest first."""
    by_state = {state: number for number, state in enumerate(STATES)}
    match sort:
        case "tokens/s":
            return sorted(rows, key=lambda row: (-(row.rate or 0.0), row.session_id))
        case "cost":
            return sorted(rows, key=lambda row: (-(row.cost_micros or 0), row.session_id))
        case "age":
            return sorted(rows, key=lambda row: (-row.seconds, row.session_id))
        case _:
            return sorted(rows, key=lambda row: (by_state[row.state], -row.seconds, row.session_id))


@dataclass(frozen=True)
class Totals:
    """What all rows come to. `states` counts them, in the order of STATES and without those that there are none of."""

    states: Mapping[str, int]
    rate: float
    cost_micros: int


def totals(rows: Sequence[Row]) -> Totals:
    """Adds up."""
    counted = Counter(row.state for row in rows)
    return Totals(
        {state: counted[state] for state in STATES if counted[state]},
        sum(row.rate or 0.0 for row in rows),
        sum(row.cost_micros or 0 for row in rows),
    )


class Rates:
    """Remembers output tokens by session, to tell how many come each second."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()

    def with_rates(self, rows: Iterable[Row], sessions: Iterable[pb.Session], now: float) -> list[Row]:
        """Takes what sessions have used by now, and returns the rows with their rates."""
        for session in sessions:
            seen = self._seen.setdefault(session.session_id, deque())
            self._seen.move_to_end(session.session_id)
            seen.append((now, session.usage.output_tokens))
            while len(seen) > 2 and seen[1][0] <= now - RATE_SECONDS:
                seen.popleft()
        while len(self._seen) > MOST_RATED:
            self._seen.popitem(last=False)
        return [replace(row, rate=self._rate(row)) for row in rows]

    def _rate(self, row: Row) -> float | None:
        seen = self._seen.get(row.session_id)
        if seen is None or len(seen) < 2 or row.tokens is None:
            return None
        (before, less), (now, more) = seen[0], seen[-1]
        return max(0, more - less) / (now - before) if now > before else None
