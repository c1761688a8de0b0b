"""The commands around a mesh on this machine: up, down, key, model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handmesh.cli.options import DataDirectory, resolved
from handmesh.cli.problems import run, say

KEY_EPILOG = """\b
Example:
  grpcurl -plaintext -H "authorization: Bearer $(handmesh key)" 127.0.0.1:7401 \\
    handmesh.session.v1.SessionService/ListSessions
"""


def up(
    data_directory: DataDirectory = None,
    port_base: Annotated[
        int, typer.Option(metavar="N", help="The services listen on this port plus 1 to 4, the other parts above.")
    ] = 7400,
    replicas: Annotated[
        int, typer.Option(metavar="N", help="Processes of each service; the others' ports lie 50 apart.")
    ] = 1,
    model_script: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Play this script instead of asking Claude."),
    ] = None,
    environments: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="A file of environments for sandboxes."),
    ] = None,
    allow_unisolated: Annotated[
        bool, typer.Option("--allow-unisolated", help="Allow the environment `process`, which isolates nothing.")
    ] = False,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="From where on the services log: debug, info, ...")
    ] = "info",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Count what the services do, for Prometheus, on the port plus 45 to 48.")
    ] = False,
    otlp: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Send traces to the OpenTelemetry collector at HOST:PORT.")
    ] = None,
    trace_dir: Annotated[
        Path | None,
        typer.Option(file_okay=False, metavar="DIR", help="Write traces there, a file for each service."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is healthy; `down` stops it.")] = False,
) -> None:
    """Starts a mesh on this machine: NATS, OpenBao and the four services. Ctrl-C stops it.

    With ANTHROPIC_API_KEY (and ANTHROPIC_BASE_URL, if it is another address) agents talk to Claude; without, to a
    scripted model that plays a script. Everything listens on loopback; all state is in the data directory.
    """

    async def body() -> int:
        from handmesh.cli import detached, upkeep

        options = upkeep.UpOptions(
            port_base,
            model_script,
            environments,
            allow_unisolated,
            log_level,
            replicas,
            metrics,
            otlp,
            trace_dir,
        )
        settings = upkeep.settings_of(resolved(data_directory), options)
        return await (detached.start(settings) if detach else upkeep.hold_up(settings))

    run(body)


def down(
    release: Annotated[bool, typer.Option("--release", help="Also end all hands, with what is in them.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Stops the mesh of a data directory, wherever it was started. Its state stays.

    Hands stay too, and what runs in them: their sessions find them again at the next `up`. --release ends them.
    """

    async def body() -> int:
        from handmesh.client import connect
        from handmesh.launcher.lock import running, stop_running

        directory = resolved(data_directory)
        if release and running(directory) is not None:
            async with connect(data_directory=directory) as mesh:
                for sandbox in await mesh.sandboxes():
                    await mesh.release(sandbox.sandbox_id)
        stopped = await stop_running(directory)
        typer.echo("stopped" if stopped else f"no mesh runs on {directory}", err=not stopped)
        return 0

    run(body)


def key(data_directory: DataDirectory = None) -> None:
    """Prints the clients' API key of the mesh on this machine, for other programs."""
    from handmesh.client.addresses import api_key_file, local_api_key

    directory = resolved(data_directory)
    found = local_api_key(directory)
    if found is None:
        code = say(f"{api_key_file(directory)} is not there", 1, "The first `handmesh up` makes it")
        raise typer.Exit(code)
    typer.echo(found)


def model(context: typer.Context) -> None:
    """Runs the scripted model alone: a server that speaks the Messages API and plays a script.

    Options: --script FILE, --listen HOST:PORT, --api-key KEY, --check. For tests of your own.
    """
    from handmesh.scripted_model.__main__ import main

    raise typer.Exit(main(context.args))
