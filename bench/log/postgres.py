"""A PostgreSQL of a benchmark's own, with its default of `synchronous_commit = on`."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.log.world import World, start_peer
from handmesh.launcher.ports import free_ports

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))  # where Debian has them


class Missing(Exception):
    """PostgreSQL cannot be measured here. The text says why."""


@asynccontextmanager
async def postgres(world: World) -> AsyncIterator[str]:
    """Starts a cluster, and a server that INSERTs into it; gives the server's address."""
    if not PROGRAMS:
        raise Missing("there is no PostgreSQL (Debian's package postgresql)")
    if importlib.util.find_spec("asyncpg") is None:
        raise Missing("asyncpg is not installed (pip install asyncpg)")
    program, directory = PROGRAMS[-1].parent, world.directory / "postgres"
    directory.mkdir()
    user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses root
        if shutil.which("setpriv") is None:
            raise Missing("PostgreSQL refuses root, and there is no setpriv")
        owner = pwd.getpwnam("postgres")
        os.chown(directory, owner.pw_uid, owner.pw_gid)
        world.directory.chmod(0o711)
        user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    (port,) = free_ports(1)
    data = str(directory / "data")
    control = [*user, str(program / "pg_ctl"), "-D", data, "-w", "-l", str(directory / "log")]
    if not await _run([*user, str(program / "initdb"), "-D", data, "-U", "bench", "-A", "trust", "--no-sync"]):
        raise Missing("initdb failed")
    if not await _run([*control, "-o", f"-p {port} -h 127.0.0.1 -k {directory}", "start"]):
        raise Missing("pg_ctl start failed")
    world.environment["HANDMESH_BENCH_POSTGRES"] = f"postgresql://bench@127.0.0.1:{port}/postgres"
    try:
        peer = await start_peer(world, "postgres", world.postgres_address)
        try:
            yield world.postgres_address
        finally:
            await peer.stop()
    finally:
        await _run([*control, "-m", "fast", "stop"])


async def _run(arguments: Sequence[str]) -> bool:
    process = await asyncio.create_subprocess_exec(
        *arguments, cwd="/", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    return not await process.wait()
