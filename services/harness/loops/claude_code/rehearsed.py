"""How the type is checked by `services.harness.conformance`: Claude Code's questions are led to the ports' model.

A small server speaks as much of the Messages API as Claude Code needs to be answered.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.harness.conformance import Stand
from services.harness.loops.claude_code import make_at
from services.harness.ports import Answer, HarnessType, ModelFailure, Ports

STEP = 40  # each moment costs a start of Claude Code or two
HEAD_BYTES = 1024 * 1024
_STATUS = {"MODEL_KEY_REFUSED": 401, "MODEL_OVERLOADED": 529}


def stand() -> Stand:
    """Returns the type as it is checked. Raises NotAvailable."""
    return Stand("claude_code", _open, step=STEP)


@asynccontextmanager
async def _open(ports: Ports) -> AsyncIterator[HarnessType]:
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await _serve(ports, reader, writer)
        except asyncio.CancelledError:
            pass  # whoever was asked has died
        finally:
            writer.transport.abort()
            connections.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=HEAD_BYTES)
    port = server.sockets[0].getsockname()[1]
    try:
        with tempfile.TemporaryDirectory() as folder:
            key = Path(folder) / "key"
            key.write_text("rehearsed")
            yield make_at(key, f"http://127.0.0.1:{port}", 8)
    finally:
        server.close()
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)
        await server.wait_closed()


async def _serve(ports: Ports, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one question."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.partition(":")[2]) for line in head.split("\r\n") if line.startswith("content-length:"))
        body = await reader.readexactly(length)
        try:
            answer = await ports.model.ask(body, lambda block, kind, piece: None)
        except ModelFailure as failure:
            error = json.dumps({"type": "error", "error": {"type": "api_error", "message": failure.message}})
            status, kind, said = _STATUS.get(failure.reason, 500), "application/json", error
        else:
            status, kind, said = 200, "text/event-stream", "".join(_events(answer))
        head = f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(said.encode())}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n{said}".encode())
        await writer.drain()
        writer.write_eof()
        await reader.read()  # until it has been heard
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # whoever asked is gone


def _events(answer: Answer) -> Iterator[str]:
    """Yields an answer as the API streams it."""
    usage = {"input_tokens": answer.usage.input_tokens, "output_tokens": answer.usage.output_tokens}
    message: dict[str, Any] = {"id": answer.message_id, "type": "message", "role": "assistant", "model": answer.model}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event("message_start", message=message)
    for index, block in enumerate(json.loads(answer.content)):
        begun, delta = _begun(block)
        yield _event("content_block_start", index=index, content_block=begun)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta={"stop_reason": answer.stop_reason, "stop_sequence": None}, usage=usage)
    yield _event("message_stop")


def _begun(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if block["type"] == "text":
        return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
