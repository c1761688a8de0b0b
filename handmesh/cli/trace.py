"""`handmesh trace`: one session as a timeline, and which part of the mesh failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, SessionId
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from rich.console import Console

    from handmesh.client import Client
    from handmesh.diagnosis.verdict import Diagnosis

TRACE_EPILOG = """\b
Examples:
  handmesh trace ID                     what happened when, and which part failed
  handmesh trace ID --turn 3            one turn of it
  handmesh trace ID --follow            again and again, until the session ends or Ctrl-C
  handmesh trace ID --json | jq .verdict
  handmesh trace ID --svg picture.svg   the same as a picture

\b
Exit codes: 0 no fault, 10 a fault that was overcome; a fault that is in the way:
11 session, 12 harness, 13 hand, 14 proxy, 15 model, 16 network. 1 and 2 as everywhere.
"""

FOLLOW_SECONDS = 1.0
"""Between two looks, when nothing happens."""


def trace(
    session_id: SessionId,
    turn: Annotated[int, typer.Option(min=0, metavar="N", help="Only this turn, 1 for the first; 0 is all.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="Draw all turns, not only the last five.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Look again and again; Ctrl-C ends it.")] = False,
    names: Annotated[
        bool, typer.Option("--names", help="Show the names of hands, servers and tools, which people have chosen.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture to this file, as SVG.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this file, as a page.")] = None,
    data_directory: DataDirectory = None,
) -> None:
    """Draws a session as a timeline and says which part failed: session, harness, hand, proxy, model or network.

    Reads the log and asks the services how they fare; changes nothing, and looks into no container. Shows nothing that
    a person or a model wrote: no messages, no tool inputs or outputs, no paths; names are numbers unless --names.
    """

    async def body() -> int:
        from handmesh.cli import exits
        from handmesh.cli.arguments import UsageError
        from handmesh.client import connect

        if follow and (as_json or svg or html):
            raise UsageError("--follow draws on a terminal: leave out --json, --svg and --html")
        async with connect(data_directory=data_directory) as mesh:
            if follow:
                return await _followed(mesh, session_id, turn, every, names)
            seen = await _seen(mesh, session_id, turn, names)
        _show(seen, every, as_json, svg, html)
        return exits.of_verdict(seen.verdict.part, seen.verdict.state)

    run(body)


async def _seen(mesh: Client, session_id: str, turn: int, names: bool) -> Diagnosis:
    from handmesh.cli.arguments import UsageError
    from handmesh.diagnosis.gathering import gather
    from handmesh.diagnosis.names import names_of
    from handmesh.diagnosis.timeline import turns_of
    from handmesh.diagnosis.verdict import diagnosed

    evidence = await gather(mesh, session_id)
    count = len(turns_of(evidence.events, names_of(())))
    if turn > count:
        raise UsageError(f"--turn {turn}: the session has {count} turns")
    return diagnosed(evidence, turn, names)


def _show(seen: Diagnosis, every: bool, as_json: bool, svg: Path | None, html: Path | None) -> None:
    import json

    from handmesh.cli import trace_drawing
    from handmesh.cli.printing import console
    from handmesh.cli.trace_json import as_json as object_of

    def picture() -> Console:
        width = trace_drawing.FILE_WIDTH
        return trace_drawing.recorded(trace_drawing.drawing(seen, width, every=every), width)

    out = console()
    if svg is not None:
        svg.write_text(trace_drawing.svg_of(picture(), f"handmesh trace {seen.evidence.session_id}"), "utf-8")
    if html is not None:
        html.write_text(trace_drawing.html_of(picture()), "utf-8")
    if as_json:
        typer.echo(json.dumps(object_of(seen)))
    else:
        out.print(trace_drawing.drawing(seen, out.width, every=every, ascii=_is_ascii(out.encoding)), soft_wrap=True)


def _is_ascii(encoding: str) -> bool:
    return not encoding.lower().replace("-", "").startswith("utf")


async def _followed(mesh: Client, session_id: str, turn: int, every: bool, names: bool) -> int:
    from rich.live import Live

    from handmesh.cli import exits
    from handmesh.cli.printing import console
    from handmesh.cli.trace_drawing import drawing

    out = console()
    with Live(console=out, auto_refresh=False, vertical_overflow="visible") as live:
        async for seen in _looks(mesh, session_id, turn, names):
            live.update(drawing(seen, out.width, every=every, ascii=_is_ascii(out.encoding)), refresh=True)
            if seen.evidence.status == "ENDED":
                break
    return exits.of_verdict(seen.verdict.part, seen.verdict.state)


async def _looks(mesh: Client, session_id: str, turn: int, names: bool) -> AsyncIterator[Diagnosis]:
    import asyncio

    from handmesh.diagnosis.gathering import gather
    from handmesh.diagnosis.verdict import diagnosed

    evidence = await gather(mesh, session_id)
    while True:
        yield diagnosed(evidence, turn, names)
        await asyncio.sleep(FOLLOW_SECONDS)
        evidence = await gather(mesh, session_id, evidence.events)
