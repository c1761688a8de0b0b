"""The command `handmesh top`: what all sessions do, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.cli.top_reading import Reading, Seen
    from handmesh.cli.top_rows import Rates, Row

TOP_EPILOG = """\b
States:
  stuck      no harness has it, or nothing has moved for --stuck seconds: look at these first
  waiting    for your decision or your tool; DOING names the calls   handmesh events ID --last 5
  in tool    a tool call is at work; DOING names it, +2 says that two more are
  thinking   the model is asked
  working    the harness does something else: looks for tools, makes a hand
  queued     a harness will have it in a moment
  retrying   something failed and is tried again later
  paused     a budget is used up                                     handmesh raise ID cost=2
  asleep     it waits for a message

\b
Keys:
  q  leaves       s  sorts by state, tokens/s, cost, age
  a  hides or shows those asleep

\b
For programs:
  handmesh top --once --json | jq 'select(.state == "stuck").session_id'
"""


def top(
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, metavar="SECONDS", help="Between two looks.")] = 1.0,
    stuck: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Call a session stuck when nothing has moved for so long.")
    ] = 300.0,
    sort: Annotated[str, typer.Option(metavar="BY", help="state, tokens/s, cost or age.")] = "state",
    everything: Annotated[bool, typer.Option("--all", help="All sessions asleep, not only the newest 200.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Look twice, an interval apart, print, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: one JSON object a line.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Shows what all sessions do, again and again: thinking, in which tool and for how long, waiting, stuck.

    It asks each replica two cheap questions a look, whatever the number of sessions: no log is read.
    """

    async def body() -> int:
        from handmesh.cli.arguments import UsageError
        from handmesh.cli.top_reading import Reading
        from handmesh.cli.top_rows import SORTS, Rates
        from handmesh.client import connect

        if sort not in SORTS:
            raise UsageError(f"--sort {sort!r}: expected one of {', '.join(SORTS)}")
        if as_json and not once:
            raise UsageError("--json goes with --once: what is shown again and again is for people")
        async with connect(data_directory=data_directory) as mesh:
            reading, rates = Reading(mesh), Rates()
            try:
                if once:
                    await _print_once(reading, rates, interval, stuck, sort, everything, as_json)
                else:
                    from handmesh.cli.top_screen import Screen

                    await Screen(reading, rates, interval, stuck, sort, everything).run()
            finally:
                await reading.close()
        return 0

    run(body)


async def looked(
    reading: Reading, rates: Rates, stuck: float, *, asleep: bool = True, everything: bool = False
) -> tuple[Seen, list[Row]]:
    """Looks once, and makes the rows."""
    import time

    from handmesh.cli.top_rows import rows_of

    seen = await reading.look(asleep=asleep, everything=everything)
    now = time.time()
    return seen, rates.with_rates(rows_of(seen.sessions, seen.runs, now, stuck), seen.sessions, now)


async def _print_once(
    reading: Reading, rates: Rates, interval: float, stuck: float, sort: str, everything: bool, as_json: bool
) -> None:
    import asyncio
    import dataclasses
    import json

    from handmesh.cli.printing import console
    from handmesh.cli.top_rows import ordered
    from handmesh.cli.top_table import head, table

    await looked(reading, rates, stuck, everything=everything)
    await asyncio.sleep(interval)
    seen, rows = await looked(reading, rates, stuck, everything=everything)
    rows = ordered(rows, sort)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(dataclasses.asdict(row), separators=(",", ":")))
        return
    out = console()
    out.print(head(seen, rows), soft_wrap=True)
    out.print(table(rows))
