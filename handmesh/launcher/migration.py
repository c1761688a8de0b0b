"""Runs `services.session.migrate`, which makes and changes NATS's streams and then ends, with NATS's user for that."""

import sys

from handmesh.launcher.processes import Command, Process, describe_exit
from handmesh.launcher.settings import MeshFiles, MeshSettings, operator_environment


def start_migration(settings: MeshSettings) -> Process:
    """Starts it. It waits for a NATS that is starting. -P: what lies in the working directory is never imported."""
    files = MeshFiles(settings.data_directory)
    command = Command(
        name="migrate",
        arguments=[sys.executable, "-P", "-m", "services.session.migrate"],
        environment=operator_environment("migrate", settings),
        log=files.log("migrate"),
        directory=files.data_directory,
    )
    return Process.start(command, die_with_launcher=settings.die_with_launcher)


async def finish_migration(process: Process) -> None:
    """Waits for its end. Raises PartFailed when it could not do its work."""
    code = await process.ended()
    if code:
        raise process.failure(f"ended ({describe_exit(code)})")
