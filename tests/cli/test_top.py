"""What `handmesh top` makes of a summary of sessions and of the harnesses' runs."""

from __future__ import annotations

import io
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.cli.top_reading import Seen
from handmesh.cli.top_rows import STATES, Rates, Row, Run, ordered, rows_of, totals
from handmesh.cli.top_table import duration, head, table
from handmesh.harness.v1 import harness_pb2
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.event_pb2 import TokenUsage

NOW = 1_000_000.0
RUNNING = pb.SESSION_STATUS_RUNNING


def ago(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(NOW - seconds))


def session(status: pb.SessionStatus.ValueType = RUNNING, updated: float = 1.0, **fields: Any) -> pb.Session:
    given = {"epoch": 3, **fields}
    return pb.Session(session_id="sess_a", status=status, update_time=ago(updated), **given)


def run(step: str = "model", since: float = 1.0, *calls: tuple[str, str, float]) -> Run:
    working = [
        harness_pb2.RunningCall(tool_use_id=tool, tool_name=tool, hand=hand, start_time=ago(seconds))
        for tool, hand, seconds in calls
    ]
    return Run(harness_pb2.Run(session_id="sess_a", step=step, step_time=ago(since), calls=working), "h:1")


def row(of: pb.Session, its: Run | None = None) -> Row:
    return rows_of([of], {} if its is None else {"sess_a": its}, NOW)[0]


@pytest.mark.parametrize(
    ("its", "at_work", "state", "seconds", "doing"),
    [
        (session(), run("model", 7), "thinking", 7, ""),
        (session(), run("tools", 2), "working", 2, "tools"),
        (session(), run("hand main", 2), "working", 2, "hand main"),
        (session(), run("t1", 2, ("bash", "main", 90)), "in tool", 90, "bash"),
        (session(), run("t1", 2, ("bash", "main", 9), ("read", "main", 5), ("x", "y", 1)), "in tool", 9, "bash +2"),
        (session(updated=4), None, "queued", 4, ""),
        (session(updated=40), None, "stuck", 40, "no harness has it"),
        (session(updated=400), run("model", 400), "stuck", 400, "thinking"),
        (session(updated=3), run("model", 400), "thinking", 400, ""),
        (session(updated=4000), run("t1", 4000, ("bash", "main", 4000)), "in tool", 4000, "bash"),
        (session(pb.SESSION_STATUS_IDLE, 50), run("lingering", 5), "asleep", 50, ""),
        (session(pb.SESSION_STATUS_IDLE, 50), None, "asleep", 50, ""),
        (session(pb.SESSION_STATUS_WAITING, 50, waiting_tool_use_ids=["t1", "t2"]), None, "waiting", 50, "t1, t2"),
        (session(pb.SESSION_STATUS_PAUSED, 50, paused_budget="max_turns"), None, "paused", 50, "max_turns"),
        (session(pb.SESSION_STATUS_RETRYING, 50), run("x"), "retrying", 50, ""),
        (session(pb.SESSION_STATUS_DAMAGED, 50), None, "damaged", 50, ""),
    ],
)
def test_states(its: pb.Session, at_work: Run | None, state: str, seconds: float, doing: str) -> None:
    """What a session does, since when; a tool may take long, and what only harnesses do may not."""
    found = row(its, at_work)
    assert (found.state, found.seconds, found.doing) == (state, seconds, doing)


def test_what_is_not_known_is_not_zero() -> None:
    """A summary of another replica's session has no usage: that is shown as unknown."""
    assert row(session(epoch=0)).tokens is None
    used = TokenUsage(input_tokens=10, output_tokens=5)
    known = row(session(usage=used, cost_micros=7, turns=2), run())
    assert (known.tokens, known.cost_micros, known.turns, known.instance) == (15, 7, 2, "h:1")


def test_rates_are_of_the_last_seconds() -> None:
    """Output tokens by time, over ten seconds; nothing after one look."""
    rates = Rates()

    def look(at: float, output: int) -> float | None:
        its = session(usage=TokenUsage(input_tokens=1_000_000, output_tokens=output))
        return rates.with_rates([row(its)], [its], at)[0].rate

    assert look(0.0, 100) is None
    assert look(2.0, 300) == 100.0
    assert [look(at, 300) for at in (12.0, 14.0, 16.0)] == [0.0, 0.0, 0.0]


def test_what_somebody_should_look_at_comes_first() -> None:
    """By state in a fixed order, then the longest; or by a number."""
    rows = [Row(f"sess_{at}", state, 1.0 + at, rate=float(at), cost_micros=at) for at, state in enumerate(STATES)]
    longer = Row("sess_z", "stuck", 99.0)
    assert [it.state for it in ordered(reversed(rows))] == list(STATES)
    assert ordered([*rows, longer])[0] is longer
    for sort in ("tokens/s", "cost"):
        assert ordered(rows, sort)[0] is rows[-1]
    assert ordered([*rows, longer], "age")[0] is longer
    assert totals(rows).states == dict.fromkeys(STATES, 1)


def test_text_from_outside_is_one_plain_line() -> None:
    """A tool's name that obeys a terminal, or has lines, is shown as what it is."""
    from rich.console import Console

    out = Console(width=200, file=io.StringIO())
    rows = [Row("sess_a", "in tool", 65.0, "a\x1b[2Jb\nc", "h\n", "messages", "h:1", 3.0, 10, 1_500_000, 1)]
    out.print(head(Seen(harnesses={"h:1": (1, 100)}, silent=("h:2",)), rows))
    out.print(table(rows))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text
    assert len(text.strip().splitlines()) == 4
    for shown in ("1 in tool", "harness h:1 1/100", "h:2 does not answer", "1m05s", "$1.5000"):
        assert shown in text


@pytest.mark.parametrize("width", [80, 100, 160, 240])
def test_an_id_is_whole_on_every_screen(width: int) -> None:
    """It is what other commands take, so whatever there is beside it gets less room first."""
    from rich.console import Console

    long = Row(
        "sess_" + "a" * 26, "waiting", 1e6, "d" * 40, "h" * 20, "t" * 16, "127.0.0.1:7402", 1e6, 10**9, 10**9, 10**6
    )
    out = Console(file=io.StringIO(), width=width)
    out.print(table([long]))
    assert long.session_id in out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.44, "0.4s"), (12.9, "12s"), (185, "3m05s"), (7_800, "2h10m"), (450_000, "5d05h")]
)
def test_durations(seconds: float, shown: str) -> None:
    """Short at every size."""
    assert duration(seconds) == shown
