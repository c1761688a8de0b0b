"""Speaks to a runner over its unix socket. The other side may be a sandbox gone wrong: nothing it says is trusted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from services.kit.errors import Conflict, Exists, Full, Gone, Invalid, ServiceError, Unavailable

ANSWER_SECONDS = 10.0  # for anything but the end of an execution
MAX_LINE_BYTES = 32 << 20

_KINDS: Mapping[str, type[ServiceError]] = {
    "EXECUTION_ID_REUSED": Exists,
    "EXECUTION_UNKNOWN": Gone,
    "EPOCH_STALE": Conflict,
    "FULL": Full,
    "TOOL_UNKNOWN": Invalid,
    "TOOL_INPUT_INVALID": Invalid,
    "ID_INVALID": Invalid,
    "ARGUMENT_INVALID": Invalid,
    "RESOURCE_INVALID": Invalid,
    "FILE_NOT_FOUND": Gone,
}


class Unreachable(Exception):
    """The runner does not answer: it is gone, or it does not run."""


async def ask(socket: Path, request: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """Sends a request that has one answer, and returns it. Raises Unreachable, and what the runner refuses with."""
    async with contextlib.aclosing(lines(socket, request, seconds)) as answers:
        async for line in answers:
            return line
    raise Unreachable("it said nothing")


async def lines(socket: Path, request: Mapping[str, Any], seconds: float) -> AsyncGenerator[dict[str, Any], None]:
    """Sends a request and yields what is answered, for so many seconds at most. To be closed by who stops early."""
    until = asyncio.get_running_loop().time() + seconds
    try:
        async with connected(socket, until) as (reader, writer):
            writer.write(json.dumps(request).encode("ascii") + b"\n")
            while True:
                async with asyncio.timeout_at(until):  # not around the yield: it would cancel whoever reads slowly
                    await writer.drain()
                    line = await reader.readline()
                if not line:
                    return
                yield said(line)
    except (OSError, TimeoutError, ValueError) as error:  # ValueError: a line that is too long, or no JSON
        raise Unreachable(type(error).__name__) from None


@contextlib.asynccontextmanager
async def connected(
    socket: Path, until: float, buffer_bytes: int = MAX_LINE_BYTES
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """Connects through the folder's descriptor: a socket's path may have 107 bytes only.

    No line may be longer than `buffer_bytes`; twice as many are held of an answer that nobody reads.
    """
    folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        async with asyncio.timeout_at(until):
            reader, writer = await asyncio.open_unix_connection(
                f"/proc/self/fd/{folder}/{socket.name}", limit=buffer_bytes
            )
    finally:
        os.close(folder)
    try:
        yield reader, writer
    finally:
        writer.close()


def said(line: bytes) -> dict[str, Any]:
    """Reads an answer. Raises what the runner refuses with, and ValueError for what is no answer."""
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("no object")
    reason = answer.get("error")
    if reason is None:
        return answer
    kind = _KINDS.get(str(reason))
    if kind is None:
        raise Unavailable("BACKEND_UNAVAILABLE", "the sandbox's runner refuses for an unknown reason")
    epoch = {"epoch": int(answer["epoch"])} if "epoch" in answer else {}
    raise kind(str(reason), str(answer.get("message", ""))[:500], **epoch)
