"""Starts, finds and ends runners that are plain processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from services.kit.errors import Refused, Unavailable
from services.sandbox.hand import Recipe
from services.sandbox.local_process import LocalProcess, listen
from services.sandbox.place import SOCKET
from services.sandbox.records import Facts, Record
from services.sandbox.runner_archive import archive, told

MARK = "HANDMESH_SANDBOX_ID"
# Leaves the service behind: an own session, no parent. Says the number of the process that stays.
_LAUNCH = """
import os, sys
pid = os.fork()
if pid:
    print(pid)
    sys.exit()
os.setsid()
os.dup2(2, 1)
os.execv(sys.executable, sys.argv[1:])
"""
_LAUNCH_SECONDS = 20.0
_END_SECONDS = 5.0
_LOG = "start.log"


class Unisolated:
    """A `Place` (see there) that is no place: the runner and its tools see and may do what the service may."""

    name = "process"
    own_network = False

    def __init__(self, allowed: bool) -> None:
        """Takes whether the operator allows it."""
        self._allowed = allowed

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`."""
        if not self._allowed:
            raise Refused(
                "ISOLATION_UNAVAILABLE",
                "the process backend runs tools without any isolation; set HANDMESH_ALLOW_UNISOLATED=1 to allow it",
                backend=self.name,
            )
        return ("isolation: there is none", "memory", "cpus", "processes", "disk")

    async def prepare(self, recipe: Recipe) -> None:
        """See `Place.prepare`. There is nothing to make."""

    async def boot(self, record: Record, recipe: Recipe) -> Facts:
        """See `Place.boot`."""
        return await asyncio.to_thread(self._boot, record, recipe)

    def _boot(self, record: Record, recipe: Recipe) -> Facts:
        workspace, runner = record.folder / "workspace", record.folder / "runner.pyz"
        workspace.mkdir()
        runner.write_bytes(archive())
        with listen(record.door, SOCKET) as listener, (record.folder / _LOG).open("wb") as log:
            config = told(
                recipe,
                workspace=str(workspace),
                records=str(record.folder / "executions"),
                anchor=str(record.door),
                socket_fd=listener.fileno(),
                env={MARK: record.sandbox_id},
                rlimits={"fsize": recipe.limits.disk_bytes},
            )
            python = [sys.executable, "-I", "-S", "-B"]
            said = subprocess.run(
                [*python, "-c", _LAUNCH, *python, str(runner), config],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={},
                cwd=workspace,
                check=True,
                timeout=_LAUNCH_SECONDS,
            )
        process = LocalProcess.of(int(said.stdout))
        if process is None:
            raise Unavailable("BACKEND_UNAVAILABLE", "the runner ended at once", backend=self.name)
        return process.facts()

    async def lives(self, record: Record) -> bool:
        """See `Place.lives`."""
        process = LocalProcess.known(record.facts)
        return process is not None and process.lives()

    async def destroy(self, record: Record) -> None:
        """See `Place.destroy`."""
        process = LocalProcess.known(record.facts)
        if process is not None and not await process.end(signal.SIGTERM, _END_SECONDS):  # it kills its tools first
            await process.end()
        for pid in _marked(record.sandbox_id):
            survivor = LocalProcess.of(pid)
            if survivor is not None:
                await survivor.end()

    async def graft(self, record: Record, path: str, tree: Path) -> bool:
        """See `Place.graft`. There is no view of its own to mount it in."""
        return False

    async def complaint(self, record: Record) -> str:
        """See `Place.complaint`."""
        try:
            return (record.folder / _LOG).read_text(errors="replace").strip()[-500:]
        except FileNotFoundError:
            return ""

    async def tidy(self, known: Callable[[], Sequence[Record]]) -> None:
        """See `Place.tidy`. A runner without a record ends itself."""

    async def close(self) -> None:
        """See `Place.close`."""


def _marked(sandbox_id: str) -> list[int]:
    """Finds this user's processes that were started for a sandbox and carry its mark."""
    mark = f"{MARK}={sandbox_id}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # gone meanwhile, or another user's
    return found
