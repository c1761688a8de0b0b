"""Child processes: started, waited for, ended, and never left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from handmesh.launcher.errors import PartFailed
from handmesh.launcher.processes import Command, Process, log_tail

HELD = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def command(directory: Path, program: str) -> Command:
    """Returns a part that runs a Python program."""
    return Command(
        name="part",
        arguments=[sys.executable, "-c", program],
        environment={"ONLY": "this"},
        log=directory / "logs" / "part.log",
        directory=directory,
    )


async def start(directory: Path, program: str) -> Process:
    """Starts a program that prints `up` and waits until it has."""
    process = Process.start(command(directory, program))

    async def is_up() -> bool:
        return "up" in log_tail(process.command.log)

    await process.ready(is_up, within=20)
    return process


async def never() -> bool:
    """A probe that no part satisfies."""
    return False


async def test_a_part_gets_only_the_environment_it_is_given(tmp_path: Path) -> None:
    """Nothing of the launcher's environment reaches a part, so no key in it can leak."""
    process = Process.start(command(tmp_path, "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"))
    assert await process.ended() == 0
    assert log_tail(process.command.log) == ["['ONLY']"]


async def test_a_part_has_its_own_process_group_and_a_private_log(tmp_path: Path) -> None:
    """Ctrl-C at the terminal reaches the launcher alone, and other users do not read what parts say."""
    process = await start(tmp_path, HELD)
    assert os.getpgid(process.pid) == process.pid
    assert process.command.log.stat().st_mode & 0o777 == 0o600
    await process.stop()


async def test_stop_ends_a_part_by_sigterm(tmp_path: Path) -> None:
    """A part that heeds SIGTERM is not killed, and a second stop gives the same answer."""
    process = await start(tmp_path, HELD)
    assert await process.stop() == -signal.SIGTERM
    assert await process.stop() == -signal.SIGTERM


async def test_stop_kills_a_part_that_ignores_sigterm(tmp_path: Path) -> None:
    """After the grace the part gets SIGKILL, so stopping always ends."""
    process = await start(tmp_path, STUBBORN)
    assert await process.stop(grace=0.05) == -signal.SIGKILL


async def test_stop_ends_the_children_of_a_part(tmp_path: Path) -> None:
    """Nothing of a part's process group is left when it has been stopped."""
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); {HELD}"
    process = await start(tmp_path, child)
    await process.stop()
    with pytest.raises(ProcessLookupError):
        while True:  # the killed child is a zombie until init has reaped it
            os.killpg(process.pid, 0)
            os.sched_yield()


async def test_a_part_that_dies_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """The error names the part, how it ended and the end of its log."""
    process = Process.start(command(tmp_path, "print('first', flush=True); raise SystemExit('no disk')"))
    with pytest.raises(
        PartFailed, match=r"part ended while it started \(exit code 1\)(.|\n)*first\n +no disk"
    ) as failure:
        await process.ready(never, within=20)
    assert (failure.value.part, failure.value.log) == ("part", tmp_path / "logs" / "part.log")


async def test_a_part_that_is_never_ready_is_reported(tmp_path: Path) -> None:
    """Waiting has a limit, and the part is left to its starter to stop."""
    process = await start(tmp_path, HELD)
    with pytest.raises(PartFailed, match=r"part was not ready within 0.01 s"):
        await process.ready(never, within=0.01)
    assert process.exit_code is None
    await process.stop()


async def test_kill_is_sigkill_and_start_goes_on_in_the_same_log(tmp_path: Path) -> None:
    """A killed part can be started again from its command; its log keeps what it said before."""
    process = await start(tmp_path, HELD)
    await process.kill()
    assert process.exit_code == -signal.SIGKILL
    again = Process.start(process.command)

    async def said_twice() -> bool:
        return log_tail(again.command.log) == ["up", "up"]

    await again.ready(said_twice, within=20)
    await again.stop()


def test_a_part_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    """Even SIGKILL of the launcher leaves no part behind: the kernel ends them."""
    launcher = textwrap.dedent(
        f"""
        import os, signal, sys
        from pathlib import Path
        from handmesh.launcher.processes import Command, Process
        part = Process.start(Command("part", [sys.executable, "-c", {HELD!r}], {{}}, Path("part.log"), Path(".")))
        print(part.pid, flush=True)
        while "up" not in Path("part.log").read_text():
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]}
    run = subprocess.run(
        [sys.executable, "-c", launcher], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    descriptor = Path("/proc") / run.stdout.strip()
    while descriptor.exists() and "State:\tZ" not in (descriptor / "status").read_text():
        os.sched_yield()  # ends by the test's time limit when the part lives on


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log does not grow for ever: above the limit it becomes `.log.old` at the part's next start."""
    monkeypatch.setattr("handmesh.launcher.processes.LOG_LIMIT", 4)
    part = command(tmp_path, "pass")
    part.log.parent.mkdir()
    part.log.write_text("12345")
    process = Process.start(part)
    process._child.wait()
    assert (tmp_path / "logs" / "part.log.old").read_text() == "12345"
    assert part.log.read_text() == ""
