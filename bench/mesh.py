"""The mesh as a whole: sessions and turns per second, what each part needs, and what replicas, traces and TLS cost.

Whole meshes of real processes, side by side in front of scripted models that answer at once: one of one replica each,
one that traces into a file, one of two replicas with sessions pinned to them, one of two with calls that go anywhere.
They work by turns, in short rounds, so that whatever else the machine does meets all of them; a figure is the ratio
within a round. All processes, the clients among them, share the machine.

A turn is a message, its answer, and the client's hearing of its end, in a session without hands that had turns before.

What mutual TLS costs is measured on the session service's two ports, for nothing in a service turns it off: the same
call at the mesh's port and at the clients', which on loopback is plain text. A turn is more than its calls, so that it
costs a turn less.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from bench.brain.progress import telling, told
from bench.brain.shown import Shown
from bench.brain.world import cpu_seconds, p50, percentile, resident
from bench.figure import Figure
from handmesh.client import Client, HandmeshError, Session, connect
from handmesh.client.addresses import local_api_key
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import SERVICES, Ports, replica_of
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub

ROUNDS = {"ci": 3, "full": 14}
SECONDS = {"ci": 1.0, "full": 3.0}  # of one mesh in a round
WARM_SECONDS = {"ci": 1.0, "full": 4.0}
AT_ONCE = 8  # sessions that have turns side by side
CREATING = 16  # callers that make sessions side by side
TURNS_EACH = 20  # of a session, before another takes its place: its prompts stay short
CALLS_AT_ONCE = 4
COST = 1.15
PINNED, ANYWHERE_P50 = 0.9, 1.6
SCRIPT = "default: {repeat: true, steps: [{say: [{text: It is done.}]}]}"
ANYWHERE = {"HANDMESH_REPLICA_CHOICE": "random"}


@dataclass
class Arm:
    """A mesh, and what was measured of it."""

    name: str
    mesh: Mesh
    client: Client
    turns: list[float] = field(default_factory=list)  # a second, by round
    medians: list[float] = field(default_factory=list)  # ms, by round
    taken: list[float] = field(default_factory=list)  # ms, of each turn
    created: list[float] = field(default_factory=list)  # a second, by round
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds during turns, by part
    sessions: list[Talk] = field(default_factory=list)

    async def round(self, seconds: float) -> None:
        """Has turns for so long, and notes how many."""
        while len(self.sessions) < AT_ONCE:
            self.sessions.append(await Talk.begin(self.client))
        before = {part: cpu_seconds(pid) for part, pid in self.mesh.pids.items()}
        until, begun, taken = time.monotonic() + seconds, time.monotonic(), list[float]()
        await asyncio.gather(*(self._turns(at, until, taken) for at in range(AT_ONCE)))
        self.turns.append(len(taken) / (time.monotonic() - begun))
        self.medians.append(p50(taken))
        self.taken += taken
        for part, pid in self.mesh.pids.items():
            self.cpu[part] += cpu_seconds(pid) - before[part]

    async def _turns(self, at: int, until: float, taken: list[float]) -> None:
        while time.monotonic() < until:
            if self.sessions[at].turns >= TURNS_EACH:
                await self.sessions[at].close()
                self.sessions[at] = await Talk.begin(self.client)
            taken.append(await self.sessions[at].turn())

    async def create(self, seconds: float) -> None:
        """Makes sessions for so long, and notes how many."""
        begun, made = time.monotonic(), 0

        async def make() -> None:
            nonlocal made
            while time.monotonic() - begun < seconds:
                await self.client.create_session(SessionConfig(no_hands=True))
                made += 1

        await asyncio.gather(*(make() for _ in range(CREATING)))
        self.created.append(made / (time.monotonic() - begun))

    def forget(self) -> None:
        """Forgets what was measured: it was to warm up."""
        for kept in (self.turns, self.medians, self.taken, self.created):
            kept.clear()
        self.cpu.clear()


@dataclass
class Talk:
    """A session that is watched."""

    session: Session
    ends: asyncio.Queue[int]
    watching: asyncio.Task[None]
    turns: int = 0

    @classmethod
    async def begin(cls, client: Client) -> Talk:
        """Makes a session and has its first turn."""
        session = await client.create_session(SessionConfig(no_hands=True))
        ends: asyncio.Queue[int] = asyncio.Queue()

        async def watch() -> None:
            async for event in session.watch():
                if event.HasField("turn_ended"):
                    ends.put_nowait(event.turn_ended.read_position)

        talk = cls(session, ends, asyncio.create_task(watch()))
        await talk.turn()
        return talk

    async def turn(self) -> float:
        """Has a turn; returns how many ms it took."""
        begun = time.monotonic()
        position = await self.session.send("And now?")
        while await self.ends.get() < position:
            pass
        self.turns += 1
        return (time.monotonic() - begun) * 1e3

    async def close(self) -> None:
        """Ends the session: a harness need not keep it."""
        self.watching.cancel()
        await asyncio.wait({self.watching})
        with contextlib.suppress(HandmeshError):
            await self.session.end()


async def measure(size: str, only: str = "") -> AsyncIterator[Any]:
    """Yields all figures."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        (folder / "script.yaml").write_text(SCRIPT)
        arms = {name: await _start(stack, folder, name) for name in ("one", "traced", "two", "anywhere")}
        for arm in arms.values():
            await arm.round(WARM_SECONDS[size])
            await arm.create(WARM_SECONDS[size] / 4)
            arm.forget()
        for number in telling("rounds", range(ROUNDS[size])):
            for arm in _shuffled(list(arms.values()), number):
                await arm.round(SECONDS[size])
            await arms["one"].create(SECONDS[size] / 2)
        for figure in _figures(arms):
            yield figure
        yield await _tls(arms["one"].mesh, size)
        for arm in arms.values():
            await asyncio.gather(*(talk.close() for talk in arm.sessions))


