"""One MCP session with one server, for one session of ours. Imported on first use: `mcp` costs 0.5 s and 40 MB.

A task of its own enters and leaves the client, because its cancel scopes belong to one task; calls come from any task.
What a failed call means is told by what happened on the wire (`outbound.Exchange`) and by the error's code, never by
its text; no text of the library leaves this module.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from services.kit.errors import Denied
from services.kit.logs import Log
from services.kit.origin import UrlRefused
from services.vault_proxy.core.answer import Progress
from services.vault_proxy.core.catalog import MOST_TOOLS
from services.vault_proxy.mcp.problems import CredentialRefused, ServerLost, SessionLost
from services.vault_proxy.mcp.sse import ACCEPTED, sse_transport
from services.vault_proxy.outbound import BODY_BYTES, STANDING_STREAMS, Exchange, Failure, Outbound, observe
from services.vault_proxy.quiet import silence
from services.vault_proxy.secret import Secret

MOST_PAGES = 100
LISTEN_PAUSE_SECONDS = 1.0  # before a stream of news that ended is opened again
CLIENT = types.Implementation(name="handmesh", version="1")

_log = Log("services.vault_proxy.mcp")

# Errors that the client makes itself: the connection closed, or what came was no MCP. Then, those that it makes of a
# status without an error in the body.
_LOCAL = frozenset({types.CONNECTION_CLOSED, types.PARSE_ERROR, types.REQUEST_TIMEOUT})
_OF_STATUS = frozenset({types.INTERNAL_ERROR, types.METHOD_NOT_FOUND, types.INVALID_REQUEST})

_NOT_STREAMABLE = (400, 404, 405)  # what servers of the older transport answer to a POST, as the specification says


@dataclass
class _Raw:
    """A call's result as it came."""

    result: dict[str, Any] | None = None


_raw: contextvars.ContextVar[_Raw] = contextvars.ContextVar("raw")


