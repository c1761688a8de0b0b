"""A model that costs next to nothing and tells when it was asked, as a process: `python -m bench.brain.model PORT`.

It speaks as much of the Messages API's stream as its callers need, and does what the last message tells it: a `Plan`
in JSON. Every text that it says begins with the moment in which the request was there, in ns of the monotonic clock,
which all processes of a machine share. `GET /seen` answers with these moments, and when each answer had been sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

READ_LIMIT = 4 << 20
KEPT = 20_000
MARK = '{"plan":'


@dataclass(frozen=True)
class Plan:
    """What to answer: after `delay_ms`, so many pieces of text, one every `every_ms`; a command is run before it."""

    command: str = ""
    delay_ms: float = 0.0
    pieces: int = 1
    every_ms: float = 0.0
    number: int = 0

    @property
    def text(self) -> str:
        """The message that asks for it."""
        return json.dumps({"plan": asdict(self)}, separators=(",", ":"))


def plan_of(request: dict[str, Any]) -> tuple[Plan, bool]:
    """Finds the newest plan of a request. Says whether its command has been run."""
    ran = False
    for message in reversed(request["messages"]):
        if message["role"] != "user":
            continue
        blocks = message["content"]
        for block in reversed([{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks):
            if block["type"] == "tool_result":
                ran = True
            elif block.get("text", "").startswith(MARK):
                return Plan(**json.loads(block["text"])["plan"]), ran
    raise ValueError("the request has no plan")


class Model:
    """Answers requests; remembers when."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []  # number of the plan, when asked, when all was sent (0: not yet)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection to its end."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(line[15:]) for line in head.lower().split("\r\n") if line[:15] == "content-length:"), 0
                )
                body = await reader.readexactly(length)
                asked = time.monotonic_ns()
                if head.startswith("GET"):
                    await _whole(writer, {"seen": self.seen})
                else:
                    await self._answer(json.loads(body), writer, asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # who asked has left
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter, asked: int) -> None:
        plan, ran = plan_of(request)
        row = [plan.number, asked, 0]
        self.seen.append(row)
        del self.seen[:-KEPT]
        if plan.delay_ms:
            await asyncio.sleep(plan.delay_ms / 1000)
        if request.get("stream"):
            await _stream(writer, plan, ran, asked)
        else:
            content = [_call(plan, asked)] if plan.command and not ran else [{"type": "text", "text": f"{asked} done"}]
            await _whole(writer, _message(asked) | {"content": content, "stop_reason": _reason(plan, ran)})
        row[2] = time.monotonic_ns()


def _message(asked: int) -> dict[str, Any]:
    return {
        "id": f"msg_{asked}",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 10},
    }


def _call(plan: Plan, asked: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{asked}", "name": "bash", "input": {"command": plan.command}}


def _reason(plan: Plan, ran: bool) -> str:
    return "tool_use" if plan.command and not ran else "end_turn"


async def _stream(writer: asyncio.StreamWriter, plan: Plan, ran: bool, asked: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    first = [_event("message_start", message=_message(asked))]
    if _reason(plan, ran) == "tool_use":
        call = _call(plan, asked)
        given = {"type": "input_json_delta", "partial_json": json.dumps(call["input"])}
        _send(writer, *first, _event("content_block_start", index=0, content_block=call | {"input": {}}))
        _send(writer, _event("content_block_delta", index=0, delta=given))
    else:
        _send(writer, *first, _event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
        for piece in range(plan.pieces):
            if piece and plan.every_ms:
                await asyncio.sleep(plan.every_ms / 1000)
            text = {"type": "text_delta", "text": f"{asked} " if not piece else f"piece {piece} "}
            _send(writer, _event("content_block_delta", index=0, delta=text))
    ended = _event("message_delta", delta={"stop_reason": _reason(plan, ran)}, usage={"output_tokens": 10})
    _send(writer, _event("content_block_stop", index=0), ended, _event("message_stop"))
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _send(writer: asyncio.StreamWriter, *events: bytes) -> None:
    data = b"".join(events)
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def _whole(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)
    )
    await writer.drain()


async def main(port: int) -> None:
    """Serves until it is killed."""
    server = await asyncio.start_server(Model().serve, "127.0.0.1", port, limit=READ_LIMIT, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
