"""Hands go round between sessions under load: no call runs for an owner of before, none is lost, also over kills."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from handmesh.sandbox.v1.tool_pb2 import TOOL_OUTCOME_OK
from handmesh.session.v1 import event_pb2 as ev
from services.kit.channels import raised
from services.kit.errors import ServiceError
from tests.drills.size import size
from tests.sandbox.owning import Brain, Ground, ground
from tests.session.running import finished, replied
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

TRANSFERS = size(30, 1000)
KILLS = size(2, 18)
HANDS, SESSIONS, CALLERS = size(2, 4), size(3, 6), size(3, 6)  # callers are of each session
POINTS = ("leaving", "fenced", "decided", "left", "owned", "arrived")
PATIENCE = 60.0  # seconds for a call to be answered, over a restart of the service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Both services, with the log in NATS."""
    async with ground(tmp_path_factory.mktemp("transfers"), nats_server) as made:
        yield made


@dataclass
class Load:
    """What sessions call, as their harnesses do: a start in the log, the call, its result in the log."""

    it: Ground
    brains: list[Brain]
    hands: list[str]
    folder: Path
    owner: dict[str, Brain] = field(default_factory=dict)  # where each hand is, as far as transfers have been answered
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    accepted: dict[str, tuple[str, str]] = field(default_factory=dict)  # execution -> session, sandbox: it said OK
    refused: set[str] = field(default_factory=set)
    stop: bool = False

    async def call(self, brain: Brain, sandbox_id: str) -> None:
        """Makes one call, again while the service is away. The tool notes in a file of its own that it runs."""
        name = f"toolu_{next(self.numbers)}"
        reply = replied(name, read=brain.epoch)
        await self.it.session.emit(brain.id, reply, brain.epoch)
        start = ev.ToolStarted(tool_use_id=name, name="bash", hand="h", sandbox_id=sandbox_id)
        await self.it.session.emit(brain.id, ev.Event(event_id=f"started-{name}", tool_started=start), brain.epoch)
        command = f"echo {name} >> {self.folder / brain.id}; echo {name}"
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                result = (await self.it.bash(sandbox_id, command, name, brain)).result
                assert (result.outcome, result.output) == (TOOL_OUTCOME_OK, name)
                self.accepted[name] = (brain.id, sandbox_id)
                break
            except grpc.aio.AioRpcError as error:
                problem = raised(error)
                if problem.code == "UNAVAILABLE" and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(0.05)
                    continue
                assert problem.reason in ("HAND_TRANSFERRED", "GRANT_INVALID"), problem
                self.refused.add(name)
                break
        await self.it.session.emit(brain.id, finished(name, f"finished-{name}"), brain.epoch)

    async def callers(self, brain: Brain) -> None:
        """Calls whichever hand, its own or not, until it is told to stop."""
        dice = random.Random(brain.id)
        while not self.stop:
            await self.call(brain, dice.choice(self.hands))

    async def transfer(self, sandbox_id: str, to: Brain, hand: str) -> None:
        """Gives a hand away, and asks again while the service is away."""
        while True:
            try:
                moved = await self.it.transfer(sandbox_id, to.id, to_hand=hand, seconds=5)
            except grpc.aio.AioRpcError as error:
                problem: ServiceError = raised(error)
                assert problem.code == "UNAVAILABLE", problem
                await asyncio.sleep(0.05)
                continue
            assert moved.session_id == to.id
            self.owner[sandbox_id] = to
            return


async def loaded(it: Ground, folder: Path) -> Load:
    brains = [await it.brain() for _ in range(SESSIONS)]
    load = Load(it, brains, [], folder)
    for number in range(HANDS):
        owner = brains[number % SESSIONS]
        load.hands.append(await it.made(owner, f"h{number}"))
        load.owner[load.hands[-1]] = owner
    return load


