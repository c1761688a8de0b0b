"""What a call says while it runs is shown to whoever watches, and costs nobody anything else."""

from __future__ import annotations

import asyncio

import pytest

from services.harness.turn import output
from services.kit.errors import Unavailable
from tests.harness.test_loop import LS, ends, outcomes, run
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, ports, said


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    for name in ("SOON_SECONDS", "LOOK_SECONDS", "PIECE_SECONDS"):
        monkeypatch.setattr(output, name, 0.0)


def shown(log: MemoryLog) -> list[tuple[str, int, str]]:
    return [(it.event_id, it.offset, it.tool_output) for it in log.shown if it.HasField("tool_output")]


async def test_output_is_shown_under_the_id_of_its_result() -> None:
    """Pieces are contiguous in characters, over a hand that is away for a moment, and end in ToolFinished."""
    done = asyncio.Event()
    log, hands = MemoryLog(), MemoryHands(lambda tool, input: done.wait())
    log.is_watched = True
    hands.says = ["€1\n", Unavailable("SANDBOX_UNAVAILABLE", "away"), "2\n"]
    running = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=LS), said()), hands)))
    while len(shown(log)) < 2:
        await asyncio.sleep(0)
    done.set()
    await running
    assert shown(log) == [("finished-t1", 0, "€1\n"), ("finished-t1", 3, "2\n")]
    assert hands.followed == [("t1", 0), ("t1", 5)]  # a hand counts bytes
    assert [event.event_id for event in log.events if event.HasField("tool_finished")] == ["finished-t1"]
    assert (outcomes(log), ends(log)) == (["OK"], ["DONE"])


async def test_a_big_piece_is_shown_in_parts() -> None:
    """No part is more than the session service passes on."""
    done = asyncio.Event()
    log, hands = MemoryLog(), MemoryHands(lambda tool, input: done.wait())
    log.is_watched = True
    hands.says = ["x" * (output.PIECE_CHARACTERS + 1)]
    running = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=LS), said()), hands)))
    while len(shown(log)) < 2:
        await asyncio.sleep(0)
    done.set()
    await running
    assert [(offset, len(text)) for _, offset, text in shown(log)] == [
        (0, output.PIECE_CHARACTERS),
        (output.PIECE_CHARACTERS, 1),
    ]


async def test_nobody_follows_for_nobody() -> None:
    """While nobody watches a call is not followed; somebody who comes later is shown it from its beginning."""
    done = asyncio.Event()
    log, hands = MemoryLog(), MemoryHands(lambda tool, input: done.wait())
    hands.says = ["1\n"]
    running = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=LS), said()), hands)))
    while log.asked_watched < 3:
        await asyncio.sleep(0)
    assert hands.followed == []
    log.is_watched = True
    while not shown(log):
        await asyncio.sleep(0)
    done.set()
    await running
    assert shown(log) == [("finished-t1", 0, "1\n")]


async def test_a_call_that_ends_soon_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no question to the session service and none to its hand."""
    monkeypatch.setattr(output, "SOON_SECONDS", 60.0)
    log, hands = MemoryLog(), MemoryHands()
    log.is_watched = True
    await run(log, ports(ScriptedModel(said(t1=LS), said()), hands))
    assert (log.asked_watched, hands.followed, ends(log)) == (0, [], ["DONE"])