class _Tapped(JSONRPCDispatcher):
    """Keeps results as they come: one tool that is not right makes the library refuse a whole list."""

    async def send_raw_request(self, method: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        result = await super().send_raw_request(method, *arguments, **options)
        if (raw := _raw.get(None)) is not None:
            raw.result = result
        return result


async def _agree(session: ClientSession, exchange: Exchange) -> bool:
    """Agrees on a protocol: the newest if the server knows it, else by the handshake that all older ones have.

    Returns whether the server speaks streamable HTTP at all.
    """
    try:
        await session.discover()
    except (MCPError, ValidationError, RuntimeError):
        if exchange.failure is not None or exchange.status == 401:
            raise
    else:
        return True
    try:
        await session.initialize()
    except (MCPError, ValidationError, RuntimeError):
        if exchange.failure is not None or exchange.status not in _NOT_STREAMABLE:
            raise
        return False
    return True


class Connection:
    """A connection to a server. Methods raise SessionLost, CredentialRefused, ServerLost, or Denied
    (`SERVER_ADDRESS_DENIED`). `changed` is called whenever the server says that its tools are others now, or may be."""

    def __init__(
        self,
        server: str,
        url: str,
        outbound: Outbound,
        bearer: Callable[[], Secret[str] | None],
        changed: Callable[[], None],
    ) -> None:
        silence("mcp", "client")  # the package's session logs under the name `client`
        self._server = server
        self._url = url
        self._outbound = outbound
        self._bearer = bearer
        self._changed = changed
        self._leave = asyncio.Event()
        self._opened: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._calls = 0
        self._retired = False
        self._older = False  # by the transport that was before streamable HTTP
        self.host: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> None:
        """Connects and agrees on a protocol, within so many seconds."""
        self.host = asyncio.create_task(self._live(seconds), name=f"mcp {self._server}")
        await asyncio.shield(self._opened)

    @property
    def alive(self) -> bool:
        """Whether more calls can be made."""
        return self.host is not None and not self.host.done() and not self._retired

    def retire(self) -> None:
        """Takes no more calls, and ends the session with the server once those that run have ended."""
        self._retired = True
        if self._calls == 0:
            self._leave.set()

    async def _live(self, seconds: float) -> None:
        exchange = observe()
        problem: Exception = ServerLost(self._server, "was being disconnected", begun=False)
        try:
            async with self._outbound.client(self._url, self._bearer) as http, asyncio.timeout(seconds) as limit:
                streamable = streamable_http_client(self._url, http_client=http, max_sse_event_size=BODY_BYTES)
                if not await self._serve(streamable, exchange, limit):
                    self._older = True
                    await self._serve(sse_transport(self._url, http, self.retire), exchange, limit)
        except Exception as ended:  # the top of a task
            _log.info("a connection ended", server=self._server, kind=type(ended).__name__)
            if isinstance(ended, UrlRefused):
                exchange.failure = Failure.DENIED
            late = isinstance(ended, TimeoutError) and exchange.failure is None
            problem = (
                ServerLost(self._server, "does not answer in time", begun=False)
                if late
                else self._meaning(exchange, begun=False)
            )
        finally:
            if not self._opened.done():
                self._opened.set_exception(problem)
                self._opened.exception()  # nobody may be waiting any more

    async def _serve(
        self, transport: AbstractAsyncContextManager[Any], exchange: Exchange, limit: asyncio.Timeout
    ) -> bool:
        """Takes calls until the connection is left. Returns False at once when the server has another transport."""
        async with (
            transport as streams,
            ClientSession(dispatcher=_Tapped(*streams), client_info=CLIENT, message_handler=self._hear) as session,
        ):
            if self._older:
                await session.initialize()
            elif not await _agree(session, exchange):
                return False
            limit.reschedule(None)
            self._opened.set_result(session)
            listening = asyncio.create_task(self._listen(session), name=f"mcp listen {self._server}")
            try:
                await self._leave.wait()
            finally:
                listening.cancel()
        return True

    async def _hear(self, message: Any) -> None:
        """Hears what the server says by itself. Older servers say it on the stream that the library opens."""
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()

    async def _listen(self, session: ClientSession) -> None:
        """Asks a server of the newest protocol to say when its tools change, for as long as it likes to."""
        if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        observe()
        for _ in range(STANDING_STREAMS):
            try:
                async with listen(session, tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self._changed()
            except MCPError:
                return  # it does not do that
            except (SubscriptionLost, RuntimeError):
                pass
            self._changed()  # what it would have said meanwhile is not said again
            await asyncio.sleep(LISTEN_PAUSE_SECONDS)

    async def list_tools(self) -> list[dict[str, Any]]:
        """Returns what the server lists, page by page, as MCP's JSON. What is no tool at all is left out."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._ask(types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor)))
            if isinstance(page, MCPError):
                if page.error.code == types.METHOD_NOT_FOUND:
                    break  # a server without tools
                raise ServerLost(self._server, "does not list its tools", begun=False)
            found = page.get("tools")
            tools += [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or len(tools) > MOST_TOOLS:
                break
        return tools

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], told: Callable[[Progress], None]
    ) -> dict[str, Any]:
        """Calls a tool and returns its result as MCP's JSON; an error that the server answers is such a result.

        `told` gets what the server says of the call's progress, meanwhile.
        """

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told(Progress(done, total, message))

        params = types.CallToolRequestParams(name=name, arguments=dict(arguments))
        result = await self._ask(types.CallToolRequest(params=params), progress)
        if isinstance(result, MCPError):
            return _failed(f"the server answered with error {result.error.code}: {result.error.message}")
        if result.get("resultType") == "input_required":
            return _failed("the tool asks its caller for more input, which is not supported")
        return result

    async def _ask(
        self, request: types.ListToolsRequest | types.CallToolRequest, progress: Any = None
    ) -> dict[str, Any] | MCPError:
        """Returns the server's result, as it came, or the error that the server answered with."""
        exchange, raw = observe(), _Raw()
        _raw.set(raw)
        session = await asyncio.shield(self._opened)
        self._calls += 1
        try:
            if isinstance(request, types.ListToolsRequest):
                await session.list_tools(params=request.params)
            else:
                # Not `call_tool`: it checks results against the server's own schema, whose patterns can take for ever.
                await session.send_request(request, types.CallToolResult, progress_callback=progress)
        except MCPError as error:
            if self._is_answered(exchange, error.error.code):
                return error
        except (ValidationError, RuntimeError):
            pass  # not as the library wants it, or the connection was being closed
        finally:
            self._calls -= 1
            if self._retired:
                self.retire()
        if raw.result is not None:
            return raw.result
        raise self._meaning(exchange, begun=exchange.sent)

    def _is_answered(self, exchange: Exchange, code: int) -> bool:
        """Says whether an error is the server's own: not made of a status or of a failure on the way."""
        status = exchange.status
        if exchange.failure is not None or code in _LOCAL:
            return False
        if self._older:
            return status in ACCEPTED  # the answer itself came elsewhere
        if not exchange.readable or status == 401 or (status == 404 and exchange.in_session):
            return False
        return status == 200 or (400 <= status < 500 and code not in _OF_STATUS)

    def _meaning(self, exchange: Exchange, begun: bool) -> Exception:
        """Returns what a failure on the wire means to the caller."""
        match exchange:
            case Exchange(failure=Failure.DENIED):
                message = f"the address of the MCP server {self._server} is not one that may be called"
                return Denied("SERVER_ADDRESS_DENIED", message, server=self._server)
            case Exchange(failure=Failure.UNREACHABLE):
                return ServerLost(self._server, "cannot be reached", begun=False)
            case Exchange(failure=Failure.TOO_LARGE):
                return ServerLost(self._server, f"answers with more than {BODY_BYTES} bytes", begun)
            case Exchange(failure=None, status=401):
                return CredentialRefused()
            case Exchange(failure=None, status=404) if exchange.in_session or self._older:
                return SessionLost()
            case Exchange(failure=None, status=status) if status >= 300:
                return ServerLost(self._server, f"answers with HTTP status {status}", begun and status >= 500)
            case _:
                return ServerLost(self._server, "does not answer as MCP servers do", begun)


def _failed(text: str) -> dict[str, Any]:
    return {"isError": True, "content": [{"type": "text", "text": text}]}
