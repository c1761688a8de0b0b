"""Spans of what goes out: calls of MCP servers, looks into the vault, HTTP requests.

They name a server's origin and never a path, a query, a header or a body: any of these may hold a secret. The servers
are not told of the trace: who a session works for beside them is nothing that they should be able to put together.
"""

from __future__ import annotations

from services.kit import tracing
from services.kit.origin import Origin, UrlRefused, origin_of
from services.vault_proxy.grants import Server


def asked(method: str, server: Server, tool: str = "") -> tracing.Span:
    """Is the span of a request to an MCP server, by MCP's name for it."""
    about: dict[str, str | int] = {"mcp.method.name": method, "handmesh.server": tracing.word(server.name)}
    try:
        about |= _where(origin_of(server.url))
    except UrlRefused:
        pass  # it is not called, and an error of its own says so
    if tool:
        about["gen_ai.tool.name"] = tracing.word(tool)
    name = f"{method} {tracing.word(tool)}" if tool else method
    return tracing.span(name, about, kind=tracing.CLIENT)


def looked_up(origin: Origin) -> tracing.Span:
    """Is the span of the look into the vault for the credential of an origin."""
    return tracing.span("find credential", {"handmesh.origin": str(origin)}, kind=tracing.CLIENT)


def requested(method: str, origin: Origin) -> tracing.Span:
    """Is the span of an HTTP request, up to the answer's headers."""
    return tracing.span(method, {"http.request.method": method, **_where(origin)}, kind=tracing.CLIENT)


def _where(origin: Origin) -> dict[str, str | int]:
    return {"server.address": origin.host, "server.port": origin.port, "url.scheme": origin.scheme}
