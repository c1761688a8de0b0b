"""The commands for sessions as a whole: archive, delete, fork, export, import."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import IO, Annotated

import typer

from handmesh.cli.options import DataDirectory, SessionId
from handmesh.cli.problems import run

EXPORT_EPILOG = """\b
Examples:
  handmesh export ID > log.jsonl
  handmesh export ID | ssh elsewhere handmesh import -
"""


def archive(
    session_id: SessionId,
    restore: Annotated[bool, typer.Option("--restore", help="Make it writable again.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Makes a session read-only and takes it out of lists. --restore undoes that."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            await mesh.session(session_id).archive(restore=restore)
        typer.echo("restored" if restore else f"archived. Undo it with: handmesh archive {session_id} --restore")
        return 0

    run(body)


def delete(
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Deletes a session for good: its events and its blobs."""
    if not yes:
        typer.confirm(f"Delete {session_id}? There is no way back.", abort=True, err=True)

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            await mesh.session(session_id).delete()
        typer.echo("deleted")
        return 0

    run(body)


def fork(
    session_id: SessionId,
    at: Annotated[int, typer.Option("--at", min=0, metavar="N", help="Last position to share; 0 is the end.")] = 0,
    title: Annotated[str, typer.Option(metavar="TEXT", help="The new session's title.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set a label of the new session.")
    ] = None,
    data_directory: DataDirectory = None,
) -> None:
    """Makes a new session that begins with this one's events, and prints its id. This one stays as it is."""

    async def body() -> int:
        from handmesh.cli.arguments import labels_of
        from handmesh.client import connect

        labels = labels_of(label or ())
        async with connect(data_directory=data_directory) as mesh:
            session, config = mesh.session(session_id), None
            if title or labels:
                config = (await session.get()).config
                config.title = title or config.title
                for key, value in labels.items():
                    config.labels[key] = value
            typer.echo((await session.fork(at, config)).id)
        return 0

    run(body)


WithoutBlobs = Annotated[bool, typer.Option("--without-blobs", help="Leave out what lies beside the log.")]


def export(session_id: SessionId, without_blobs: WithoutBlobs = False, data_directory: DataDirectory = None) -> None:
    """Prints a session's log and its blobs as JSON Lines, with what shows that no line was changed or lost."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            async for line in mesh.session(session_id).export(blobs=not without_blobs):
                typer.echo(line)
        return 0

    run(body)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that `export` made; - is standard input.")],
    without_blobs: WithoutBlobs = False,
    data_directory: DataDirectory = None,
) -> None:
    """Makes a new session from an exported log, and prints its id."""

    async def body() -> int:
        from handmesh.cli.arguments import UsageError
        from handmesh.client import connect

        try:
            opened = _spooled(sys.stdin) if file == "-" else _opened(file)
        except OSError as problem:
            raise UsageError(f"{file!r} cannot be read: {problem.strerror}") from None

        def lines() -> IO[str]:
            opened.seek(0)
            return opened

        with opened:
            async with connect(data_directory=data_directory) as mesh:
                typer.echo((await mesh.import_session(lines, blobs=not without_blobs)).id)
        return 0

    run(body)


def _opened(file: str) -> IO[str]:
    return Path(file).open(encoding="utf-8", errors="replace", newline="")  # the caller closes it


def _spooled(source: IO[str]) -> IO[str]:
    """Copies what can be read once to where it can be read twice."""
    kept = tempfile.TemporaryFile("w+", encoding="utf-8", newline="")  # noqa: SIM115  # the same
    for line in source:
        kept.write(line)
    return kept
