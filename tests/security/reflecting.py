"""An MCP server that has a credential and answers with it, and all that anybody sees of that."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from handmesh.session.v1.config_pb2 import McpServer
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, put_credential
from tests.vault_proxy.strange_server import Reply, Request, strange_server

Answer = Callable[[Request], Reply]


def everything_in(problem: grpc.aio.AioRpcError) -> str:
    """Returns all that a caller can see of an error."""
    metadata = [*(problem.initial_metadata() or ()), *(problem.trailing_metadata() or ())]
    return f"{problem!r} {problem.code()} {problem.details()} {problem.debug_error_string()} {metadata}"


async def seen_of(proxy: Proxy, openbao: OpenBaoServer, canary: str, answer: Answer) -> list[str]:
    """Lists and calls tools of a server that answers so, to each request that matters in turn.

    Returns what the callers got and what the sessions' logs were told. The control: the server had the credential.
    """
    seen: list[str] = []
    for method in ("tools/call", "tools/list", "initialize"):

        def reply(request: Request, method: str = method) -> Reply | None:
            return answer(request) if request.rpc.get("method") == method else None

        async with strange_server(answer=reply) as strange:
            vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
            grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
            for call in (proxy.tools(grant), proxy.execute(grant, "strange__echo", {"text": "x"}, "toolu_1")):
                try:
                    seen.append(repr(await call))
                except grpc.aio.AioRpcError as problem:
                    seen.append(everything_in(problem))
            assert strange.heard(canary), "the control: the server had it"
    await proxy.stop()  # what is told behind the answers is told now
    assert len(seen) == 6
    return seen + [repr(event) for _, event in proxy.peer.events]
