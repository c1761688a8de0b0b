"""The server's HTTP, spoken byte by byte: what other clients than the SDK may send."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handmesh.scripted_model import ScriptedModel
from handmesh.scripted_model.http1 import MAX_BODY_BYTES, MAX_HEAD_BYTES

BODY = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
KEY = b"x-api-key: k\r\nanthropic-version: 2026-10-21\r\n"


class Connection:
    """One raw connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Sends bytes and reads one response that has a length: status, headers, body."""
        self._writer.write(data)
        return await self.response()

    async def response(self, *, with_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Reads one response that has a length."""
        line, *fields = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(field.split(": ", 1) for field in fields)
        body = await self._reader.readexactly(int(headers.get("content-length", 0))) if with_body else b""
        return int(line.split(" ")[1]), headers, body

    async def rest(self) -> bytes:
        """Reads until the server closes the connection."""
        return await self._reader.read()

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        self._writer.write(data)

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    async with ScriptedModel("turns: [{say: [{text: hello}]}]") as model:
        host, port = model.base_url.removeprefix("http://").split(":")
        opened = Connection(*await asyncio.open_connection(host, int(port)))
        yield opened
        opened.close()


def post(body: bytes = BODY, headers: bytes = b"", path: bytes = b"/v1/messages", version: bytes = b"1.1") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"POST %s HTTP/%s\r\nHost: x\r\n%s%s%s\r\n%s" % (path, version, KEY, length, headers, body)


def error(response: tuple[int, dict[str, str], bytes]) -> tuple[int, str, str]:
    told = json.loads(response[2])["error"]
    return response[0], told["type"], told["message"]


async def test_a_connection_is_kept_alive(connection: Connection) -> None:
    """Several requests, right and wrong ones, go over one connection; each has its own request id."""
    responses = [await connection.ask(post()), await connection.ask(post(b"{")), await connection.ask(post())]
    assert [response[0] for response in responses] == [200, 400, 200]
    assert len({response[1]["request-id"] for response in responses}) == 3


async def test_requests_may_be_pipelined(connection: Connection) -> None:
    """Requests that are sent without waiting are answered in their order."""
    connection.send(post() + post(path=b"/nowhere") + post())
    assert [(await connection.response())[0] for _ in range(3)] == [200, 404, 200]


@pytest.mark.parametrize(
    "request_bytes",
    [post(headers=b"Connection: close\r\n"), post(version=b"1.0")],
    ids=["asked to close", "HTTP/1.0"],
)
async def test_a_connection_is_closed_when_the_client_wants_it(connection: Connection, request_bytes: bytes) -> None:
    """A client that says close, or speaks HTTP/1.0, sees the end of the connection behind its response."""
    assert (await connection.ask(request_bytes))[0] == 200
    assert await connection.rest() == b""


async def test_a_stream_is_chunked(connection: Connection) -> None:
    """A stream comes in chunks, one for each event, has an end of its own, and the connection can be used again."""
    streamed = json.dumps({**json.loads(BODY), "stream": True}).encode()
    connection.send(post(streamed) + post(headers=b"Connection: close\r\n"))
    data = await connection.rest()
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
    first, _, rest = body.partition(b"\r\n")
    assert body[len(first) + 2 :].startswith(b"event: message_start\ndata: ")
    assert rest[int(first, 16) :].startswith(b"\r\n")
    assert b"\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n" in data


async def test_a_body_may_come_in_chunks(connection: Connection) -> None:
    """A request body without a length is read by its chunks, extensions and trailers included."""
    head = b"POST /v1/messages HTTP/1.1\r\n" + KEY + b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"5;x=y\r\n%s\r\n%x\r\n%s\r\n0\r\nTrailer: t\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
    assert (await connection.ask(head + chunks))[0] == 200
    assert (await connection.ask(post()))[0] == 200


async def test_a_client_may_ask_whether_to_go_on(connection: Connection) -> None:
    """`Expect: 100-continue` is answered before the body is read."""
    whole = post(headers=b"Expect: 100-continue\r\n")
    connection.send(whole[: -len(BODY)])
    assert (await connection.response())[0] == 100
    assert (await connection.ask(BODY))[0] == 200


async def test_a_body_beyond_32_mb_is_too_large(connection: Connection) -> None:
    """A longer body is refused with 413 request_too_large, which the client sees although it sent all of it."""
    response = await connection.ask(post(b" " * (MAX_BODY_BYTES + 1)))
    assert error(response) == (413, "request_too_large", "Request exceeds the maximum size")
    assert response[1]["connection"] == "close"
    assert await connection.rest() == b""


async def test_a_body_of_32_mb_is_read(connection: Connection) -> None:
    """The limit itself is allowed: such a body is refused for what is in it."""
    response = await connection.ask(post(b" " * MAX_BODY_BYTES))
    assert error(response)[0:2] == (400, "invalid_request_error")


