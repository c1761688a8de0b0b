"""Reads what `handmesh top` shows: two cheap calls to each replica, whatever the number of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from handmesh.cli.top_rows import Run
from handmesh.client import Client, HandmeshError
from handmesh.client.channels import Link
from handmesh.harness.v1 import harness_pb2
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceStub
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub

PAGE = 1_000
MOST_LIVE = 5_000  # sessions that are shown at most
MOST_ASLEEP = 200  # unless all are wanted
CALL_SECONDS = 5.0

LIVE = (
    pb.SESSION_STATUS_RUNNING,
    pb.SESSION_STATUS_WAITING,
    pb.SESSION_STATUS_RETRYING,
    pb.SESSION_STATUS_PAUSED,
    pb.SESSION_STATUS_DAMAGED,
)


@dataclass(frozen=True)
class Seen:
    """One look. `harnesses` is {address: (sessions at work, room in all)}; `silent` are replicas that do not answer."""

    sessions: Sequence[pb.Session] = ()
    runs: dict[str, Run] = field(default_factory=dict)
    harnesses: dict[str, tuple[int, int]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


class Reading:
    """Looks at all replicas of the session service and of the harness."""

    def __init__(self, mesh: Client) -> None:
        self._mesh = mesh
        self._sessions = [(each, mesh.session_link.to(each)) for each in mesh.addresses.session.split(",")]
        self._harnesses = [(each, mesh.harness_link.to(each)) for each in mesh.addresses.harness.split(",")]

    async def look(self, *, asleep: bool = True, everything: bool = False) -> Seen:
        """Looks once. `asleep`: also the newest sessions that wait for a message; `everything`: all of them.

        Raises HandmeshError when no session service answers.
        """
        found = await asyncio.gather(
            *(self._summary(link, asleep, everything) for _, link in self._sessions), return_exceptions=True
        )
        newest: dict[str, pb.Session] = {}
        for page in found:
            if isinstance(page, BaseException):
                continue
            for session in page:
                other = newest.get(session.session_id)
                if other is None or (session.last_position, session.epoch) > (other.last_position, other.epoch):
                    newest[session.session_id] = session
        problems = [each for each in found if isinstance(each, BaseException)]
        for problem in problems:
            if len(problems) == len(found) or not isinstance(problem, HandmeshError):
                raise problem
        silent = [where for (where, _), page in zip(self._sessions, found, strict=True) if isinstance(page, Exception)]
        runs, harnesses = dict[str, Run](), dict[str, tuple[int, int]]()
        for where, link in self._harnesses:
            try:
                answer = await link.call(
                    HarnessServiceStub(link.channel).ListRuns, harness_pb2.ListRunsRequest(), CALL_SECONDS
                )
            except HandmeshError:
                silent.append(where)
                continue
            harnesses[where] = len(answer.runs), answer.capacity
            runs.update({run.session_id: Run(run, where) for run in answer.runs})
        sessions = sorted(newest.values(), key=lambda it: it.session_id, reverse=True)
        return Seen(sessions, runs, harnesses, tuple(silent))

    async def _summary(self, link: Link, asleep: bool, everything: bool) -> list[pb.Session]:
        live = await _pages(link, pb.ListSessionsRequest(statuses=LIVE, page_size=PAGE, summary=True), MOST_LIVE)
        if not asleep and not everything:
            return live
        idle = pb.ListSessionsRequest(statuses=[pb.SESSION_STATUS_IDLE], page_size=PAGE, summary=True)
        if not everything:
            idle.page_size = MOST_ASLEEP
        return live + await _pages(link, idle, MOST_LIVE if everything else MOST_ASLEEP)

    async def close(self) -> None:
        """Closes the links that it has opened."""
        for _, link in (*self._sessions, *self._harnesses):
            await link.close()


async def _pages(link: Link, request: pb.ListSessionsRequest, most: int) -> list[pb.Session]:
    found: list[pb.Session] = []
    while True:
        page = await link.call(SessionServiceStub(link.channel).ListSessions, request, CALL_SECONDS)
        found += page.sessions
        if not page.next_page_token or len(found) >= most:
            return found[:most]
        request.page_token = page.next_page_token
