"""The commands about vaults: `vault connect`, `vault add`, ..., and `vault audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli import adding, connecting, vaults
from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from rich.table import Table

    from handmesh.session.v1 import session_pb2

EPILOG = """\b
Start here:
  handmesh vault connect https://mcp.example.com/mcp    an account, with your browser
  handmesh vault create work                            a vault by hand
  handmesh vault add work https://mcp.example.com       a fixed value in it
  handmesh vault credentials work                       what is in it, without the secrets
  handmesh run "..." --mcp notes=https://mcp.example.com/mcp --vault ID
"""

app = typer.Typer(
    name="vault",
    help="Keeps credentials, which no sandbox and no model ever sees, and tells how they were used.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)
app.command(epilog=connecting.CONNECT_EPILOG)(connecting.connect)
app.command()(vaults.create)
app.command("list")(vaults.list_)
app.command()(vaults.credentials)
app.command(epilog=adding.ADD_EPILOG)(adding.add)
app.command(epilog=vaults.VALIDATE_EPILOG)(vaults.validate)
app.command()(vaults.archive)

Audited = Annotated[str | None, typer.Argument(metavar="[ID]", help="The session, deleted or not. Default: all.")]


@app.command()
def audit(session_id: Audited = None, as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Prints how credentials were used, and what doors refused.

    A line says when, which, where, for which call, and how it ended.
    """

    async def body() -> int:
        from handmesh.cli.printing import console, print_json
        from handmesh.client import connect

        found: list[session_pb2.AuditEntry] = []
        async with connect(data_directory=data_directory) as mesh:
            async for entry in mesh.audit(session_id):
                if as_json:
                    print_json(entry)
                else:
                    found.append(entry)
        if found:
            console().print(_table(found))
        elif not as_json:
            typer.echo("No credential was used.", err=True)
        return 0

    run(body)


def _table(found: list[session_pb2.AuditEntry]) -> Table:
    from rich.table import Table

    from handmesh.cli.escape import one_line

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("time", "session", "credential", "where", "call", "result"):
        table.add_column(name, overflow="fold")
    for entry in found:
        when = entry.event.emit_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(when, *(one_line(each, 100) for each in (entry.session_id, *_said(entry))))
    return table


def _said(entry: session_pb2.AuditEntry) -> tuple[str, str, str, str]:
    """Returns which credential, where, for which call, and how it ended."""
    if entry.event.HasField("door_refused"):
        refused = entry.event.door_refused
        return "-", refused.target, f"{refused.door} door", refused.reason
    used = entry.event.credential_used
    result = f"{used.result}, {used.times} times" if used.times > 1 else used.result
    return used.credential_id, used.server, used.execution_id or "-", result
