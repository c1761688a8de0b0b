"""Three nodes of NATS: one may be lost at any time, and one that lags never makes a read or an append wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from handmesh.session.v1 import session_pb2 as pb
from services.session.settings import Settings
from tests.drills.process import insist, whole_log
from tests.drills.size import size
from tests.session.running import Service, make_settings, note, refusal, running
from tests.support.nats_cluster import NODES, Cluster, cluster
from tests.support.requirements import require

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

KILLS = size(2, 10)
ROUNDS = size(8, 100)
LAG_SECONDS = 0.05


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster of this test's own (1 s)."""
    require("nats")
    async with cluster(tmp_path) as made:
        yield made


def at(nodes: Cluster, node: int, identities: Path) -> Settings:
    """Settings of a session service that begins with one of the nodes."""
    return replace(
        make_settings(identities, None),
        nats_url=nodes.url(node),
        nats_credentials_file=nodes.logins.session_credentials,
        nats_monitor_url=f"http://127.0.0.1:{nodes.monitors[node]}",
    )


async def test_nodes_are_lost_under_load(nodes: Cluster, identities: Path) -> None:
    """Nodes are killed in turn while two replicas write to one log: the log goes on without them, and holds each
    acknowledged event once, in place, at both replicas; nothing is damaged."""
    async with (
        running(at(nodes, 0, identities), identities) as one,
        running(at(nodes, 1, identities), identities) as two,
    ):
        session = await one.create()
        acknowledged: dict[str, int] = {}
        stopped = asyncio.Event()

        async def write(service: Service, name: str) -> None:
            number = 0
            while not stopped.is_set():
                event = note(f"{name}{number}", 200)
                request = pb.EmitEventRequest(session_id=session, event=event)
                acknowledged[event.event_id] = (await insist(service.client, "EmitEvent", request)).position
                number += 1

        async def more(count: int) -> None:
            wanted = len(acknowledged) + count
            async with asyncio.timeout(60):
                while len(acknowledged) < wanted:
                    await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            for service, name in ((one, "a"), (one, "b"), (two, "c")):
                group.create_task(write(service, name))
            for turn in range(KILLS):
                await more(20)
                await nodes.kill(turn % NODES)
                await more(20)
                await nodes.start(turn % NODES)
                await nodes.healthy(turn % NODES)
            stopped.set()
        log = await whole_log(one.client, session)
        assert log == await whole_log(two.client, session)
        assert [event.position for event in log] == list(range(1, len(log) + 1))
        by_name = {event.event_id: event.position for event in log}
        assert len(by_name) == len(log)
        assert {name: by_name.get(name) for name in acknowledged} == acknowledged
        report = await insist(two.client, "VerifySession", pb.VerifySessionRequest(session_id=session))
        assert not report.violations


async def test_a_node_that_lags_makes_nothing_wrong(nodes: Cluster, identities: Path) -> None:
    """What one replica was told is stored, another one knows at once, though its node hears of it 50 ms later: as the
    log's end, in slices, as a duplicate; and what both append is one log without a gap or a double."""
    async with (
        running(at(nodes, 0, identities), identities) as one,
        running(at(nodes, 2, identities), identities) as late,
    ):
        sessions = [await one.create(request_id=f"r{number}") for number in range(4)]
        for link in nodes.links:
            link.delay = LAG_SECONDS
        for turn in range(ROUNDS):
            session, position = sessions[turn % 4], 2 * (turn // 4) + 2
            event = note(f"n{turn}")
            said = pb.EmitEventRequest(session_id=session, event=event)
            assert (await insist(one.client, "EmitEvent", said)).position == position
            page = await insist(late.client, "GetEvents", pb.GetEventsRequest(session_id=session, last=2))
            assert [found.position for found in page.events] == [position - 1, position]
            again = await insist(late.client, "EmitEvent", said)
            assert (again.position, again.duplicate) == (position, True)
            more = pb.EmitEventRequest(session_id=session, event=note(f"m{turn}"))
            assert (await insist(late.client, "EmitEvent", more)).position == position + 1
            found = await insist(one.client, "GetSession", pb.GetSessionRequest(session_id=session))
            assert found.session.last_position == position + 1
        for session in sessions:
            assert await whole_log(late.client, session) == await whole_log(one.client, session)


async def test_what_lies_beside_the_log_is_known_to_a_replica_whose_node_lags(nodes: Cluster, identities: Path) -> None:
    """Requests, blobs, memory, grants, lists and deletions."""
    async with (
        running(at(nodes, 0, identities), identities) as one,
        running(at(nodes, 2, identities), identities) as late,
    ):
        for link in nodes.links:
            link.delay = LAG_SECONDS
        for number in range(size(2, 10)):
            session = await one.create(request_id=(request_id := f"r{number}"))
            assert await late.create(request_id=request_id) == session
            listed = await late.client.ListSessions(pb.ListSessionsRequest())
            assert [found.session_id for found in listed.sessions] == [session]
            content = bytes([number]) * 600_000
            sent = [
                pb.UploadBlobRequest(session_id=session, media_type="image/png", chunk=content[start : start + 200_000])
                for start in range(0, len(content), 200_000)
            ]
            blob = (await one.client.UploadBlob(iter(sent))).blob
            request = pb.DownloadBlobRequest(session_id=session, blob_id=blob.blob_id)
            assert b"".join([piece.chunk async for piece in late.client.DownloadBlob(request)]) == content
            _, grant = await one.wake(session)
            await late.sandbox.CheckGrant(pb.CheckGrantRequest(), metadata=(("x-handmesh-grant", grant),))
            store = (await one.parts.memories.create("default", "notes", "")).memory_store_id
            await one.parts.memories.write(store, "a", content, None, None, "")
            assert [found.path for found in await late.parts.memories.list_files(store, "", None)] == ["a"]
            assert (await late.parts.memories.read(store, "a", 0, None))[1] == content
            await one.client.DeleteSession(pb.DeleteSessionRequest(session_id=session))
            assert (await refusal(late.emit(session, note("n")))).reason == "SESSION_NOT_FOUND"
