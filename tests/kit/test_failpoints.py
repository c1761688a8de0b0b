"""Failpoints: there, once each, and nothing at all unless a test's mesh has a folder of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kit import failpoints
from services.kit.errors import Unavailable

ROOT = Path(__file__).parents[2]
POINT = "harness.woke"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An armed folder without points."""
    failpoints.arm(tmp_path)
    yield tmp_path
    failpoints.arm(None)


def hits(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if ".hit-" in file.name)


def test_every_point_is_placed_once() -> None:
    """The table and the code name the same points, each in one place of the service that its name begins with.

    A harness type that asks its model by itself passes the points of asking, too.
    """
    placed: Counter[tuple[str, str]] = Counter()
    for file in (ROOT / "services").rglob("*.py"):
        if "claude_code" in file.parts:
            continue
        service = file.relative_to(ROOT / "services").parts[0]
        if service != "kit":  # whose docstring has an example
            placed.update((service, point) for point in re.findall(r'failpoints\.hit\("([^"]*)"', file.read_text()))
    assert placed == {(point.partition(".")[0], point): 1 for point in failpoints.POINTS}


def test_the_docs_list_every_point() -> None:
    """docs/crash.md has each point with the words of the table."""
    page = (ROOT / "docs" / "crash.md").read_text()
    assert [point for point, meaning in failpoints.POINTS.items() if f"| `{point}` | {meaning} |" not in page] == []


def test_nothing_happens_unless_it_is_armed(tmp_path: Path) -> None:
    """Without a folder a file changes nothing; with one, only the points that have a file do anything."""
    (tmp_path / POINT).write_text("error")
    failpoints.hit(POINT)
    failpoints.arm(tmp_path)
    try:
        failpoints.hit("harness.run_ended")
    finally:
        failpoints.arm(None)
    assert hits(tmp_path) == []


def test_an_error_comes_once_and_leaves_word(folder: Path) -> None:
    """Unavailable, then nothing; the file says which process was struck."""
    (folder / POINT).write_text("error")
    with pytest.raises(Unavailable):
        failpoints.hit(POINT)
    failpoints.hit(POINT)
    assert hits(folder) == [f"{POINT}.hit-{os.getpid()}"]


def test_an_error_can_be_the_callers_own(folder: Path) -> None:
    """What the place itself would raise, such as a model's failure."""
    (folder / POINT).write_text("error")
    with pytest.raises(ZeroDivisionError):
        failpoints.hit(POINT, ZeroDivisionError)


def test_it_can_wait_for_a_later_time(folder: Path) -> None:
    """`after 2` lets two pass and strikes the third."""
    (folder / POINT).write_text("error after 2")
    failpoints.hit(POINT)
    failpoints.hit(POINT)
    with pytest.raises(Unavailable):
        failpoints.hit(POINT)


@pytest.mark.parametrize("text", ["", "explode", "kill after", "kill after -1", "kill 2"])
def test_what_is_no_action_is_refused(folder: Path, text: str) -> None:
    """A slip of the pen is seen, and not taken for a cell that passed."""
    (folder / POINT).write_text(text)
    with pytest.raises(ValueError, match="kill, pause or error"):
        failpoints.hit(POINT)


PROGRAM = f"""
from pathlib import Path
import sys
from services.kit import failpoints
failpoints.arm(Path(sys.argv[1]))
failpoints.hit({POINT!r})
print("went on")
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}
    )


def test_a_kill_is_a_kill(tmp_path: Path) -> None:
    """The process dies of SIGKILL at the point."""
    (tmp_path / POINT).write_text("kill")
    with _start(tmp_path) as child:
        assert child.wait() == -signal.SIGKILL
        assert hits(tmp_path) == [f"{POINT}.hit-{child.pid}"]


def test_a_pause_lasts_until_it_is_ended(tmp_path: Path) -> None:
    """The process stands still at the point, and goes on after SIGCONT."""
    (tmp_path / POINT).write_text("pause")
    with _start(tmp_path) as child:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        os.kill(child.pid, signal.SIGCONT)
        assert child.communicate()[0] == "went on\n"


def test_a_service_that_others_can_reach_is_not_started_with_them(tmp_path: Path) -> None:
    """Off loopback it says which variable to unset, and ends."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "HANDMESH_LISTEN": "0.0.0.0:0",
        "HANDMESH_TLS_DIR": str(tmp_path),
        "HANDMESH_LOG": "memory",
        "HANDMESH_FAILPOINTS": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "services.session"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 1
    assert "Unset HANDMESH_FAILPOINTS" in done.stderr
