"""Puts the `handmesh` command together: `handmesh`, or `python -m handmesh.cli`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from handmesh.cli import (
    doctor,
    files,
    hand,
    harnesses,
    integrity,
    keys,
    lifecycle,
    memory,
    mesh,
    running,
    sessions,
    top,
    trace,
    vault,
)

EPILOG = """\b
Start here:
  handmesh doctor                what is missing on this machine, and how to get it
  handmesh up                    starts a mesh on this machine; Ctrl-C stops it
  handmesh run "list the files"  in another terminal: an agent at work
  handmesh sessions              what there is
  handmesh events ID             everything that happened
  handmesh trace ID              what took how long, and which part failed

\b
A mesh elsewhere: set HANDMESH_ADDRESS=host:port, HANDMESH_API_KEY and, for its own authority, HANDMESH_CA_FILE.
"""

# Plain help: rich's panels take 100 ms more, and its markup would read [brackets] in examples.
app = typer.Typer(
    name="handmesh",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    epilog=EPILOG,
)
app.command()(mesh.up)
app.command()(mesh.down)
app.command(epilog=running.RUN_EPILOG)(running.run)
app.command()(sessions.sessions)
app.command(epilog=top.TOP_EPILOG)(top.top)
app.command(epilog=sessions.EVENTS_EPILOG)(sessions.events)
app.command(epilog=trace.TRACE_EPILOG)(trace.trace)
app.command()(sessions.send)
app.command()(sessions.interrupt)
app.command()(sessions.wake)
app.command("raise", epilog=sessions.RAISE_EPILOG)(sessions.raise_)
app.command()(sessions.end)
app.command(epilog=harnesses.MOVE_EPILOG)(harnesses.move)
app.command(epilog=files.FILES_EPILOG)(files.files)
app.command()(files.get)
app.command(epilog=integrity.VERIFY_EPILOG)(integrity.verify)
app.command()(integrity.migrate)
app.command()(lifecycle.archive)
app.command()(lifecycle.delete)
app.command()(lifecycle.fork)
app.command(epilog=lifecycle.EXPORT_EPILOG)(lifecycle.export)
app.command("import")(lifecycle.import_)
app.command(epilog=mesh.KEY_EPILOG)(mesh.key)
app.command()(doctor.doctor)
app.add_typer(harnesses.app)
app.add_typer(memory.app)
app.add_typer(vault.app)
app.add_typer(hand.app)
app.add_typer(keys.app)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(mesh.model)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"handmesh {version('handmesh')}")
        except PackageNotFoundError:  # run from its folder
            typer.echo("handmesh (not installed)")
        raise typer.Exit


@app.callback()
def handmesh(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Long-running agents whose brain, hands and memory are separate services.

    The mesh keeps every session's log; harnesses, sandboxes and this command come and go.
    """


def main() -> None:
    """Runs the command."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # what gRPC notes about connections is nothing to a person
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # they are text files
    app()


if __name__ == "__main__":
    main()
