"""Runs `services.session.migrate`, which makes and changes NATS's streams and then ends, with NATS's user for that."""

import asyncio
import sys

from handmesh.launcher.errors import PartFailed
from handmesh.launcher.processes import Command, Process, describe_exit
from handmesh.launcher.settings import MeshFiles, MeshSettings, operator_environment

MODULE = ("-P", "-m", "services.session.migrate")  # -P: what lies in the working directory is never imported


def start_migration(settings: MeshSettings) -> Process:
    """Starts it. It waits for a NATS that is starting."""
    files = MeshFiles(settings.data_directory)
    command = Command(
        name="migrate",
        arguments=[sys.executable, *MODULE],
        environment=operator_environment("migrate", settings),
        log=files.log("migrate"),
        directory=files.data_directory,
    )
    return Process.start(command, die_with_launcher=settings.die_with_launcher)


async def plan_migration(settings: MeshSettings) -> list[str]:
    """Asks what it would do, a line each. Raises PartFailed when it would refuse."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *MODULE, "--dry-run"),
        env=operator_environment("migrate", settings),
        cwd=settings.data_directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    planned, said = await process.communicate()
    if process.returncode:
        log = MeshFiles(settings.data_directory).log("migrate")
        raise PartFailed(said.decode(errors="replace").strip(), "migrate", log)
    return planned.decode().splitlines()


async def finish_migration(process: Process) -> None:
    """Waits for its end. Raises PartFailed when it could not do its work."""
    code = await process.ended()
    if code:
        raise process.failure(f"ended ({describe_exit(code)})")
