"""Claude Code's process as the SDK's transport: lines of JSON over its standard input and output.

The SDK's own transport passes the harness's environment on, and ends its process gently. Here the environment is the
one that was built, and the end is SIGKILL to the whole process group: nothing in it is worth waiting for.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claude_agent_sdk import CLIConnectionError, ProcessError, Transport, project_key_for_directory

LINE_BYTES = 64 * 1024 * 1024  # of one message: a request of the API has at most 32 MB
LAUNCH = Path(__file__).with_name("launch.py")


class Process(Transport):
    """One process (see the SDK's `Transport`)."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        self._argv = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), *argv]
        self._environment = dict(environment)
        self._cwd = cwd
        self._process: asyncio.subprocess.Process | None = None

    async def connect(self) -> None:
        """Starts it."""
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environment,
            cwd=self._cwd,
            start_new_session=True,
            limit=LINE_BYTES,
        )

    async def write(self, data: str) -> None:
        """Sends a line."""
        if self._process is None or self._process.stdin is None or self._process.returncode is not None:
            raise CLIConnectionError("Claude Code does not run")
        try:
            self._process.stdin.write(data.encode())
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise CLIConnectionError("Claude Code has gone") from None

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yields what it says until it ends. Raises ProcessError when it ends with anything but 0."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(b"{"):
                yield json.loads(line)
        status = await self._process.wait()
        if status:
            raise ProcessError("Claude Code has ended", exit_code=status)

    def kill(self) -> None:
        """Kills it and all that it has started. At once."""
        if self._process is not None and self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    async def close(self) -> None:
        """Kills it and waits until it has gone."""
        self.kill()
        if self._process is not None:
            await self._process.wait()

    def is_ready(self) -> bool:
        """Tells whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def end_input(self) -> None:
        """Says nothing more to it."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def project_of(work: Path) -> str:
    """Returns Claude Code's name for a directory that it works in."""
    return str(project_key_for_directory(work))