MALFORMED = {
    "no request line": (b"hello\r\n\r\n", 400),
    "an unknown version": (b"GET / HTTP/3.0\r\n\r\n", 400),
    "a header without a colon": (b"GET / HTTP/1.1\r\nhello\r\n\r\n", 400),
    "a header with a space in its name": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "headers that are too long": (b"GET / HTTP/1.1\r\nx: " + b"x" * MAX_HEAD_BYTES * 2 + b"\r\n\r\n", 431),
    "a length that is no number": (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
    "a length with a plus": (b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", 400),
    "a length and chunks": (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "an unknown encoding": (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
    "a compressed body": (b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 400),
    "a chunk of negative size": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", 400),
    "a chunk that is longer than it says": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n", 400),
    "a chunk that is too large": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", 413),
    "an endless chunk size": (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * MAX_HEAD_BYTES * 3,
        400,
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_request_is_refused_and_the_connection_closed(connection: Connection, case: str) -> None:
    """What is no HTTP gets an error in the API's shape, and then the end of the connection."""
    data, status = MALFORMED[case]
    response = await connection.ask(data)
    assert (response[0], json.loads(response[2])["type"]) == (status, "error")


async def test_a_peer_that_leaves_midway_harms_nobody() -> None:
    """A client that goes in the middle of a head, of a body or of a reply leaves a server that serves the next one."""
    async with ScriptedModel("turns: [{say: [{text: hello}], chunk: 1}]") as model:
        host, port = model.base_url.removeprefix("http://").split(":")
        streamed = json.dumps({**json.loads(BODY), "stream": True}).encode()
        for part in (
            b"POST /v1/mess",
            post()[:-5],
            post(streamed),
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5",
        ):
            leaving = Connection(*await asyncio.open_connection(host, int(port)))
            leaving.send(part)
            leaving.close()
        staying = Connection(*await asyncio.open_connection(host, int(port)))
        assert (await staying.ask(post()))[0] == 200
        staying.close()


ROUTES: dict[str, tuple[bytes, tuple[int, str, str]]] = {
    "an unknown path": (b"GET /v1/nothing HTTP/1.1\r\n\r\n", (404, "not_found_error", "Not found")),
    "a path that is no path": (b"GET //[ HTTP/1.1\r\n\r\n", (404, "not_found_error", "Not found")),
    "the root": (b"GET / HTTP/1.1\r\n\r\n", (404, "not_found_error", "Not found")),
    "a wrong method": (b"GET /v1/messages HTTP/1.1\r\n\r\n", (405, "invalid_request_error", "Method Not Allowed")),
    "no key": (
        b"POST /v1/messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        (401, "authentication_error", "x-api-key header is required"),
    ),
    "no version": (
        b"POST /v1/messages HTTP/1.1\r\nx-api-key: k\r\nContent-Length: 0\r\n\r\n",
        (400, "invalid_request_error", "anthropic-version: header is required"),
    ),
}


@pytest.mark.parametrize("case", ROUTES)
async def test_what_is_not_served_is_refused(connection: Connection, case: str) -> None:
    """Unknown paths, wrong methods and missing headers have the API's errors."""
    data, expected = ROUTES[case]
    assert error(await connection.ask(data)) == expected


async def test_a_query_is_let_through(connection: Connection) -> None:
    """Clients that add `?beta=true` reach the same route."""
    assert (await connection.ask(post(path=b"/v1/messages?beta=true")))[0] == 200


async def test_head_has_no_body(connection: Connection) -> None:
    """A HEAD request, which some clients use to see whether somebody is there, gets headers only."""
    connection.send(b"HEAD / HTTP/1.1\r\n\r\n")
    assert (await connection.response(with_body=False))[0] == 404
    assert (await connection.ask(post()))[0] == 200


async def test_every_byte_before_a_cut_arrives() -> None:
    """A cut drops the connection, not what was sent before it, however slowly the client reads."""
    turn = {"say": [{"text": "x" * 8_000_000}], "chunk": 1_000_000, "cut_after_bytes": 7_500_000}
    async with ScriptedModel({"turns": [turn]}) as model:
        host, port = model.base_url.removeprefix("http://").split(":")
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect((host, int(port)))
        opened = Connection(*await asyncio.open_connection(sock=narrow, limit=4096))
        opened.send(post(json.dumps({**json.loads(BODY), "stream": True}).encode()))
        body = (await opened.rest()).partition(b"\r\n\r\n")[2]
        received = 0
        while body:
            size, _, rest = body.partition(b"\r\n")
            received += len(rest[: int(size, 16)])
            body = rest[int(size, 16) + 2 :]
        assert received == 7_500_000
        opened.close()


async def test_requests_are_recorded_up_to_a_limit() -> None:
    """Only the newest requests are kept; a server that is told to keep none keeps none."""
    for kept in (2, 0):
        async with ScriptedModel("turns: [{say: [{text: hello}]}]", record=kept) as model:
            host, port = model.base_url.removeprefix("http://").split(":")
            opened = Connection(*await asyncio.open_connection(host, int(port)))
            for name in (b"/a", b"/b", b"/c"):
                await opened.ask(post(path=name))
            opened.close()
            paths: list[Any] = [request.path for request in model.requests]
            assert paths == ["/b", "/c"][:kept]