async def rounds(load: Load, count: int, kills: int) -> None:
    """Makes so many transfers while all sessions call, and kills the service at some of their steps."""
    dice = random.Random(count)
    at = sorted(dice.sample(range(count), kills))
    points = itertools.cycle(POINTS)

    async def one(hand: int, number: int) -> None:
        sandbox_id = load.hands[hand]
        to = dice.choice([each for each in load.brains if each is not load.owner[sandbox_id]])
        if number in at:
            load.it.arm(f"sandbox.hand_{next(points)}")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.it.struck())
                tasks.create_task(load.transfer(sandbox_id, to, f"h{hand}"))
        else:
            await load.transfer(sandbox_id, to, f"h{hand}")

    calling = [asyncio.create_task(load.callers(brain)) for brain in load.brains for _ in range(CALLERS)]
    try:
        done = 0
        while done < count:
            batch = range(done, min(count, done + (1 if any(n in at for n in range(done, done + HANDS)) else HANDS)))
            await asyncio.gather(*(one(number % HANDS, number) for number in batch))
            done += len(batch)
    finally:
        load.stop = True
        await asyncio.gather(*calling)


async def check(load: Load, transfers: int) -> None:
    """Compares the logs with what the hands themselves know that they ran, and with what tools have left."""
    owners = {sandbox_id: await owners_of(load, sandbox_id) for sandbox_id in load.hands}
    assert sum(len(each) - 1 for each in owners.values()) == transfers
    ran = {sandbox_id: await load.it.executions(sandbox_id) for sandbox_id in load.hands}
    known: set[str] = set()
    for brain in load.brains:
        log = await load.it.session.log(brain.id)
        left = {(it.sandbox_id, it.generation): event for event in log if (it := _left(event))}
        for event in log:
            started = event.tool_started
            run = ran[started.sandbox_id].get(started.tool_use_id) if event.HasField("tool_started") else None
            if run is None:
                continue
            known.add(started.tool_use_id)
            assert owners[started.sandbox_id][run.generation] == brain.id, "it ran for who did not own the hand"
            if (gone := left.get((started.sandbox_id, run.generation))) is not None:
                assert event.position < gone.position, "it ran too late"
                assert run.start_time.ToNanoseconds() < gone.emit_time.ToNanoseconds(), "it ran too late"
    assert known == {id for runs in ran.values() for id in runs} == set(load.accepted), "a call was lost"
    notes = Counter(line for file in load.folder.iterdir() for line in file.read_text().split())
    assert notes == Counter(dict.fromkeys(load.accepted, 1)), "a call ran twice, or not at all"


def _left(event: ev.Event) -> ev.HandTransferred | None:
    return event.hand_transferred if event.HasField("hand_transferred") else None


async def owners_of(load: Load, sandbox_id: str) -> dict[int, str]:
    """Returns who owned a hand in each generation, as the logs say: each way out of one is a way into another."""
    came: dict[int, str] = {}
    went: dict[int, str] = {}
    for brain in load.brains:
        for event in await load.it.told(brain):
            if event.HasField("hand_attached") and event.hand_attached.sandbox_id == sandbox_id:
                assert came.setdefault(event.hand_attached.generation, brain.id) == brain.id
            if (gone := _left(event)) is not None and gone.sandbox_id == sandbox_id:
                assert went.setdefault(gone.generation, brain.id) == brain.id
    assert sorted(went) == list(range(1, len(went) + 1)) and sorted(came) == [each + 1 for each in sorted(went)]
    owners = {1: went[1], **came} if went else {1: load.owner[sandbox_id].id}
    assert all(owners[generation] == owner for generation, owner in went.items())
    assert owners[len(owners)] == load.owner[sandbox_id].id
    return owners


async def test_transfers_under_load(it: Ground, tmp_path: Path) -> None:
    """Calls are under way from all sessions: each runs once, for the owner of that generation, before the hand left."""
    load = await loaded(it, tmp_path)
    await rounds(load, TRANSFERS, kills=0)
    assert load.accepted and load.refused
    await check(load, TRANSFERS)


async def test_transfers_while_the_service_is_killed(it: Ground, tmp_path: Path) -> None:
    """SIGKILL at each step in turn: what was begun is finished by the next service, and nothing else is different."""
    load = await loaded(it, tmp_path)
    transfers = size(4, 90)
    await rounds(load, transfers, KILLS)
    await check(load, transfers)
