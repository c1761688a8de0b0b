"""Wires the sandbox service and runs it."""

from __future__ import annotations

import asyncio
import sys

from handmesh.sandbox.v1.sandbox_pb2_grpc import add_SandboxServiceServicer_to_server
from services.kit.serving import Server, main, until_signal
from services.sandbox import backends, environments
from services.sandbox.hand import HandSettings
from services.sandbox.sandboxes import Sandboxes
from services.sandbox.seeds import Seeds
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_planting import Planting
from services.sandbox.server import SandboxServicer
from services.sandbox.settings import Settings

TIDY_SECONDS = 30.0


async def run(settings: Settings) -> None:
    """Serves until SIGTERM. The sandboxes stay, for the service that comes after."""
    try:
        known = environments.load(settings.environments_file, backends.keys())
    except environments.EnvironmentsError as problems:
        sys.exit(f"sandbox: {problems}")
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    hands = backends.Backends(
        HandSettings(settings.state_dir.absolute(), settings.allow_unisolated, settings.docker_host)
    )
    seeds = Seeds(settings.state_dir.absolute() / "seeds", Git(settings.git_ca_file), settings.seeds())
    sandboxes = Sandboxes(hands, known, planting=Planting(seeds))
    server = Server(settings)
    add_SandboxServiceServicer_to_server(SandboxServicer(sandboxes), server.grpc)
    await server.start("handmesh.sandbox.v1.SandboxService")
    background = [asyncio.create_task(sandboxes.prepare()), asyncio.create_task(_tidy(sandboxes))]
    try:
        await until_signal()
    finally:
        for task in background:
            task.cancel()
        await server.stop()
        await sandboxes.close()
        await hands.close()


async def _tidy(sandboxes: Sandboxes) -> None:
    while True:
        await sandboxes.tidy()
        await asyncio.sleep(TIDY_SECONDS)


if __name__ == "__main__":
    main("sandbox", Settings, run)
