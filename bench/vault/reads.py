"""What the vault costs: a read of a secret and a session's login, beside the same requests over bare HTTP.

The store of this service runs in this process, on the mesh's OpenBao and with the word of its session service; the bare
requests are Python's http.client on a connection that stays open. Interleaved blocks, one call at a time.

The session service's word for the vault comes with its answer about the grant, which is asked for in any case. So
minting a token is what that answer takes longer with a word than without, and the login. A bare login has its word.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.hands.world import p50, timed
from bench.vault.world import World
from handmesh.launcher.openbao import approle_file, issue_approle
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit.channels import connect
from services.kit.errors import Unavailable
from services.kit.grants import GRANT_KEY, Grants
from services.vault_proxy.passes import GrantPass
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.hashicorp.store import HashicorpStore

CALLS = 25  # of a block
BLOCKS = {"ci": 6, "full": 24}
READ, MINT = 2.5, 1.5
AT_ONCE = 8  # that read while the loop is watched
STALL_MS = 25.0
STALLS = {"ci": 3, "full": 10}
TICK_SECONDS = 0.001
READING_SECONDS = 1.0

Call = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Bare:
    """A connection of http.client to the vault."""

    connection: http.client.HTTPConnection

    def ask(self, method: str, path: str, token: str = "", body: object = None) -> Any:
        """Sends one request, and blocks."""
        headers = {"X-Vault-Token": token} if token else {}
        self.connection.request(method, f"/v1/{path}", None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        said = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"the vault answers {answer.status}")
        return said


@dataclass(frozen=True)
class Ground:
    """A store, a session's pass, and where its secret is."""

    store: HashicorpStore
    holder: GrantPass
    path: str
    bare: Bare
    session: Any

    async def grant(self) -> None:
        """Asks the session service about the grant, without its word."""
        shown = ((GRANT_KEY, self.holder.grant.reveal()),)
        await self.session.CheckGrant(session_pb2.CheckGrantRequest(), metadata=shown)

    async def read(self) -> None:
        """Reads the secret as the service does."""
        if await self.store.read_secret(self.path, self.holder) is None:
            raise RuntimeError("the secret is not there")

    async def word(self) -> Secret[str]:
        """Asks the session service for its word."""
        return await self.holder.voucher()


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields both ratios, then what the loop is held up by."""
    async with _ground(world) as ground:
        token = (await ground.store.mint(await ground.holder.voucher()))[0].reveal()
        words: list[Secret[str]] = []

        async def bare_read() -> None:
            ground.bare.ask("GET", f"handmesh/data/{ground.path}", token)

        async def bare_login() -> None:
            ground.bare.ask("POST", "auth/handmesh/login", body={"role": "session", "jwt": words.pop().reveal()})

        async def login() -> None:
            await ground.store.mint(words.pop())

        calls: dict[str, Call] = {
            "read": ground.read,
            "bare_read": bare_read,
            "word": ground.word,
            "grant": ground.grant,
            "login": login,
            "bare_login": bare_login,
        }
        rows: dict[str, list[float]] = {name: [] for name in calls}
        for block in range(BLOCKS[size] + 1):
            for name, call in calls.items():
                if name.endswith("login"):
                    words += [await ground.word() for _ in range(CALLS)]
                took = p50(await timed(call, CALLS))
                if block:
                    rows[name].append(took)
            token = (await ground.store.mint(await ground.holder.voucher()))[0].reveal()  # it lives a minute
        parts = zip(rows["word"], rows["grant"], rows["login"], strict=True)
        minted = [max(0.0, word - grant) + login for word, grant, login in parts]
        shown = {f"{name}_p50_ms": round(statistics.median(values), 3) for name, values in rows.items()}
        yield _ratio("a read of a secret p50 : bare HTTP read", rows["read"], rows["bare_read"], READ, shown)
        yield _ratio("minting a session's token p50 : bare JWT login", minted, rows["bare_login"], MINT, shown)
        yield await _stalls("longest stall of the loop while 8 read", ground, size)
        pid = world.stage.mesh.pids["openbao"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield await _stalls("longest stall of the loop while the vault stands still", ground, size)
        finally:
            os.kill(pid, signal.SIGCONT)


def _ratio(name: str, ours: list[float], bare: list[float], bound: float, shown: dict[str, float]) -> Figure:
    ratios = tuple(mine / raw for mine, raw in zip(ours, bare, strict=True))
    return Figure(name, "ratio", ratios, bound, more=shown)


async def _stalls(name: str, ground: Ground, size: str) -> Figure:
    return Figure(name, "ms", tuple([await _stall(ground) for _ in range(STALLS[size])]), STALL_MS)


async def _stall(ground: Ground) -> float:
    """Reads for a second, many at once; returns by how much a timer of the loop was late at most, in ms."""
    ends = time.perf_counter() + READING_SECONDS
    late = 0.0

    async def reads() -> None:
        while time.perf_counter() < ends:
            try:
                await ground.read()
            except Unavailable:
                pass

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(reads())
        while (begun := time.perf_counter()) < ends:
            await asyncio.sleep(TICK_SECONDS)
            late = max(late, time.perf_counter() - begun - TICK_SECONDS)
    return late * 1000


@asynccontextmanager
async def _ground(world: World) -> AsyncIterator[Ground]:
    session = await world.woken()
    ports = world.stage.mesh.settings.ports
    vault = world.stage.mesh.vault
    names = _names(vault, world.stage.vault_id)
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        issue_approle(Path(folder), vault)
        store = HashicorpStore(f"http://127.0.0.1:{ports.openbao}", "handmesh", approle_file(Path(folder)))
        async with connect(ports.mesh("session"), world.files.tls / "vault_proxy") as channel:
            stub = SessionServiceStub(channel)  # type: ignore[arg-type]
            grants = Grants(stub, lambda session_id, below: None)
            holder = GrantPass(session.session_id, session.epoch, grants, Secret(session.grant))
            bare = Bare(http.client.HTTPConnection("127.0.0.1", ports.openbao, timeout=20))
            try:
                yield Ground(store, holder, f"tenants/default/secrets/{world.stage.vault_id}/{names[0]}", bare, stub)
            finally:
                bare.connection.close()
                await store.close()


def _names(vault: Any, vault_id: str) -> list[str]:
    bare = Bare(http.client.HTTPConnection(vault.host, vault.port, timeout=20))
    answer = bare.ask("LIST", f"handmesh/metadata/tenants/default/secrets/{vault_id}", vault.token)
    bare.connection.close()
    return list(answer["data"]["keys"])
