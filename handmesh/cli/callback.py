"""Where a browser comes back to: a small HTTP server on loopback that waits for one redirect.

Everything else that knocks is answered and forgotten: browsers ask for icons, and other programs can reach the port.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from handmesh.cli.arguments import UsageError

HOST = "127.0.0.1"
PATH = "/callback"
HEAD_BYTES = 16 * 1024
READ_SECONDS = 10.0

_DONE = "Thank you. You can close this window and go back to the terminal."
_NOT_THIS = "This is not the answer that was waited for."


@dataclass(frozen=True)
class Redirect:
    """What a redirect brought. Empty texts are what it did not bring."""

    state: str
    code: str
    issuer: str = ""
    error: str = ""


def redirect_of(url: str) -> Redirect | None:
    """Reads the address that a browser was sent back to; None for one that brings neither a code nor an error."""
    query = parse_qs(urlsplit(url).query, max_num_fields=20)
    said = {name: values[0] for name, values in query.items() if len(values) == 1}
    if not said.get("state") or not (said.get("code") or said.get("error")):
        return None
    return Redirect(said["state"], said.get("code", ""), said.get("iss", ""), said.get("error", ""))


class Callback:
    """A server that waits for the redirect of one state. `expect` says which, before anybody can know it."""

    def __init__(self) -> None:
        self._state = ""
        self._redirect: asyncio.Future[Redirect] = asyncio.get_running_loop().create_future()
        self.url = ""

    def expect(self, state: str) -> None:
        """Says which state is waited for."""
        self._state = state

    async def redirect(self) -> Redirect:
        """Waits for it."""
        return await asyncio.shield(self._redirect)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._answer(head.split(b"\r\n", 1)[0].decode("latin-1"))
            body = text.encode()
            headers = (
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
                "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
            )
            writer.write(headers.encode() + body)
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _answer(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        found = redirect_of(target) if method == "GET" and urlsplit(target).path == PATH else None
        if found is None or not self._state or not hmac.compare_digest(found.state.encode(), self._state.encode()):
            return "404 Not Found", _NOT_THIS
        if not self._redirect.done():
            self._redirect.set_result(found)
        return "200 OK", _DONE


@asynccontextmanager
async def callback(port: int = 0) -> AsyncIterator[Callback]:
    """Listens on loopback, on any free port unless one is given. Raises UsageError for a port that is not free."""
    made = Callback()
    try:
        server = await asyncio.start_server(made.serve, HOST, port, limit=HEAD_BYTES)
    except OSError as problem:
        raise UsageError(f"--port {port} cannot be listened on: {problem.strerror}") from None
    made.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{PATH}"
    try:
        yield made
    finally:
        server.close()