async def _start(stack: AsyncExitStack, folder: Path, name: str) -> Arm:
    replicas = 2 if name in ("two", "anywhere") else 1
    more = dict(ANYWHERE) if name == "anywhere" else {}
    extra = {
        service: more | ({"HANDMESH_TRACE_FILE": str(folder / f"{service}.jsonl")} if name == "traced" else {})
        for service in SERVICES
    }
    ports, *others = (Ports.free() for _ in range(replicas))
    settings = MeshSettings(
        folder / name,
        Scripted(folder / "script.yaml"),
        os.environ,
        ports,
        tuple(others),
        log_level="warning",
        extra=extra,
    )
    told(f"  starts the mesh `{name}`")
    mesh = await stack.enter_async_context(await Mesh.start(settings))
    client = await stack.enter_async_context(connect(data_directory=settings.data_directory))
    return Arm(name, mesh, client)


def _shuffled(arms: list[Arm], number: int) -> list[Arm]:
    random.Random(number).shuffle(arms)
    return arms


def _figures(arms: dict[str, Arm]) -> list[Any]:
    one = arms["one"]
    shown = {"per_second": round(p50(one.turns), 1), "at_once": AT_ONCE}
    shown |= {f"p{of}_ms": round(percentile(one.taken, of), 1) for of in (50, 95)}
    created = {"per_second": round(p50(one.created), 1), "callers": CREATING}
    others = {name: round(p50(arm.turns), 1) for name, arm in arms.items()}
    medians = {name: round(percentile(arm.taken, 50), 1) for name, arm in arms.items()}
    both = {"turns_per_second": others, "p50_ms": medians}
    return [
        Shown("sessions created", created),
        Shown("turns", shown),
        *(_needs(arm) for arm in (one, arms["two"])),
        Figure("turns with traces, the time of those without", "times", _ratios(one.turns, arms["traced"].turns), COST),
        Figure(
            "turns of two replicas each, pinned, of those of one",
            "of 1",
            _ratios(arms["two"].turns, one.turns),
            PINNED,
            least=True,
            more=both,
        ),
        Figure(
            "p50 of a turn with two replicas and calls that go anywhere",
            "times",
            _ratios(arms["anywhere"].medians, one.medians),
            ANYWHERE_P50,
            more=both,
        ),
    ]


def _ratios(over: Sequence[float], under: Sequence[float]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(over, under, strict=True))


def _needs(arm: Arm) -> Shown:
    """Shows what each part needs: CPU for a turn, and memory."""
    used: dict[str, float] = defaultdict(float)
    memory: dict[str, float] = defaultdict(float)
    for part, pid in arm.mesh.pids.items():
        used[replica_of(part)[0]] += arm.cpu[part]
        memory[replica_of(part)[0]] += resident(pid)
    cpu = {part: round(seconds * 1e3 / len(arm.taken), 2) for part, seconds in sorted(used.items())}
    mb = {part: round(size, 1) for part, size in sorted(memory.items())}
    replicas = len(arm.mesh.settings.replicas)
    return Shown(f"what {replicas} of each needs", {"cpu_ms_of_a_turn": cpu, "resident_mb": mb})


async def _tls(mesh: Mesh, size: str) -> Figure:
    """Compares the same call at the session service's two ports."""
    tls = mesh.files.tls / "harness"
    key, cert, ca = ((tls / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
    options = [("grpc.use_local_subchannel_pool", 1)]
    ports, shown = mesh.settings.ports, local_api_key(mesh.files.data_directory)
    mutual = grpc.aio.secure_channel(ports.mesh("session"), grpc.ssl_channel_credentials(ca, key, cert), options)
    plain = grpc.aio.insecure_channel(ports.client("session"), options)
    async with mutual, plain, connect(data_directory=mesh.files.data_directory) as client:
        session = await client.create_session(SessionConfig(no_hands=True), "Hello.")
        request = session_pb2.GetEventsRequest(session_id=session.id)
        metadata = (("authorization", f"Bearer {shown}"),)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "mutual": lambda: SessionServiceStub(mutual).GetEvents(request),
            "plain": lambda: SessionServiceStub(plain).GetEvents(request, metadata=metadata),
        }
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(1 + 2 * ROUNDS[size]):
            for name in sorted(calls, reverse=number % 2 == 1):
                taken[name].append(await _called(calls[name], SECONDS[size] / 4))
    per_call = {f"{name}_us": round(p50(values[1:]), 0) for name, values in taken.items()}
    ratios = _ratios(taken["mutual"][1:], taken["plain"][1:])
    return Figure("a call with mutual TLS, the time of one without", "times", ratios, COST, more=per_call)


async def _called(call: Callable[[], Awaitable[Any]], seconds: float) -> float:
    """Calls for so long, some side by side; returns how many microseconds of the machine a call took."""
    begun, made = time.monotonic(), 0

    async def run() -> None:
        nonlocal made
        while time.monotonic() - begun < seconds:
            await call()
            made += 1

    await asyncio.gather(*(run() for _ in range(CALLS_AT_ONCE)))
    return (time.monotonic() - begun) / made * 1e6
