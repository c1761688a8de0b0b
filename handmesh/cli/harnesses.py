"""The commands about harness types: harness types, harness check, move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import PASSED_ON, DataDirectory, Json, SessionId
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from handmesh.harness.v1 import harness_pb2
    from handmesh.session.v1 import session_pb2

TYPES_EPILOG = """\b
A session is of one type, and may be moved to another one:
  handmesh run --harness echo "say this"
  handmesh move ID --harness messages

\b
Types come from the harnesses that run. Which ones a harness is: HANDMESH_HARNESS_TYPES. To write one: docs/harness.md.
"""
MOVE_EPILOG = """\b
Examples:
  handmesh move ID --harness echo        its next turn is the echo type's
  handmesh move ID --harness messages    and back
"""

app = typer.Typer(
    name="harness", help="Harness types: what kinds of brain there are.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(epilog=TYPES_EPILOG)
def types(as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Lists the harness types of the mesh: how many harnesses serve each, and what it is."""

    async def body() -> int:
        from handmesh.cli.printing import console, print_json
        from handmesh.client import HandmeshError, connect

        async with connect(data_directory=data_directory) as mesh:
            served = {each.name: each for each in await mesh.served_types()}
            try:
                known = {each.name: each for each in await mesh.harness_types()}
            except HandmeshError as problem:
                if problem.code != "UNAVAILABLE":
                    raise
                known = {}  # no harness answers: its types are not served either
        if as_json:
            for each in (*known.values(), *(served[name] for name in sorted(served.keys() - known.keys()))):
                print_json(each)
            return 0
        console().print(_table(known, served))
        typer.echo(
            "choose one: handmesh run --harness NAME ...   move a session: handmesh move ID --harness NAME", err=True
        )
        return 0

    run(body)


@app.command(context_settings=PASSED_ON)
def check(context: typer.Context) -> None:
    """Checks a harness of your own, in any language, against a mesh that runs. See docs/wire.md."""
    from handmesh.conformance.harness.__main__ import main

    raise typer.Exit(main(context.args))


def move(
    session_id: SessionId,
    harness: Annotated[str, typer.Option("--harness", metavar="NAME", help="The harness type that it is to be of.")],
    data_directory: DataDirectory = None,
) -> None:
    """Makes a session one of another harness type, which reads the same log. An answered turn is ended as it began."""

    async def body() -> int:
        from handmesh.cli.waiting import unserved
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            before = await mesh.session(session_id).move(harness)
            typer.echo(f"moved from {before or 'messages'} to {harness}")
            if why := unserved(harness, await mesh.served_types()):
                typer.secho(f"{why}: the session waits for one", fg="yellow", err=True)
        return 0

    run(body)


def _table(known: Mapping[str, harness_pb2.HarnessType], served: Mapping[str, session_pb2.ServedType]) -> Table:
    from rich.table import Table

    from handmesh.cli.escape import one_line

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("type", "harnesses", "room", "what it is"):
        table.add_column(name, overflow="fold", justify="right" if name in ("harnesses", "room") else "left")
    for name in sorted(known.keys() | served.keys()):
        there = served.get(name)
        numbers = (str(there.harnesses), str(there.room)) if there else ("-", "-")
        table.add_row(name, *numbers, one_line(_about(known.get(name), there is not None), 300))
    return table


def _about(kind: harness_pb2.HarnessType | None, is_served: bool) -> str:
    if kind is None:
        return "(of a harness elsewhere)"
    if kind.unavailable and not is_served:
        return f"{kind.description} Not available: {kind.unavailable}.".strip()
    return kind.description
