"""What a session may do with MCP servers: list their tools, call one, stop a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from handmesh.session.v1.event_pb2 import ToolsOffered
from services.kit import failpoints, ids
from services.kit.errors import Denied, Gone, Invalid, ServiceError
from services.kit.logs import Log
from services.vault_proxy import counting
from services.vault_proxy.audit import Audit
from services.vault_proxy.core import naming
from services.vault_proxy.core.answer import Answer, parse_input, read_answer
from services.vault_proxy.core.catalog import Catalog, OfferedTool, Problem, prints_of, prints_of_offer
from services.vault_proxy.executions import Executions, MayHaveRun, Say, digest_of
from services.vault_proxy.grants import Access, Server
from services.vault_proxy.mcp.connections import Connections, Use
from services.vault_proxy.mcp.problems import ServerLost
from services.vault_proxy.pins import Pins
from services.vault_proxy.replicas import Replicas
from services.vault_proxy.traced import asked

ANSWER_BYTES = 6 * 1024 * 1024  # of all servers' tools together: one gRPC message takes 8 MiB


_log = Log("services.vault_proxy.tools")

Offered = Callable[[], Awaitable[ToolsOffered | None]]


@dataclass(frozen=True)
class Call:
    """A tool call as a session asks for it. An empty id means that nobody will ask for it again."""

    name: str
    input: str
    execution_id: str = ""
    attach_only: bool = False
    grant: str = field(default="", repr=False)  # what other replicas are asked with; none: nobody is asked
    offered: Offered | None = None  # what the session's log says was offered by the tool's server


class Tools:
    """Lists and calls tools for whoever has access."""

    def __init__(
        self, connections: Connections, executions: Executions, audit: Audit, replicas: Replicas, pins: Pins
    ) -> None:
        self._connections = connections
        self._executions = executions
        self._audit = audit
        self._replicas = replicas
        self._pins = pins

    async def list(self, access: Access, refresh: bool) -> Catalog:
        """Returns the tools of all servers of the session. A server's failure is a problem, and costs only itself.

        Raises Unavailable (`VAULT_UNAVAILABLE`): then no server can be asked properly.
        """
        found = await asyncio.gather(*(self._list_one(access, server, refresh) for server in access.servers))
        tools: list[OfferedTool] = []
        problems: list[Problem] = []
        room = ANSWER_BYTES
        for catalog in found:
            size = sum(len(tool.name) + len(tool.description) + len(tool.input_schema_json) for tool in catalog.tools)
            problems += catalog.problems
            if size > room:
                server = naming.server_of(catalog.tools[0].name) or ""
                problems.append(Problem(server, "", "FULL", "the other servers' tools leave no room for these"))
                continue
            room -= size
            tools += catalog.tools
        return Catalog(tuple(tools), tuple(problems))

    async def _list_one(self, access: Access, server: Server, refresh: bool) -> Catalog:
        try:
            return await self._offered(access, server, refresh)
        except ServiceError as problem:
            if problem.reason == "VAULT_UNAVAILABLE":
                raise
            return Catalog(problems=(Problem(server.name, "", problem.reason, problem.message),))

    async def _offered(self, access: Access, server: Server, refresh: bool = False) -> Catalog:
        use, result = Use(), "SERVER_UNAVAILABLE"
        try:
            catalog = await self._connections.tools(access, server, use, refresh)
            result = use.told
        except ServiceError as problem:
            result = problem.reason
            raise
        finally:
            if use.credential is not None:
                self._audit.used(access.session_id, server.name, "", use.credential, result)
        if use.change is not None:
            self._audit.changed(access.session_id, server.name, use.change)
        return catalog.narrowed(server.allowed_tools)

    async def execute(self, access: Access, call: Call) -> Answer:
        """Calls a tool and returns what it said, also when that is a failure of the tool.

        Raises Invalid (`TOOL_UNKNOWN`, `TOOL_INPUT_INVALID`), Denied (`SERVER_DENIED`, `SERVER_ADDRESS_DENIED`), Gone
        (`EXECUTION_UNKNOWN`), Exists (`EXECUTION_ID_REUSED`), Refused (`CREDENTIAL_REVOKED`), Full, or Unavailable
        (`SERVER_UNAVAILABLE`, `VAULT_UNAVAILABLE`).
        """
        arguments = parse_input(call.name, call.input)
        server = self._server(access, call.name)
        execution_id = call.execution_id or ids.mint("exec")

        async def work(say: Say) -> Answer:
            return await self._perform(access, server, call, arguments, execution_id, say)

        if not call.execution_id and call.attach_only:
            raise Gone("EXECUTION_UNKNOWN", "attach_only names no execution", execution_id="")
        if not call.execution_id:
            return await self._executions.run_once(access.session_id, work)
        key = (access.session_id, call.execution_id)
        try:
            return await self._executions.run(key, digest_of(call.name, arguments), work, call.attach_only)
        except Gone:
            found = await self._replicas.attach(call.grant, call.name, call.input, call.execution_id)
            if found is None:
                raise
            return found

    def watch(self, access: Access, execution_id: str, skip: int) -> AsyncIterator[str | Answer]:
        """Yields what a call says of its progress, and its result at the end. Raises as `execute` does."""
        if not execution_id:
            raise Invalid("ID_INVALID", "execution_id is missing", field="execution_id")
        if skip < 0:
            raise Invalid("ARGUMENT_INVALID", "offset: expected 0 or more", field="offset")
        return self._executions.watch((access.session_id, execution_id), skip)

    async def cancel(self, access: Access, execution_id: str, grant: str = "") -> None:
        """Stops a call, whichever replica runs it; one that is not known never starts."""
        if not execution_id:
            raise Invalid("ID_INVALID", "execution_id is missing", field="execution_id")
        self._executions.cancel((access.session_id, execution_id))
        await self._replicas.cancel(grant, execution_id)

    def end_session(self, session_id: str) -> None:
        """Stops a session's calls and lets go of its connections."""
        self._executions.end_session(session_id)
        self._connections.drop(session_id)

    def _server(self, access: Access, name: str) -> Server:
        server_name = naming.server_of(name)
        if server_name is None:
            raise Invalid("TOOL_UNKNOWN", "the name is not of the form server__tool", name=name[:200])
        server = access.server(server_name)
        if server is None:
            raise Denied("SERVER_DENIED", "the session may not use that server", server=server_name)
        return server

    async def _tool(self, access: Access, server: Server, name: str) -> OfferedTool:
        tool = (await self._offered(access, server)).find(name)
        if tool is None:  # it may be new
            tool = (await self._offered(access, server, refresh=True)).find(name)
        if tool is None:
            raise Invalid("TOOL_UNKNOWN", "the server has no such tool", name=name[:200])
        return tool

    async def _compare(self, access: Access, server: Server, offered: Offered) -> None:
        """Tells how what a server lists differs from what the session's log says, once for a session and server."""
        key = (access.session_id, server.name)
        if self._pins.is_compared(key):
            return
        try:
            event = await offered()
        except ServiceError as problem:
            _log.warning("what was offered is not known", session_id=access.session_id, reason=problem.reason)
            return
        if event is None or event.hand != server.name or not event.digest:
            return
        now = prints_of(await self._offered(access, server))
        change = self._pins.compare(key, prints_of_offer(event.tools_json), now)
        if change is not None:
            self._audit.changed(access.session_id, server.name, change, event.digest)

    async def _perform(
        self, access: Access, server: Server, call: Call, arguments: dict[str, Any], execution_id: str, say: Say
    ) -> Answer:
        tool = await self._tool(access, server, call.name)
        if call.offered is not None:
            await self._compare(access, server, call.offered)
        use, result, counted, began = Use(), "SERVER_UNAVAILABLE", "SERVER_UNAVAILABLE", time.monotonic()
        try:
            failpoints.hit("vault_proxy.call_asked")
            with asked("tools/call", server, tool.own_name):
                raw, scrubber = await self._connections.call(access, server, tool.own_name, arguments, use, say)
            failpoints.hit("vault_proxy.call_answered", lambda: ServerLost(server.name, "was cut off", begun=True))
            answer = read_answer(raw, scrubber)
            self._connections.tell(scrubber, access, server, use)
            result, counted = use.told, answer.outcome.name.lower()
        except ServiceError as problem:
            result = counted = problem.reason
            if isinstance(problem, ServerLost) and problem.begun and not tool.idempotent:
                raise MayHaveRun from problem
            raise
        finally:
            counting.CALLS.add(counted)
            counting.CALL_SECONDS.observe(time.monotonic() - began)
            if use.credential is not None:
                self._audit.used(access.session_id, server.name, execution_id, use.credential, result)
        return answer
