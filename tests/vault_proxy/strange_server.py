"""An MCP server that behaves as a test wants: it speaks the handshake protocol over plain HTTP, or whatever it is told.

A peer on the wire, in this process: it records every request that reaches it, headers and all.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

SESSION = "server-session"
TOOL = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int = 0

    @property
    def rpc(self) -> dict[str, Any]:
        """The JSON-RPC message, empty when there is none."""
        found: dict[str, Any] = json.loads(self.body) if self.body else {}
        return found


@dataclass(frozen=True)
class Reply:
    """An answer. `hold` keeps the connection open after the body; `hang_up` closes it in the middle. `parts` follow the
    body as they come, to None."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hold: bool = False
    hang_up: bool = False
    parts: asyncio.Queue[bytes | None] | None = None


def result(request: Request, value: dict[str, Any]) -> Reply:
    """Answers a JSON-RPC request."""
    body = json.dumps({"jsonrpc": "2.0", "id": request.rpc.get("id"), "result": value}).encode()
    return Reply(200, body, {"Content-Type": "application/json"})


def error(request: Request, code: int, message: str, status: int = 200) -> Reply:
    """Answers a JSON-RPC request with an error."""
    problem = {"code": code, "message": message}
    body = json.dumps({"jsonrpc": "2.0", "id": request.rpc.get("id"), "error": problem}).encode()
    return Reply(status, body, {"Content-Type": "application/json"})


Strange = TypeVar("Strange", bound="StrangeServer")


@dataclass
class StrangeServer:
    """`answer` may answer any request; None means as a good server does. `call` answers tool calls."""

    tools: list[Any] = field(default_factory=lambda: [TOOL])
    call: Callable[[Request], Reply | None] = lambda request: None
    answer: Callable[[Request], Reply | None] = lambda request: None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    session: str = SESSION
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def end_connections(self) -> None:
        """Closes what callers keep open, and waits until all of it has ended."""
        for task, writer in self.serving.items():
            task.cancel()
            writer.transport.abort()
        if self.serving:
            await asyncio.wait(self.serving)

    def calls(self) -> list[dict[str, Any]]:
        """Returns the arguments of all tool calls that came."""
        return [each.rpc["params"] for each in self.requests if each.rpc.get("method") == "tools/call"]

    def heard(self, text: str) -> bool:
        """Says whether a text was in any request."""
        return any(text in repr(each) for each in self.requests)

    def reply(self, request: Request) -> Reply:
        """Answers as it is told, else as servers of the handshake protocol do."""
        self.requests.append(request)
        told = self.answer(request)
        if told is not None:
            return told
        match request.rpc.get("method"):
            case "initialize":
                capabilities = {"tools": {}}
                value = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": capabilities,
                    "serverInfo": {"name": "s", "version": "1"},
                }
                good = result(request, value)
                return Reply(200, good.body, {**good.headers, "Mcp-Session-Id": self.session})
            case "tools/list":
                return result(request, {"tools": self.tools})
            case "tools/call":
                told = self.call(request)
                said = request.rpc["params"].get("arguments", {}).get("text", "")
                return told or result(request, {"content": [{"type": "text", "text": f"you said {said}"}]})
            case "notifications/initialized" | "notifications/cancelled":
                return Reply(202)
            case _:
                return Reply(400 if request.method == "POST" else 405, b"what?")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speaks HTTP on one connection."""
        self.connections += 1
        number = self.connections
        task = asyncio.current_task()
        assert task is not None
        self.serving[task] = writer
        task.add_done_callback(self.serving.pop)
        try:
            while (request := await _read(reader, number)) is not None:
                reply = self.reply(request)
                headers = {"Content-Length": str(len(reply.body)), **reply.headers}
                if reply.hold or reply.hang_up or reply.parts:
                    del headers["Content-Length"]
                    headers["Transfer-Encoding"] = "chunked"
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                writer.write(f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode())
                chunked = reply.body and (reply.hold or reply.parts)
                writer.write(b"%x\r\n%s\r\n" % (len(reply.body), reply.body) if chunked else reply.body)
                await writer.drain()
                if reply.parts:
                    await _stream(writer, reply.parts)
                    continue
                if reply.hold:
                    await reader.read()  # until the other side goes away
                if reply.hold or reply.hang_up:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):  # the last: a chunk that breaks off
            pass
        finally:
            writer.close()


async def _stream(writer: asyncio.StreamWriter, parts: asyncio.Queue[bytes | None]) -> None:
    while (part := await parts.get()) is not None:
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _read(reader: asyncio.StreamReader, number: int) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body, number)


@dataclass
class OlderServer(StrangeServer):
    """Speaks the transport that was before streamable HTTP. `endpoint` is what it says where to post to."""

    endpoint: str = "/messages?session=1"
    took: Reply = Reply(202)
    streams: list[asyncio.Queue[bytes | None]] = field(default_factory=list)

    def say(self, message: bytes) -> None:
        """Says something on the newest stream."""
        self.streams[-1].put_nowait(b"event: message\r\ndata: %s\r\n\r\n" % message)

    def end(self) -> None:
        """Ends all streams, as a restart does."""
        for stream in self.streams:
            stream.put_nowait(None)

    def reply(self, request: Request) -> Reply:
        if request.method == "GET":
            self.requests.append(request)
            self.streams.append(asyncio.Queue())
            first = f"event: endpoint\ndata: {self.endpoint}\n\n".encode()
            return Reply(200, first, {"Content-Type": "text/event-stream"}, parts=self.streams[-1])
        if request.path != self.endpoint:
            return Reply(405, b"only GET")
        answer = super().reply(request)
        if answer.body and self.took.status == 202:
            self.say(answer.body)
        return self.took


@asynccontextmanager
async def strange_server(
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    kind: type[Strange] = StrangeServer,  # type: ignore[assignment]
    **behaviour: Any,
) -> AsyncIterator[Strange]:
    """Runs one on a free port."""
    strange = kind(**behaviour)
    server = await asyncio.start_server(strange.serve, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    strange.url = f"{'https' if tls else 'http'}://{host}:{port}/mcp"
    try:
        yield strange
    finally:
        if isinstance(strange, OlderServer):
            strange.end()
        server.close()
        await strange.end_connections()
