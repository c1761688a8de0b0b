"""A vault that is sealed, stands still or is killed while a session uses a tool: until the error, and until it works.

The credential of each call is looked up anew: each has a session of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc

from bench.figure import Figure
from bench.vault.world import World
from handmesh.launcher.files import read_strings
from handmesh.launcher.vault_operator import ACTIVE
from services.kit.channels import raised

TIMES = {"ci": 1, "full": 3}
CALLS = 8  # at once, while it is away
ERROR_SECONDS, BACK_SECONDS = 2.0, 5.0
GIVE_UP_SECONDS = 30.0
PAUSE_SECONDS = 0.02

Change = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Way:
    """How the vault goes away, and comes back. `back` returns when an operator would say that it is there again."""

    name: str
    away: Change
    back: Change


async def _seal(world: World) -> None:
    await asyncio.to_thread(world.stage.mesh.vault.seal)


async def _unseal(world: World) -> None:
    key = read_strings(world.files.openbao / "keys.json")["unseal_key"]
    vault = world.stage.mesh.vault
    await asyncio.to_thread(vault.unseal, key)
    while await asyncio.to_thread(vault.health) != ACTIVE:
        pass


async def _stop(world: World) -> None:
    os.kill(world.stage.mesh.pids["openbao"], signal.SIGSTOP)


async def _go_on(world: World) -> None:
    os.kill(world.stage.mesh.pids["openbao"], signal.SIGCONT)


async def _kill(world: World) -> None:
    await world.stage.mesh.kill("openbao")


async def _restart(world: World) -> None:
    await world.stage.mesh.restart("openbao")


WAYS = (Way("sealed", _seal, _unseal), Way("stopped", _stop, _go_on), Way("killed", _kill, _restart))


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields for each way the longest time until the error, and the time from its being back until a call works."""
    for way in WAYS:
        errors, backs = [], []
        for _ in range(TIMES[size]):
            sessions = [(await world.woken()).grant for _ in range(CALLS)]
            await way.away(world)
            try:
                errors.append(max(await asyncio.gather(*(_refused(world, grant) for grant in sessions))))
            finally:
                await way.back(world)
            backs.append(await _works(world, sessions[0]))
        yield Figure(f"vault {way.name}: until {CALLS} calls end", "s", tuple(errors), ERROR_SECONDS)
        yield Figure(f"vault {way.name}: until a call works again", "s", tuple(backs), BACK_SECONDS)


async def _refused(world: World, grant: str) -> float:
    begun = time.perf_counter()
    try:
        await world.execute(grant, "toolu_away")
    except grpc.aio.AioRpcError as error:
        if raised(error).reason != "VAULT_UNAVAILABLE":
            raise
        return time.perf_counter() - begun
    raise RuntimeError("a call worked without its credential")


async def _works(world: World, grant: str) -> float:
    begun = time.perf_counter()
    while True:
        try:
            await world.execute(grant, "toolu_back")
            return time.perf_counter() - begun
        except grpc.aio.AioRpcError:
            if time.perf_counter() - begun > GIVE_UP_SECONDS:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
