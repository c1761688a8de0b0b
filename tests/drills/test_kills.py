"""SIGKILL again and again under load: nothing that was acknowledged is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handmesh.session.v1 import session_pb2 as pb
from tests.drills.load import Load
from tests.drills.process import client_of, insist, processes
from tests.drills.size import size
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(1_800)]

SESSIONS = 3
WRITERS = 3  # for each session
KILLS = size(8, 200)


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
        await load.check(stub)
