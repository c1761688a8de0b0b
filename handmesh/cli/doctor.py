"""The command that says what is missing on this machine: doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from handmesh.cli.options import DataDirectory, resolved
from handmesh.cli.problems import run


def doctor(
    port_base: Annotated[int, typer.Option(metavar="N", help="The port base that a mesh would use here.")] = 7400,
    data_directory: DataDirectory = None,
) -> None:
    """Looks at what a mesh needs on this machine, says what is missing and how to get it.

    Exits with 1 when something is missing that a mesh cannot do without.
    """

    async def body() -> int:
        from rich.text import Text

        from handmesh.cli.checks import MISSING, all_checks
        from handmesh.cli.escape import one_line
        from handmesh.cli.printing import console

        out, missing = console(), 0
        async for check in all_checks(resolved(data_directory), port_base):
            missing += check.state == MISSING
            line = Text()
            line.append(f"{_MARKS[check.state]} ", style=_STYLES[check.state])
            line.append(f"{check.name:<12} ", style="bold")
            line.append(one_line(check.found, 300))
            out.print(line, soft_wrap=True)
            if check.remedy:
                out.print(Text(f"  {'':<12} {check.remedy}", style=_STYLES[check.state]), soft_wrap=True)
        out.print("all that is needed is here" if not missing else f"{missing} needed, see above")
        return 1 if missing else 0

    run(body)


_MARKS = {"good": "✓", "optional": "-", "missing": "✗"}
_STYLES = {"good": "green", "optional": "yellow", "missing": "red"}
