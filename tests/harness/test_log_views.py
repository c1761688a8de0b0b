"""A session's log as a file in its hands: up to date before each execution, bounded, and cheap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handmesh.sandbox.v1.sandbox_pb2 import LogView, Resource
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from services.harness.adapters.configs import config_of
from services.harness.ports import Standing
from services.harness.turn import log_views
from services.harness.turn.log_views import LogViews
from services.kit.errors import Gone, Unavailable
from tests.harness.test_loop import LS, outcomes, run
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, message, ports, said

PATH, UNDER = "/workspace/log.jsonl", Standing(3, "grant")
VIEW = Resource(mount_path=PATH, log_view=LogView())
CONFIG = SessionConfig(hands={"main": HandSpec(resources=[VIEW])})
BOX = "sbx_" + "0" * 26


def positions(hands: MemoryHands, sandbox: str = BOX) -> list[int]:
    """Returns the positions of the events in the file."""
    return [int(json.loads(line)["position"]) for line in hands.files[sandbox, PATH].splitlines()]


async def refresh(log: MemoryLog, hands: MemoryHands, views: LogViews | None = None, **start: int) -> None:
    """Brings the file up to date, as a new run does or as one that knows it."""
    spec = HandSpec(resources=[Resource(mount_path=PATH, log_view=LogView(**start))])
    config = config_of(SessionConfig(hands={"main": spec}))
    await (views or LogViews(log, hands)).refresh(config, "main", BOX, UNDER)


async def test_a_call_finds_the_log_up_to_its_own_start() -> None:
    """Before each execution the file has all that is in the log, the call's own start included."""
    log, hands = MemoryLog(CONFIG), MemoryHands()
    found: list[list[int]] = []

    async def work(tool: str, given: str) -> None:
        found.append(positions(hands))

    hands.work = work
    await run(log, ports(ScriptedModel(said(t1=LS), said(t2=LS), said()), hands))
    starts = [event.position for event in log.events if event.HasField("tool_started")]
    assert found == [list(range(1, start + 1)) for start in starts]
    assert hands.puts[1][0] == hands.puts[0][1], "what is new goes behind what is there"
    line = json.loads(hands.files[BOX, PATH].splitlines()[1])
    assert json.loads(line["messageReceived"]["contentJson"]) == [{"type": "text", "text": "hello"}]


async def test_hands_without_a_view_cost_nothing() -> None:
    """Nothing is read, looked at or put for a session that asks for no view."""
    log, hands = MemoryLog(), MemoryHands()
    hands.put_refusal = Unavailable("SANDBOX_UNAVAILABLE", "never asked")
    await run(log, ports(ScriptedModel(said(t1=LS), said()), hands))
    assert (outcomes(log), "error_raised" in log.kinds()) == (["OK"], False)


async def test_only_what_is_new_is_put() -> None:
    """By a run that knows the file, and by the next one, which looks at the file's end."""
    log, hands = MemoryLog(), MemoryHands()
    views = LogViews(log, hands)
    await refresh(log, hands, views)
    await refresh(log, hands, views)
    assert len(hands.puts) == 1
    await log.add(message("two", "m2"))
    await refresh(log, hands, views)
    await log.add(message("three", "m3"))
    await refresh(log, hands)
    await refresh(log, hands)
    assert (len(hands.puts), positions(hands)) == (3, [1, 2, 3, 4])


@pytest.mark.parametrize(
    "spoilt",
    [b"", b"half a li", b'{"position":"x"}\n', b"[]\n", b'{"position":"99999999999999999999"}\n', b'{"position":-3}\n'],
)
@pytest.mark.parametrize("known", [True, False])
async def test_a_file_that_tools_have_changed_is_written_anew(spoilt: bytes, known: bool) -> None:
    """Whatever is in it: the harness neither fails nor believes it."""
    log, hands = MemoryLog(), MemoryHands()
    views = LogViews(log, hands)
    await refresh(log, hands, views)
    hands.files[BOX, PATH] = spoilt
    await log.add(message("two", "m2"))
    await refresh(log, hands, views if known else None)
    assert positions(hands) == [1, 2, 3]


async def test_a_view_may_begin_later() -> None:
    """From the position that the configuration names on."""
    log, hands = MemoryLog(), MemoryHands()
    await log.add(message("two", "m2"))
    await refresh(log, hands, start_position=3)
    assert positions(hands) == [3]


async def test_a_long_log_comes_in_pieces_and_begins_anew_when_the_file_is_full(monkeypatch: Any) -> None:
    """No piece is longer than a hand takes, and the file never than its bound: it keeps the newest events."""
    monkeypatch.setattr(log_views, "MAX_FILE_BYTES", 100_000)
    monkeypatch.setattr(log_views, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(log_views, "PAGE_EVENTS", 7)
    log, hands = MemoryLog(), MemoryHands()
    views = LogViews(log, hands)
    for number in range(60):
        size = 25_000 if number == 5 else 3_000
        await log.add(message("x" * size, f"m-{number}"))
        if number % 4 == 0:
            await refresh(log, hands, views if number % 8 else None)
            found = positions(hands)
            assert found == list(range(found[0], len(log.events) + 1))
            assert len(hands.files[BOX, PATH]) <= 100_000
    assert max(size for _, size in hands.puts) <= 10_000
    assert positions(hands)[0] > 20


async def test_a_view_that_cannot_be_written_stops_no_call() -> None:
    """The log says so; the call runs all the same, and one whose sandbox is gone says that itself."""
    log, hands = MemoryLog(CONFIG), MemoryHands()
    hands.put_refusal = Unavailable("SANDBOX_UNAVAILABLE", "away")
    await run(log, ports(ScriptedModel(said(t1=LS), said()), hands))
    assert outcomes(log) == ["OK"]
    assert [(it.part, it.reason) for it in log.only("error_raised")] == [("hand", "SANDBOX_UNAVAILABLE")]

    log, hands = MemoryLog(CONFIG), MemoryHands()
    hands.put_refusal = Gone("SANDBOX_GONE", "gone")
    await run(log, ports(ScriptedModel(said(t1=LS), said()), hands))
    assert (outcomes(log), "error_raised" in log.kinds()) == (["OK"], False)
