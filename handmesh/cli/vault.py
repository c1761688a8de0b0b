"""The commands about vaults: `vault audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from handmesh.cli.options import DataDirectory, Json, SessionId
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from rich.table import Table

    from handmesh.session.v1 import event_pb2

KIND = "credential_used"

app = typer.Typer(name="vault", help="Looks at how credentials were used.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def audit(session_id: SessionId, as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Prints each use of a credential by a session: when, which, where, for which call, how it ended."""

    async def body() -> int:
        from handmesh.cli.printing import console, print_json
        from handmesh.client import connect

        found: list[event_pb2.Event] = []
        async with connect(data_directory=data_directory) as mesh:
            async for event in mesh.session(session_id).events(kinds=[KIND]):
                found.append(event)
                if as_json:
                    print_json(event)
        if not as_json and found:
            console().print(_table(found))
        elif not as_json:
            typer.echo("The session has used no credential.", err=True)
        return 0

    run(body)


def _table(found: list[event_pb2.Event]) -> Table:
    from rich.table import Table

    from handmesh.cli.escape import one_line

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("position", "time", "credential", "server", "call", "result"):
        table.add_column(name, overflow="fold")
    for event in found:
        used = event.credential_used
        when = event.emit_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S")
        said = (used.credential_id, used.server, used.execution_id or "-", used.result)
        table.add_row(str(event.position), when, *(one_line(each, 100) for each in said))
    return table
