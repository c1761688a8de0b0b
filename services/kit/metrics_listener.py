"""Answers `GET /metrics`, and nothing else: a bounded server of one page, for Prometheus to scrape."""

from __future__ import annotations

import asyncio

from services.kit import metrics
from services.kit.logs import Log

HEAD_BYTES = 8 * 1024  # of a request
MOST_CONNECTIONS = 16
ASK_SECONDS = 5.0  # for a request to come
ANSWER_SECONDS = 10.0  # for an answer to be taken
LAG_EVERY = 0.5

LOOP_LAG = metrics.Histogram(
    "handmesh_event_loop_lag_seconds",
    "How much later than asked the event loop came to a task: whatever blocks the process shows here.",
)

_log = Log("services.kit.metrics")


class Listener:
    """One listener. `address` is `host:port`; port 0 takes any, and `address` then says which."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._server: asyncio.Server | None = None
        self._lag: asyncio.Task[None] | None = None
        self._open = 0

    async def start(self) -> None:
        """Opens the port. Raises OSError when it cannot be had."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port), limit=HEAD_BYTES)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        self._lag = asyncio.create_task(_measure_lag(), name="event loop lag")
        _log.info("metrics", listen=self.address)

    async def stop(self) -> None:
        """Closes the port."""
        if self._lag is not None:
            self._lag.cancel()
            await asyncio.wait({self._lag})
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MOST_CONNECTIONS:
            writer.close()
            return
        self._open += 1
        try:
            async with asyncio.timeout(ASK_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await _answer(head))
            async with asyncio.timeout(ANSWER_SECONDS):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asks so is not Prometheus
        finally:
            self._open -= 1
            writer.close()


async def _answer(head: bytes) -> bytes:
    """Makes the answer to a request's head."""
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/metrics":
        return _response("404 Not Found", b"only /metrics is here\n")
    if method != b"GET":
        return _response("405 Method Not Allowed", b"only GET is answered\n", "Allow: GET\r\n")
    metrics.sample()
    return _response("200 OK", await asyncio.to_thread(metrics.text), kind=metrics.CONTENT_TYPE)


def _response(status: str, body: bytes, more: str = "", kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def _measure_lag() -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_EVERY
        await asyncio.sleep(LAG_EVERY)
        LOOP_LAG.observe(max(0.0, loop.time() - due))
