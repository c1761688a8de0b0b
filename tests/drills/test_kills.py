"""SIGKILL again and again under load: nothing that was acknowledged is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from handmesh.session.v1 import session_pb2 as pb
from services.session.verify import check, check_acknowledged
from tests.drills.process import client_of, insist, processes, seen, whole_log
from tests.drills.size import size
from tests.session.running import note
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(1_800)]

SESSIONS = 3
WRITERS = 3  # for each session
KILLS = size(20, 200)


@dataclass
class Load:
    """Writers that append single events and batches, and insist; and what was acknowledged to them, kept outside."""

    stub: Any
    acknowledged: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    requests: list[tuple[str, Any, int]] = field(default_factory=list)  # method, request, position
    stopped: bool = False

    async def write(self, session: str, name: str) -> None:
        chance = random.Random(name)
        number = 0
        while not self.stopped:
            events = [note(f"{name}-{number}-{at}", chance.randrange(2_000)) for at in range(chance.choice((1, 1, 5)))]
            number += 1
            if len(events) == 1:
                request: Any = pb.EmitEventRequest(session_id=session, event=events[0])
                first = (await insist(self.stub, "EmitEvent", request)).position
                self.requests.append(("EmitEvent", request, first))
            else:
                request = pb.EmitEventsRequest(session_id=session, events=events)
                first = (await insist(self.stub, "EmitEvents", request)).first_position
                self.requests.append(("EmitEvents", request, first))
            self.acknowledged[session] |= {event.event_id: first + at for at, event in enumerate(events)}

    async def more(self, count: int) -> None:
        """Waits for so many more acknowledgements."""
        wanted = len(self.requests) + count
        async with asyncio.timeout(90):
            while len(self.requests) < wanted:
                await asyncio.sleep(0.002)


async def _check(stub: Any, load: Load) -> None:
    """Reads everything back, and says some of it again."""
    for session, acknowledged in load.acknowledged.items():
        events = seen(await whole_log(stub, session))
        assert check(events) + check_acknowledged(events, acknowledged) == []
        answer = await insist(stub, "VerifySession", pb.VerifySessionRequest(session_id=session))
        assert list(answer.violations) == [] and answer.last_position == len(events)
    for method, request, position in random.Random(1).sample(load.requests, min(60, len(load.requests))):
        again = await insist(stub, method, request)
        assert again.duplicate and position == (again.position if method == "EmitEvent" else again.first_position)


@pytest.mark.parametrize("victim", ["session service", "nats-server"])
async def test_kills_lose_nothing(own_nats_server: NatsServer, identities: Path, victim: str) -> None:
    """Each acknowledged event is there once, in place; positions are dense, the chain is whole, repeats harmless."""
    async with processes(own_nats_server, identities) as process, client_of(process.served) as stub:
        await process.start()
        sessions = [
            (await insist(stub, "CreateSession", pb.CreateSessionRequest(request_id=f"r{n}"))) for n in range(3)
        ]
        load = Load(stub)
        async with asyncio.TaskGroup() as group:
            for at, answer in enumerate(sessions):
                for writer in range(WRITERS):
                    group.create_task(load.write(answer.session.session_id, f"w{at}{writer}"))
            for kill in range(KILLS):
                await load.more(1 + kill * 7 % 23)  # not always at the same moment
                if victim == "nats-server":
                    await own_nats_server.kill()
                    await own_nats_server.restart()
                else:
                    await process.kill()
                    await process.start()
            await load.more(20)
            load.stopped = True
        await _check(stub, load)
