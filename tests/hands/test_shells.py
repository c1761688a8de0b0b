"""Shells that are made before their command is known."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handmesh.hand.shells import Shells


@pytest.fixture
async def shells(tmp_path: Path) -> AsyncIterator[Shells]:
    """Shells in `box` of the test's folder, with one that waits already."""
    (tmp_path / "box").mkdir()
    made = Shells(tmp_path / "box", {"PATH": "/usr/bin:/bin", "GIVEN": "yes"})
    await said(made, "true")
    await until_spare(made)
    yield made
    made.close()


async def said(shells: Shells, command: str) -> tuple[int, str]:
    """Runs a command; returns its exit code and its output."""
    heard = bytearray()
    code = await shells.run(command, heard.extend)
    return code, heard.decode()


async def until_spare(shells: Shells) -> int:
    """Waits until a shell waits; returns its process."""
    async with asyncio.timeout(10):
        while shells._spare is None:
            await asyncio.sleep(0)
    return shells._spare._process.pid


def runs(process: int) -> bool:
    """Says whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_each_command_has_a_fresh_bash_of_its_own(shells: Shells, tmp_path: Path) -> None:
    """It begins in the directory, with the variables, no input, nothing of the one before, nothing of how it came."""
    waiting = await until_spare(shells)
    assert await said(shells, "cd /; left=1; echo $$") == (0, f"{waiting}\n")
    command = (
        "pwd; echo $GIVEN,$left,$__handmesh; cat; for fd in {3..40}; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; true"
    )
    await until_spare(shells)
    assert await said(shells, command) == (0, f"{tmp_path}/box\nyes,,\n")
    assert await said(shells, "echo one\nexit 3") == (3, "one\n")
    assert await said(shells, "kill -9 $$") == (-9, "")
    assert await said(shells, "yes | head -1; echo 'a\"b' # c") == (0, 'y\na"b\n')


async def test_what_a_command_leaves_behind_is_ended(shells: Shells) -> None:
    """Also when it holds the output open; the result does not wait for it."""
    async with asyncio.timeout(30):
        code, told = await said(shells, "sleep 1000 & echo $!; echo two")
    left, two = told.split()
    assert (code, two) == (0, "two")
    async with asyncio.timeout(10):  # until the kernel has delivered it
        while runs(int(left)):
            await asyncio.sleep(0.01)


async def test_a_command_that_is_cancelled_is_killed(shells: Shells) -> None:
    """With its whole process group; the next one has a shell all the same."""
    heard = bytearray()
    running = asyncio.create_task(shells.run("echo $$; sleep 1000", heard.extend))
    async with asyncio.timeout(10):
        while not heard:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not runs(int(heard))
    assert await said(shells, "echo on") == (0, "on\n")


async def test_a_shell_that_does_not_fit_any_more_is_not_used(shells: Shells, tmp_path: Path) -> None:
    """One that was killed while it waited, or whose directory was made anew: the command runs, once, in the new one."""
    waiting = await until_spare(shells)
    os.kill(waiting, signal.SIGKILL)
    async with asyncio.timeout(10):
        while runs(waiting):
            await asyncio.sleep(0.01)
    assert await said(shells, "echo once") == (0, "once\n")
    waiting = await until_spare(shells)
    (tmp_path / "box").rename(tmp_path / "old")
    (tmp_path / "box").mkdir()
    assert await said(shells, f"touch here; ls; [ $$ != {waiting} ]") == (0, "here\n")
    await until_spare(shells)
    (tmp_path / "box" / "here").unlink()
    (tmp_path / "box").rmdir()
    with pytest.raises(FileNotFoundError):
        await said(shells, "true")
    (tmp_path / "box").mkdir()


async def test_nothing_waits_when_it_is_closed(shells: Shells) -> None:
    """The shell that waits has ended, and no other is made."""
    waiting = await until_spare(shells)
    shells.close()
    assert not runs(waiting)
