"""The commands for what lies in a session's hands: files, get."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.client import Client

FILES_EPILOG = """\b
Examples:
  handmesh files ID                                what the session's hand has in /workspace
  handmesh files ID /workspace/outputs             what the agent was asked to leave there
  handmesh files ID --hand build                   of a session with several hands
  handmesh get ID /workspace/outputs/report.pdf -o report.pdf
"""

Of = Annotated[str, typer.Argument(metavar="ID", help="The session, such as sess_01k..., or a sandbox: sbx_01k...")]
Hand = Annotated[str, typer.Option("--hand", metavar="NAME", help="Which hand, when the session has several.")]


def files(
    of: Of,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="The directory. Default: /workspace")] = "",
    hand: Hand = "",
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Lists the files in a session's hand, with their sizes."""

    async def body() -> int:
        from handmesh.cli.escape import one_line
        from handmesh.cli.printing import print_json
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            answer = await mesh.files(await _sandbox_of(mesh, of, hand), path)
        if as_json:
            print_json(answer)
            return 0
        for file in answer.files:
            typer.echo(f"{file.size:>12}  {one_line(file.path, 4096)}")
        if answer.truncated:
            typer.echo("there are more: name a directory further down", err=True)
        return 0

    run(body)


def get(
    of: Of,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file: an absolute path in the sandbox.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to. Default: standard output.")
    ] = None,
    hand: Hand = "",
    data_directory: DataDirectory = None,
) -> None:
    """Fetches a file from a session's hand."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            sandbox_id = await _sandbox_of(mesh, of, hand)
            if output is None:
                async for chunk in mesh.read_file(sandbox_id, path):
                    sys.stdout.buffer.write(chunk)
                return 0
            draft = output.with_name(output.name + ".part")  # a file that broke off never has the name of a whole one
            try:
                with draft.open("wb") as file:
                    async for chunk in mesh.read_file(sandbox_id, path):
                        file.write(chunk)
                draft.replace(output)
            finally:
                draft.unlink(missing_ok=True)
        return 0

    run(body)


async def _sandbox_of(mesh: Client, of: str, hand: str) -> str:
    """Finds the sandbox that is meant. Of a hand that has had several it is the newest."""
    from handmesh.cli.arguments import UsageError

    if of.startswith("sbx_"):
        return of
    by_hand = {sandbox.hand: sandbox.sandbox_id for sandbox in await mesh.sandboxes(of)}
    if not by_hand:
        raise UsageError("the session has no sandbox: none was needed yet, or it was released")
    if hand and hand not in by_hand:
        raise UsageError(f"the session has no sandbox for --hand {hand}; it has {', '.join(sorted(by_hand))}")
    if not hand and len(by_hand) > 1:
        raise UsageError(f"the session has several hands: say --hand, one of {', '.join(sorted(by_hand))}")
    return by_hand[hand] if hand else next(iter(by_hand.values()))
