"""The commands that look after the logs: verify, migrate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.client import Client
    from handmesh.session.v1 import session_pb2

VERIFY_EPILOG = """\b
Examples:
  handmesh verify ID         one session
  handmesh verify --all      all of them; exit code 1 when anything is wrong with any
"""

VERIFY_SECONDS = 300.0
"""For one session: it is read whole."""


def verify(
    session_id: Annotated[str, typer.Argument(metavar="[ID]", help="The session, such as sess_01k...")] = "",
    every: Annotated[bool, typer.Option("--all", help="All sessions, also those that are archived.")] = False,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Reads a session's whole log and says what is wrong with it; exit code 1 when anything is."""

    async def body() -> int:
        from handmesh.cli import exits
        from handmesh.cli.arguments import UsageError
        from handmesh.client import connect

        if bool(session_id) == every:
            raise UsageError("name a session, or say --all")
        sessions = wrong = 0
        async with connect(data_directory=data_directory) as mesh:
            if session_id:
                sessions, wrong = 1, await _verify(mesh, session_id, as_json)
            else:
                async for each in mesh.sessions(include_archived=True):
                    sessions += 1
                    wrong += await _verify(mesh, each.session_id, as_json)
        if not as_json:
            typer.echo(f"{sessions} verified, {wrong} with violations" if every or wrong else "nothing is wrong")
        return exits.FAILED if wrong else exits.DONE

    run(body)


async def _verify(mesh: Client, session_id: str, as_json: bool) -> int:
    """Verifies one session and prints what is wrong; returns 1 if anything is."""
    from handmesh.cli.printing import print_json
    from handmesh.session.v1 import session_pb2

    request = session_pb2.VerifySessionRequest(session_id=session_id)
    answer = await mesh.session_link.call(mesh.session_stub.VerifySession, request, timeout=VERIFY_SECONDS)
    if as_json:
        print_json(answer)
    else:
        for violation in answer.violations:
            typer.echo(_line(session_id, violation))
    return bool(answer.violations)


def _line(session_id: str, violation: session_pb2.Violation) -> str:
    from handmesh.cli.escape import one_line

    return f"{session_id}  {violation.invariant}  position {violation.position}: {one_line(violation.message, 200)}"


def migrate(
    data_directory: DataDirectory = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
) -> None:
    """Makes and changes what NATS keeps the logs in, for this version. `up` does so by itself; harmless at any time."""

    async def body() -> int:
        from handmesh.cli.options import resolved
        from handmesh.launcher.errors import LaunchError
        from handmesh.launcher.lock import running
        from handmesh.launcher.migration import finish_migration, plan_migration, start_migration
        from handmesh.launcher.settings import MeshFiles, MeshSettings, Scripted

        directory = resolved(data_directory)
        mesh = running(directory)
        if mesh is None:
            raise LaunchError(f"no mesh runs on {directory}. Start one, which migrates too: handmesh up")
        model = Scripted(directory)  # nobody asks for it here
        settings = MeshSettings(directory, model, os.environ, mesh.ports)
        if dry_run:
            planned = await plan_migration(settings)
            typer.echo("\n".join(planned) or "nothing is left to do", err=not planned)
            return 0
        await finish_migration(start_migration(settings))
        typer.echo(f"NATS is as this version needs it; what was done is in {MeshFiles(directory).log('migrate')}")
        return 0

    run(body)
