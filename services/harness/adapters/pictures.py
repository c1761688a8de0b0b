"""Pictures over a process for each image: what decodes images from anywhere never shares memory with a key.

The process gets nothing of the environment, so much memory and time, and is gone after its one image.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.kit.logs import Log

SECONDS = 20.0  # for one image
AT_ONCE = 1  # each takes memory and a processor
MAX_RESULT_BYTES = 8 * 1024 * 1024
_PROGRAM = Path(__file__).with_name("shrink.py")

_log = Log("services.harness.adapters.pictures")


class ProcessPictures:
    """Makes images smaller (see `Pictures`)."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)  # protects the machine, not any data

    async def shrink(self, data: bytes) -> tuple[bytes, str] | None:
        """Returns a smaller image and its media type (see `Pictures.shrink`)."""
        async with self._turns:
            return await self._shrunk(data)

    async def _shrunk(self, data: bytes) -> tuple[bytes, str] | None:
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(_PROGRAM), stdin=pipe, stdout=pipe, stderr=nothing, env={}, cwd="/"
        )
        try:
            async with asyncio.timeout(SECONDS):
                made, _ = await process.communicate(data)
        except TimeoutError:
            _log.warning("image took too long", size_bytes=len(data), seconds=SECONDS)
            return None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0 or not made or len(made) > MAX_RESULT_BYTES:
            _log.info("image was not made smaller", size_bytes=len(data), exit_code=process.returncode)
            return None
        media_type, _, smaller = made.partition(b"\n")
        return smaller, media_type.decode("ascii", "replace")
