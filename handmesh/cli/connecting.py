"""`handmesh vault connect`: an account of an MCP server, by the person's browser."""

from __future__ import annotations

import asyncio
import sys
import time
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.cli.callback import Callback, Redirect
    from handmesh.client import Client
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

CONNECT_EPILOG = """\b
Examples:
  handmesh vault connect https://mcp.example.com/mcp
  handmesh vault connect https://mcp.example.com/mcp --vault work --scope "read write"
  handmesh vault connect URL --client-id ID --client-secret-file FILE   a client of your own
  handmesh vault connect URL --paste    the browser is on another machine

\b
Then:
  handmesh vault validate CREDENTIAL
  handmesh run "what is new?" --mcp notes=https://mcp.example.com/mcp --vault ID
"""

DEFAULT_VAULT = "default"
TICK_SECONDS = 30.0
"""Between two words that it is still waiting."""


@dataclass(frozen=True)
class Ways:
    """How the person gets there and back."""

    browser: bool
    paste: bool
    port: int


def connect(
    url: Annotated[str, typer.Argument(metavar="URL", help="The MCP server, such as https://mcp.example.com/mcp")],
    vault: Annotated[
        str, typer.Option(metavar="ID|NAME", help="The vault. Default: the only one; one is made if there is none.")
    ] = "",
    name: Annotated[str, typer.Option(metavar="TEXT", help="The credential's name. Default: the server's host.")] = "",
    scope: Annotated[str, typer.Option(metavar="TEXT", help="Scopes. Default: what the server asks for.")] = "",
    client_id: Annotated[
        str, typer.Option("--client-id", metavar="ID", help="A client that the server knows. Default: registers one.")
    ] = "",
    client_secret_file: Annotated[
        Path | None, typer.Option("--client-secret-file", metavar="FILE", help="That client's secret; - is stdin.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port that the browser comes back to. 0 is any.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print where to go.")] = False,
    paste: Annotated[
        bool, typer.Option("--paste", help="Read the address where the browser ends, pasted here.")
    ] = False,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Connects an account of an MCP server, with your browser.

    You log in and agree; the vault keeps what comes of it. The server must support OAuth with PKCE. An account that the
    vault has for the server is replaced. For a server that takes a fixed value, see `handmesh vault add`.
    """

    async def body() -> int:
        from handmesh.cli.secrets import secret_of
        from handmesh.cli.vaults import print_credentials, vault_of
        from handmesh.client import connect as client_of
        from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

        secret = secret_of(client_secret_file) if client_secret_file is not None else ""
        async with client_of(data_directory=data_directory) as mesh:
            chosen = await vault_of(mesh, vault, or_make=DEFAULT_VAULT)
            wish = pb.StartConnectionRequest(
                vault_id=chosen.vault_id, url=url, name=name, scope=scope, client_id=client_id, client_secret=secret
            )
            connected = await _connected(mesh, wish, Ways(not no_browser and not paste, paste, port))
        typer.echo(f"connected. Try it: handmesh vault validate {connected.credential_id}", err=True)
        print_credentials([connected], as_json)
        return 0

    run(body)


async def _connected(mesh: Client, wish: pb.StartConnectionRequest, ways: Ways) -> pb.Credential:
    from handmesh.cli.callback import callback
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

    async with callback(ways.port) as waiting:
        wish.redirect_uri = waiting.url
        typer.echo(f"asking {_shown(wish.url)} how it is connected", err=True)
        started = await mesh.vaults.start_connection(wish)
        waiting.expect(started.state)
        where = _shown(started.authorization_url)
        typer.echo(f"log in and agree at {_shown(started.issuer)}:\n\n{where}\n", err=True)
        found = await (_pasted(started) if ways.paste else _returned(waiting, started, ways.browser))
    typer.echo("the browser is back; fetching the account", err=True)
    request = pb.FinishConnectionRequest(state=found.state, code=found.code, issuer=found.issuer, error=found.error)
    return await mesh.vaults.finish_connection(request)


async def _returned(waiting: Callback, started: pb.StartConnectionResponse, browser: bool) -> Redirect:
    """Opens the browser and waits for it to come back, as long as the state lives."""
    from handmesh.client import HandmeshError

    if browser and not await asyncio.to_thread(webbrowser.open, started.authorization_url):
        typer.echo("no browser was found: open the address yourself, on this machine", err=True)
    ends = started.expire_time.ToNanoseconds() / 1e9
    while (left := ends - time.time()) > 0:
        try:
            return await asyncio.wait_for(waiting.redirect(), min(TICK_SECONDS, left))
        except TimeoutError:
            typer.echo(f"waiting for the browser, {max(0, ends - time.time()) / 60:.0f} more minutes", err=True)
    raise HandmeshError("OAUTH_FAILED", "nobody came back in time: start again", code="DEADLINE_EXCEEDED")


async def _pasted(started: pb.StartConnectionResponse) -> Redirect:
    from handmesh.cli.arguments import UsageError
    from handmesh.cli.callback import redirect_of

    typer.echo("Paste the address that the browser ends at (it may say that the page cannot be reached):", err=True)
    found = redirect_of((await asyncio.to_thread(sys.stdin.readline)).strip())
    if found is None or found.state != started.state:
        raise UsageError("that is not the address that was waited for: it has this connection's state and a code")
    return found


def _shown(text: str) -> str:
    from handmesh.cli.escape import escaped

    return escaped(text)
