"""What a runner keeps of executions that have ended: an end to each sum, the newest stay, none runs twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.sandbox.runner.config import Config
from services.sandbox.runner.execution import Execution, Order
from services.sandbox.runner.kept import Kept, Room
from services.sandbox.runner.problem import Problem

WIDE = Room(outputs=1 << 30, answers=1 << 30)


def ended(kept: Kept, folder: Path, number: int, text: int = 10, stored: int = 0) -> Execution:
    """Keeps an execution with a result of a size, and an output of a size on the disk."""
    run = Execution(Order(f"exec_{number}", "bash", {}, "d", 1.0), number, Config(str(folder), str(folder)), [])
    kept.add(run)
    if stored:
        Path(run.folder).mkdir()
        Path(run.output_path).write_bytes(b"x" * stored)
        run.stored = stored
    run.settle("OK", "x" * text)
    kept.ended(run)
    return run


def known(kept: Kept) -> list[str]:
    """Returns the ids with a result."""
    return [run.order.id for run in kept.all()]


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (WIDE._replace(records=3), 10),
        (WIDE._replace(memory=3 * 1100), 1000),
        (WIDE._replace(answers=3 * 10_100), 10_000),  # those lie on the disk
    ],
    ids=["records", "memory", "disk"],
)
def test_the_oldest_are_forgotten_and_told_apart_from_unknown_ones(tmp_path: Path, room: Room, text: int) -> None:
    """Of eight there is room for three. The others are refused, so that nobody runs them; a new id is free."""
    kept = Kept(room)
    for number in range(8):
        ended(kept, tmp_path, number, text)
    assert known(kept) == ["exec_5", "exec_6", "exec_7"]
    for number in range(5):
        with pytest.raises(Problem) as refused:
            kept.find(f"exec_{number}")
        assert refused.value.answer["error"] == "EXECUTION_UNKNOWN" and kept.forgot(f"exec_{number}")
    assert kept.find("exec_8") is None
    assert sorted(path.parent.name for path in tmp_path.rglob("*.json")) in ([], ["5", "6", "7"])


def test_outputs_make_room_and_leave_their_results(tmp_path: Path) -> None:
    """An output that is too old is removed from the disk; the result can still be had."""
    kept = Kept(WIDE._replace(outputs=250))
    runs = [ended(kept, tmp_path, number, stored=100) for number in range(4)]
    assert [run.stored for run in runs] == [0, 0, 100, 100] and len(known(kept)) == 4
    assert [Path(run.output_path).exists() for run in runs] == [False, False, True, True]
    assert b'"OK"' in runs[0].answer()


def test_the_newest_stays_whatever_its_size(tmp_path: Path) -> None:
    """Who has just been running can always be asked for."""
    kept = Kept(WIDE._replace(memory=100, answers=100))
    for number, text in enumerate((1000, 10_000, 2000)):
        assert b'"OK"' in ended(kept, tmp_path, number, text).answer()
        assert kept.find(f"exec_{number}") is not None


def test_running_ones_are_never_forgotten(tmp_path: Path) -> None:
    """However many have ended since."""
    kept = Kept(WIDE._replace(records=2))
    running = Execution(Order("long", "bash", {}, "d", 1.0), 99, Config(str(tmp_path), str(tmp_path)), [])
    kept.add(running)
    for number in range(5):
        ended(kept, tmp_path, number)
    assert known(kept) == ["long", "exec_3", "exec_4"] and kept.find("long") is running


def test_who_follows_a_forgotten_one_is_told(tmp_path: Path) -> None:
    """A follower that comes too late gets UNKNOWN, not an old line and no empty one."""
    kept = Kept(WIDE._replace(records=1))
    first = ended(kept, tmp_path, 1)
    ended(kept, tmp_path, 2)
    assert b'"UNKNOWN"' in first.answer()


def test_forgotten_ids_have_an_end_too(tmp_path: Path) -> None:
    """The memory of a runner is finite: the oldest ids are free again."""
    kept = Kept(WIDE._replace(records=1, forgotten=3))
    for number in range(6):
        ended(kept, tmp_path, number)
    assert [kept.forgot(f"exec_{number}") for number in range(6)] == [False, False, True, True, True, False]
