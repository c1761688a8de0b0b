"""Starts `handmesh up` in the background and waits until its mesh is healthy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import typer

from handmesh.cli.upkeep import ALLOW_UNISOLATED, option_of, welcome
from handmesh.client.health import serves
from handmesh.launcher.errors import AlreadyRunning, LaunchError
from handmesh.launcher.files import private_directory
from handmesh.launcher.lock import running
from handmesh.launcher.openbao import approle_file
from handmesh.launcher.ports import replica_of, require_free
from handmesh.launcher.processes import log_tail
from handmesh.launcher.settings import MeshFiles, MeshSettings, Scripted

HEALTHY_WITHIN = 60.0
"""Seconds for the whole start."""

LOOK_EVERY = 0.02


async def start(settings: MeshSettings) -> int:
    """Starts the mesh as a process of its own and returns 0 when all four services serve, and have their logins.

    Raises LaunchError, with the end of its log, when it ends before, or is not healthy in time.
    """
    if (holder := running(settings.data_directory)) is not None:
        text = f"a mesh already runs on {settings.data_directory} (pid {holder.pid})"
        raise AlreadyRunning(text, holder.pid)
    require_free(settings.listened_on)  # or another mesh there would look like a healthy one of ours
    loop = asyncio.get_running_loop()
    began = loop.time()
    log = private_directory(settings.data_directory / "logs") / "up.log"
    child = _spawn(settings, log)
    try:
        async with asyncio.timeout(HEALTHY_WITHIN):
            await _healthy(settings, child, log)
    except TimeoutError:
        child.terminate()
        raise LaunchError(f"the mesh was not healthy within {HEALTHY_WITHIN:g} s; its log is {log}") from None
    text = welcome(settings, loop.time() - began).removesuffix("Ctrl-C stops it.")
    typer.echo(f"{text}It runs in the background; stop it with: handmesh down{option_of(settings.data_directory)}")
    return 0


async def _healthy(settings: MeshSettings, child: subprocess.Popen[bytes], log: Path) -> None:
    for part in settings.services:
        service, replica = replica_of(part)
        # vault_proxy serves before it can log in
        login = approle_file(MeshFiles(settings.data_directory).openbao, replica)
        address = settings.replicas[replica].client(service)
        while not await serves(address) or (service == "vault_proxy" and not login.exists()):
            if child.poll() is not None:
                tail = "\n".join(log_tail(log))
                raise LaunchError(f"the mesh did not start (exit code {child.returncode}):\n{tail}")
            await asyncio.sleep(LOOK_EVERY)


def _spawn(settings: MeshSettings, log: Path) -> subprocess.Popen[bytes]:
    base = settings.ports.session - 1
    arguments = [sys.executable, "-P", "-m", "handmesh.cli", "up", "--data-dir", str(settings.data_directory)]
    arguments += ["--port-base", str(base), "--replicas", str(len(settings.replicas))]
    arguments += ["--log-level", settings.log_level]
    if isinstance(settings.model, Scripted):
        arguments += ["--model-script", str(settings.model.script)]
    if settings.extra["sandbox"].get(ALLOW_UNISOLATED):
        arguments.append("--allow-unisolated")
    if settings.metrics:
        arguments.append("--metrics")
    if settings.otlp is not None:
        arguments += ["--otlp", settings.otlp]
    if settings.trace_directory is not None:
        arguments += ["--trace-dir", str(settings.trace_directory.absolute())]
    if settings.environments_file is not None:
        arguments += ["--environments", str(settings.environments_file)]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
        )
    finally:
        os.close(descriptor)
