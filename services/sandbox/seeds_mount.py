"""Has seeds mounted into sandboxes that run, by the program `seeds_graft`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from services.kit.errors import Invalid, Unavailable
from services.kit.logs import Log
from services.sandbox import seeds_graft
from services.sandbox.hand import WORKSPACE
from services.sandbox.programs import Program

MOUNT_SECONDS = 20.0
_COMMAND = (sys.executable, "-I", "-S", "-B", seeds_graft.__file__)
_log = Log("services.sandbox.seeds_mount")


class Mounter:
    """Starts the program for the next mount ahead of time: to start it takes five times as long as to mount."""

    def __init__(self) -> None:
        """Starts nothing before the first mount."""
        self._next: Program | None = None

    async def mount(self, pid: int, path: str, tree: Path) -> bool:
        """Shows a directory at a path below the workspace of a sandbox that `pid` is in; writes stay in the workspace.

        Idempotent. False, and nothing was changed, when this service or this kernel cannot do it. Raises Invalid
        (`RESOURCE_INVALID`) when something is at the path, Unavailable (`BACKEND_UNAVAILABLE`) when it took too long.
        """
        told = json.dumps({"pid": pid, "anchor": WORKSPACE, "path": path, "lower": str(tree)})
        ended = await (await self._ready()).end(MOUNT_SECONDS, told.encode())
        if self._next is None:
            self._next = _started()
        if ended.code == seeds_graft.TAKEN:
            raise Invalid("RESOURCE_INVALID", f"it cannot be put there: something is at {path}", mount_path=path)
        if ended.code is None:
            raise Unavailable("BACKEND_UNAVAILABLE", f"to mount a repository took more than {MOUNT_SECONDS:.0f} s")
        if ended.code != seeds_graft.MOUNTED:
            _log.info("seed not mounted", why=ended.complaint[-300:].decode("utf-8", "replace").strip())
        return ended.code == seeds_graft.MOUNTED

    async def _ready(self) -> Program:
        program, self._next = self._next, None
        if program is not None and not program.lives:
            await program.drop()
            program = None
        return program or _started()

    async def close(self) -> None:
        """Ends the program that waits."""
        program, self._next = self._next, None
        if program is not None:
            await program.drop()


def _started() -> Program:
    return Program(_COMMAND, {}, told=True)
