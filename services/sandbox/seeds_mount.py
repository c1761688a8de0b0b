"""Has a seed mounted into a sandbox that runs, by the program `seeds_graft`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from services.kit.errors import Invalid
from services.kit.logs import Log
from services.sandbox import seeds_graft
from services.sandbox.hand import WORKSPACE

MOUNT_SECONDS = 20.0
_log = Log("services.sandbox.seeds_mount")


async def mount(pid: int, path: str, tree: Path) -> bool:
    """Shows a directory at a path below the workspace of a sandbox that `pid` is in; writes stay in the workspace.

    Idempotent. False, and nothing was changed, when this service or this kernel cannot do it. Raises Invalid
    (`RESOURCE_INVALID`) when something is at the path.
    """
    told = json.dumps({"pid": pid, "anchor": WORKSPACE, "path": path, "lower": str(tree)})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", "-B", seeds_graft.__file__, told),
        env={},
        cwd="/",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(MOUNT_SECONDS):
            _, complaint = await process.communicate()
    except TimeoutError:
        complaint = b"it does not end"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == seeds_graft.TAKEN:
        raise Invalid("RESOURCE_INVALID", f"it cannot be put there: something is at {path}", mount_path=path)
    if process.returncode != seeds_graft.MOUNTED:
        _log.info("seed not mounted", why=complaint[-300:].decode("utf-8", "replace").strip())
    return process.returncode == seeds_graft.MOUNTED
