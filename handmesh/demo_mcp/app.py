"""The shop behind HTTP: MCP at `/mcp` for those who show the token, its counted calls at `/calls` for anyone."""

from __future__ import annotations

import hmac

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from handmesh.demo_mcp.shop import Shop

MCP_PATH = "/mcp"


def make_app(token: str, host: str = "127.0.0.1") -> ASGIApp:
    """Makes the application. `token` is the only one that is let in.

    On loopback it answers to loopback's names alone; with another `host` to listen on, to whatever name it is called.
    """
    shop = Shop()

    async def calls(request: Request) -> JSONResponse:
        return JSONResponse({"calls": shop.calls})

    app: Starlette = shop.server().streamable_http_app(streamable_http_path=MCP_PATH, host=host)
    app.router.routes.append(Route("/calls", calls))
    return _Gate(app, token)


class _Gate:
    """Lets requests for MCP_PATH in that show the token, and answers 401 to the others."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") == MCP_PATH:
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, self._expected):
                answer = JSONResponse({"error": "invalid_token"}, 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)
