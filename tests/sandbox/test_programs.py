"""Programs of this machine end in their time, whatever they and what they have started do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from services.sandbox import programs
from services.sandbox.programs import Ended, Program, SaidTooMuch, run
from services.sandbox.seeds_git import Git

ENV = {"PATH": "/usr/bin:/bin"}
LONG = 60.0


def gone(pid: int) -> bool:
    """Tells whether a process has ended, or is about to."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_what_a_program_says_and_how_it_ends() -> None:
    """Both streams, whole, and its exit code."""
    assert await run(["sh", "-c", "echo out; echo err >&2; exit 7"], ENV, LONG) == Ended(7, b"out\n", b"err\n")
    big = await run(["head", "-c", "3000000", "/dev/zero"], ENV, LONG)
    assert (big.code, len(big.said)) == (0, 3_000_000)


async def test_a_process_that_it_leaves_behind_holds_nothing_up() -> None:
    """The output that it holds open is not waited for, and it is killed."""
    ended = await run(["sh", "-c", "sleep 1000 & echo $!"], ENV, LONG)
    assert ended.code == 0
    assert gone(int(ended.said))


async def test_one_that_is_in_no_group_of_ours_holds_nothing_up_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be found, but its program has ended for us."""
    monkeypatch.setattr(programs, "KILL_SECONDS", 0.1)
    ended = await run(["sh", "-c", "setsid sleep 1000 & echo $!"], ENV, LONG)
    os.kill(int(ended.said), signal.SIGKILL)
    assert ended.code == 0


async def test_a_program_that_takes_too_long_is_killed_with_all_that_it_has_started() -> None:
    """Its answer says so."""
    ended = await run(["sh", "-c", "sleep 1000 & echo $!; sleep 1000"], ENV, 0.5)
    assert ended.code is None
    assert gone(int(ended.said))


async def test_a_program_that_says_too_much_is_killed() -> None:
    """Nobody holds what a hostile host says without an end."""
    with pytest.raises(SaidTooMuch):
        await run(["cat", "/dev/zero"], ENV, LONG)


async def test_what_looks_at_it_may_end_it() -> None:
    """What `look` and `take` raise is raised, and the program is killed."""

    async def look() -> None:
        raise OverflowError

    def take(_: bytes) -> None:
        raise ArithmeticError

    with pytest.raises(OverflowError):
        await run(["sleep", "1000"], ENV, LONG, look=look)
    with pytest.raises(ArithmeticError):
        await run(["sh", "-c", "echo; sleep 1000"], ENV, LONG, take=take)


async def test_a_program_may_wait_for_what_it_is_told() -> None:
    """It is told once; one that is not wanted after all is dropped."""
    one, two = (Program(["cat"], ENV, told=True) for _ in range(2))
    assert await one.end(LONG, b"told") == Ended(0, b"told", b"")
    assert two.lives
    await two.drop()
    assert not two.lives


async def test_git_is_not_waited_for_when_it_leaves_a_process_behind(tmp_path: Path) -> None:
    """As `gc` in the background would: the repository's lock would never be free again."""
    said = await Git().local(tmp_path, "-c", "alias.nap=!sleep 1000 & echo $!;:", "nap")
    assert gone(int(said))
