"""The scripted model as an HTTP server: sockets, clocks and waiting are here and nowhere else in this package."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from handmesh.scripted_model import http1
from handmesh.scripted_model.errors import ApiError
from handmesh.scripted_model.http1 import BadHttp, HttpRequest, send
from handmesh.scripted_model.models import get_model, list_models
from handmesh.scripted_model.playback import Outcome, Playback, Reply
from handmesh.scripted_model.reading import load_script
from handmesh.scripted_model.script import Cut, ErrorFrame, Pace, Script, Silence
from handmesh.scripted_model.stream import error_event, events, message
from handmesh.scripted_model.usage import MIN_CACHED_TOKENS

RECORDED_REQUESTS = 1_000  # the newest ones that are kept for assertions
SILENCE_SECONDS = 3_600.0  # a scripted silence ends at last, so that no connection is held for ever
SECRET_HEADERS = ("x-api-key", "authorization")


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it came in, for assertions. Keys are left out of `headers`.

    `body` is the parsed JSON (None if it was none or had none), `status` what was answered, `turn` the place in the
    script that was played, such as `conversations[0].steps[1]`, and `error` the message of a refusal.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any] | None = field(repr=False)
    status: int
    turn: str | None
    error: str | None


class ScriptedModel:
    """A server that plays a script, for `async with`.

        async with ScriptedModel(script) as model:
            client = AsyncAnthropic(base_url=model.base_url, api_key="any")

    `script` is a Script, a Path to a YAML file, YAML text, a parsed document, or None for the one that ships with
    handmesh. With `api_key` other keys get a 401. `port` 0 takes a free one. `record` is how many requests
    `requests` keeps. Raises ScriptError for a script that cannot be played, OSError for an address in use.
    """

    def __init__(
        self,
        script: Script | Path | str | Mapping[str, Any] | None = None,
        *,
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        record: int = RECORDED_REQUESTS,
        min_cached_tokens: int = MIN_CACHED_TOKENS,
    ) -> None:
        self.script = load_script(script)
        self.requests: deque[RecordedRequest] = deque(maxlen=record)
        self._playback = Playback(self.script, api_key=api_key, min_cached_tokens=min_cached_tokens)
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        """Returns the URL to give to a client as its base URL; RuntimeError before the start."""
        if self._server is None:
            raise RuntimeError("the scripted model is not running; use it with `async with`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=http1.MAX_HEAD_BYTES, backlog=1024
        )
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts to serve a connection; its task is kept to be ended with the server."""
        if self._server is None:  # accepted in the moment in which the server was closed
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # so that what was sent is out before a connection is cut
        try:
            while await self._serve_request(reader, writer):
                pass
        except (ConnectionError, TimeoutError):
            pass  # the peer left or stopped reading; there is nobody to tell
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Reads and answers one request; returns whether the connection is fit for another."""
        try:
            request = await http1.read_request(reader, writer)
        except BadHttp as bad:
            kind = "request_too_large" if bad.status == 413 else "invalid_request_error"
            await self._refuse(writer, None, None, ApiError(bad.status, kind, bad.message), closing=True)
            return False
        if request is None:
            return False
        return await self._answer(request, reader, writer) and request.keeps_alive

    async def _answer(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        match request.method, request.path.rstrip("/").split("/"):
            case "POST", ["", "v1", "messages"]:
                return await self._create(request, reader, writer)
            case "POST", ["", "v1", "messages", "count_tokens"]:
                counted = self._playback.check_headers(request.headers)
                result = counted or self._playback.count(request.headers, request.body)
                answer = result if isinstance(result, ApiError) else {"input_tokens": result}
            case "GET", ["", "v1", "models"]:
                answer = self._playback.check_headers(request.headers) or list_models()
            case "GET", ["", "v1", "models", name]:
                answer = self._playback.check_headers(request.headers) or get_model(name)
            case _, ["", "v1", "messages"] | ["", "v1", "messages", "count_tokens"] | ["", "v1", "models", *_]:
                answer = ApiError(405, "invalid_request_error", "Method Not Allowed")
            case _:
                answer = ApiError(404, "not_found_error", "Not found")
        if isinstance(answer, ApiError):
            return await self._refuse(writer, request, None, answer)
        self._record(request, None, 200, None)
        return await self._send_json(writer, request, 200, answer, _request_id())

    async def _create(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        refused = self._playback.check_headers(request.headers)
        now = asyncio.get_running_loop().time()
        outcome = Outcome(None, None, refused) if refused else self._playback.create(request.headers, request.body, now)
        if isinstance(outcome.result, ApiError):
            return await self._refuse(writer, request, outcome, outcome.result)
        reply = outcome.result
        self._record(request, outcome, 200, None)
        await asyncio.sleep(reply.turn.pace.delay_ms / 1000)
        if reply.stream:
            return await self._stream(reply, reader, writer)
        return await self._send_whole(reply, request, reader, writer)

    async def _stream(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        headers |= {"transfer-encoding": "chunked", "request-id": _request_id()}
        await send(writer, http1.head(200, headers))
        fault, pace, sent = reply.turn.fault, reply.turn.pace, 0
        for count, event in enumerate(events(reply.answer, pace.chunk)):
            match fault:
                case Cut(events=limit) if limit is not None and count >= limit:
                    return _abort(writer)
                case Silence(events=limit) if count >= limit:
                    return await _stay_silent(reader)
                case ErrorFrame(events=limit, error=error) if count >= limit:
                    await send(writer, http1.chunk(error_event(error.type, error.message).encode()) + http1.chunk(b""))
                    return True
            data = event.encode()
            if isinstance(fault, Cut) and fault.bytes is not None and sent + len(data) > fault.bytes:
                rest = data[: fault.bytes - sent]
                await send(writer, http1.chunk(rest) if rest else b"")
                return _abort(writer)
            await self._wait_between(event.name, pace)
            await send(writer, http1.chunk(data))
            sent += len(data)
        await send(writer, http1.chunk(b""))
        return True

    async def _wait_between(self, event: str, pace: Pace) -> None:
        if event == "content_block_delta" and pace.chunk_delay_ms:
            await asyncio.sleep(pace.chunk_delay_ms / 1000)

    async def _send_whole(
        self, reply: Reply, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Sends a reply that is no stream; faults that speak of events hit it as a whole."""
        body = message(reply.answer)
        match reply.turn.fault:
            case Cut(bytes=limit):
                data = json.dumps(body, ensure_ascii=False).encode()
                headers = {"content-type": "application/json", "content-length": str(len(data))}
                await send(writer, http1.head(200, headers) + data[: min(limit or 0, len(data) - 1)])
                return _abort(writer)
            case Silence():
                return await _stay_silent(reader)
            case ErrorFrame(error=error):
                return await self._send_error(writer, request, error)
            case _:
                return await self._send_json(writer, request, 200, body, _request_id())

    async def _refuse(
        self,
        writer: asyncio.StreamWriter,
        request: HttpRequest | None,
        outcome: Outcome | None,
        error: ApiError,
        *,
        closing: bool = False,
    ) -> bool:
        self._record(request, outcome, error.status, error.message)
        return await self._send_error(writer, request, error, closing=closing)

    async def _send_error(
        self, writer: asyncio.StreamWriter, request: HttpRequest | None, error: ApiError, *, closing: bool = False
    ) -> bool:
        extra = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
        extra |= {"connection": "close"} if closing else {}
        request_id = _request_id()
        return await self._send_json(writer, request, error.status, error.body(request_id), request_id, extra)

    async def _send_json(
        self,
        writer: asyncio.StreamWriter,
        request: HttpRequest | None,
        status: int,
        body: Any,
        request_id: str,
        extra: Mapping[str, str] | None = None,
    ) -> bool:
        data = json.dumps(body, ensure_ascii=False).encode()
        headers = {"content-type": "application/json", "content-length": str(len(data)), "request-id": request_id}
        bodiless = request is not None and request.method == "HEAD"
        await send(writer, http1.head(status, {**headers, **(extra or {})}) + (b"" if bodiless else data))
        return True

    def _record(self, request: HttpRequest | None, outcome: Outcome | None, status: int, error: str | None) -> None:
        if request is None:
            return
        headers = {name: value for name, value in request.headers.items() if name not in SECRET_HEADERS}
        body, turn = (outcome.body, outcome.turn_key) if outcome else (None, None)
        self.requests.append(RecordedRequest(request.method, request.path, headers, body, status, turn, error))


def _request_id() -> str:
    return f"req_011{os.urandom(10).hex()}"


def _abort(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def _stay_silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            await reader.read(1)
    except TimeoutError:
        pass
    return False
