"""One MCP session with one server, for one session of ours. Imported on first use: `mcp` costs 0.5 s and 40 MB.

A task of its own enters and leaves the client, because its cancel scopes belong to one task; calls come from any task.
What a failed call means is told by what happened on the wire (`outbound.Exchange`) and by the error's code, never by
its text; no text of the library leaves this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from services.kit.errors import Denied
from services.kit.logs import Log
from services.vault_proxy.core.catalog import MOST_TOOLS
from services.vault_proxy.core.origin import UrlRefused
from services.vault_proxy.mcp.problems import CredentialRefused, ServerLost, SessionLost
from services.vault_proxy.outbound import BODY_BYTES, Exchange, Failure, Outbound, observe
from services.vault_proxy.quiet import silence
from services.vault_proxy.secret import Secret

MOST_PAGES = 100

silence("mcp", "client")  # the package's session logs under the name `client`
_log = Log("services.vault_proxy.mcp")

_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
# Errors that the client makes itself: the connection closed, or what came was no MCP. Then, those that it makes of a
# status without an error in the body.
_LOCAL = frozenset({types.CONNECTION_CLOSED, types.PARSE_ERROR, types.REQUEST_TIMEOUT})
_OF_STATUS = frozenset({types.INTERNAL_ERROR, types.METHOD_NOT_FOUND, types.INVALID_REQUEST})


class Connection:
    """A connection to a server. Methods raise SessionLost, CredentialRefused, ServerLost, or Denied
    (`SERVER_ADDRESS_DENIED`)."""

    def __init__(self, server: str, url: str, outbound: Outbound, bearer: Callable[[], Secret[str] | None]) -> None:
        self._server = server
        self._url = url
        self._outbound = outbound
        self._bearer = bearer
        self._leave = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._calls = 0
        self._retired = False
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
            async with self._outbound.client(self._url, self._bearer) as http:
                transport = streamable_http_client(self._url, http_client=http, max_sse_event_size=BODY_BYTES)
                client = Client(transport, cache=None, client_info=types.Implementation(name="handmesh", version="1"))
                async with asyncio.timeout(seconds) as limit, client:
                    limit.reschedule(None)
                    self._opened.set_result(client)
                    await self._leave.wait()
        except Exception as ended:  # the top of a task
            _log.info("a connection ended", server=self._server, kind=type(ended).__name__)
            if isinstance(ended, UrlRefused):
                exchange.failure = Failure.DENIED
            problem = self._meaning(exchange, begun=False)
        finally:
            if not self._opened.done():
                self._opened.set_exception(problem)
                self._opened.exception()  # nobody may be waiting any more

    async def list_tools(self) -> list[dict[str, Any]]:
        """Returns what the server lists, page by page, as MCP's JSON."""
        tools: list[dict[str, Any]] = []
        request = types.PaginatedRequestParams()
        for _ in range(MOST_PAGES):
            page = await self._page(request)
            if isinstance(page, MCPError):
                if page.error.code == types.METHOD_NOT_FOUND:
                    return tools  # a server without tools
                raise ServerLost(self._server, "does not list its tools", begun=False)
            tools += [_json(tool) for tool in page.tools]
            if page.next_cursor is None or len(tools) > MOST_TOOLS:
                break
            request = types.PaginatedRequestParams(cursor=page.next_cursor)
        return tools

    async def _page(self, request: types.PaginatedRequestParams) -> Any:
        return await self._ask(lambda client: client.session.list_tools(params=request))

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns its result as MCP's JSON; an error that the server answers is such a result."""
        # Not `client.call_tool`: it checks results against the server's own schema, whose patterns can take for ever.
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=dict(arguments)))
        result = await self._ask(lambda client: client.session.send_request(request, _RESULT))
        if isinstance(result, MCPError):
            return _failed(f"the server answered with error {result.error.code}: {result.error.message}")
        if isinstance(result, types.InputRequiredResult):
            return _failed("the tool asks its caller for more input, which is not supported")
        return _json(result)

    async def _ask(self, question: Callable[[Client], Any]) -> Any:
        """Returns the server's answer, or the error that the server answered with."""
        exchange = observe()
        client = await asyncio.shield(self._opened)
        self._calls += 1
        try:
            return await question(client)
        except MCPError as error:
            if _is_answered(exchange, error):
                return error
        except (ValidationError, RuntimeError):
            pass  # an answer that is no MCP, or the connection was being closed
        finally:
            self._calls -= 1
            if self._retired:
                self.retire()
        raise self._meaning(exchange, begun=exchange.sent)

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
            case Exchange(failure=None, status=404, in_session=True):
                return SessionLost()
            case Exchange(failure=None, status=status) if status >= 300:
                return ServerLost(self._server, f"answers with HTTP status {status}", begun and status >= 500)
            case _:
                return ServerLost(self._server, "does not answer as MCP servers do", begun)


def _is_answered(exchange: Exchange, error: MCPError) -> bool:
    """Says whether the error is the server's own: not made of a status or of a failure on the way."""
    code, status = error.error.code, exchange.status
    if exchange.failure is not None or code in _LOCAL or status == 401 or (status == 404 and exchange.in_session):
        return False
    return 200 <= status < 300 or (400 <= status < 500 and code not in _OF_STATUS)


def _failed(text: str) -> dict[str, Any]:
    return {"isError": True, "content": [{"type": "text", "text": text}]}


def _json(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found
