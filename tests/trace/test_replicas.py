"""A mesh with several harnesses: the one that has the session is heard, whichever answers first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from handmesh.client import HandmeshError
from handmesh.client.channels import Link
from handmesh.diagnosis.evidence import Process
from handmesh.diagnosis.gathering import _processes, _runs
from handmesh.diagnosis.replicas import any_listens, together
from handmesh.harness.v1 import harness_pb2 as pb
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceServicer, add_HarnessServiceServicer_to_server
from handmesh.status.v1 import status_pb2


class Harness(HarnessServiceServicer):
    """Says that it is at work on one session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    async def ListRuns(self, request: pb.ListRunsRequest, context: object) -> pb.ListRunsResponse:
        return pb.ListRunsResponse(runs=[pb.Run(session_id=self._session_id)])


class Mesh:
    """What is asked of a client here."""

    def __init__(self, link: Link) -> None:
        self.harness_link = link


@asynccontextmanager
async def harnesses(*session_ids: str) -> AsyncIterator[tuple[Any, list[grpc.aio.Server]]]:
    """Serves a harness for each session, and a client of all of them."""
    async with AsyncExitStack() as stack:
        servers, addresses = [], []
        for session_id in session_ids:
            server = grpc.aio.server()
            add_HarnessServiceServicer_to_server(Harness(session_id), server)
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            stack.push_async_callback(server.stop, 0)
            servers.append(server)
        link = Link(",".join(addresses), None, None)
        stack.push_async_callback(link.close)
        yield Mesh(link), servers


async def test_the_harness_that_has_the_session_is_heard() -> None:
    """Not the one that happens to answer: else a session at work seems to be nobody's."""
    async with harnesses("sess_a", "sess_b", "sess_c") as (mesh, _):
        for session_id in ("sess_a", "sess_b", "sess_c"):
            assert [run.session_id for run in (await _runs(mesh, session_id)).runs] == [session_id]
        assert await any_listens(mesh.harness_link)


async def test_a_harness_that_says_nothing_may_be_the_one() -> None:
    """When no other has the session, it is as if none had answered."""
    async with harnesses("sess_a", "sess_b") as (mesh, servers):
        await servers[0].stop(0)
        assert (await _runs(mesh, "sess_b")).runs
        with pytest.raises(HandmeshError):
            await _runs(mesh, "sess_a")


def test_replicas_speak_for_themselves_together() -> None:
    """One that is young or stood still counts; and when one says nothing, nothing is known of the service."""
    one, two = Process("a", 10.0, ((20.0, 23.0),)), Process("b", 30.0)
    assert together([one, two]) == Process("a or b", 30.0, ((20.0, 23.0),))
    said = [(status_pb2.GetStatusResponse(instance=name), 0.0) for name in "ab"]
    away = HandmeshError("UNAVAILABLE", "away", code="UNAVAILABLE")
    assert _processes({"sandbox": said}, {"sandbox": 0.0})["sandbox"].instance == "a or b"
    assert _processes({"sandbox": [said[0], away]}, {"sandbox": 0.0}) == {}
    assert _processes({"sandbox": [said[0]], "session": [said[0]]}, {"sandbox": 0.0, "session": 0.0}) == {}
