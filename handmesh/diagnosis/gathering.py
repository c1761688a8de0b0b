"""Asks a mesh what it knows of a session: the session's log, and how each service fares. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from handmesh.client.errors import HandmeshError, raised
from handmesh.diagnosis.evidence import SERVICES, Evidence, HarnessSeen, Hindrance, Probe, Process, RunSeen
from handmesh.diagnosis.replicas import answered, any_listens, asked, of_session, together
from handmesh.diagnosis.timeline import at, named
from handmesh.harness.v1 import harness_pb2
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceStub
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.event_pb2 import Event
from handmesh.status.v1 import status_pb2
from handmesh.status.v1.status_pb2_grpc import StatusServiceStub
from handmesh.vault_proxy.v1 import vault_proxy_pb2

if TYPE_CHECKING:
    from handmesh.client import Client
    from handmesh.client.channels import Link

ANSWER_SECONDS = 4.0
"""How long a service may take to answer before it counts as silent."""

_UNANSWERED = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
_ABOUT_THE_ASKER = frozenset({"SESSION_NOT_FOUND", "IDENTITY_UNKNOWN", "ID_INVALID"})
T = TypeVar("T")


async def gather(client: Client, session_id: str, known: Sequence[Event] = ()) -> Evidence:
    """Asks all four services at once, and reads the log from where `known` ends.

    Raises HandmeshError for what is wrong with the question: `SESSION_NOT_FOUND`, `IDENTITY_UNKNOWN`, `ID_INVALID`. A
    service that does not answer is evidence, not an error.
    """
    async with asyncio.TaskGroup() as asking:
        session = asking.create_task(_probed(_session(client, session_id), client.session_link))
        runs = asking.create_task(_probed(_runs(client, session_id), client.harness_link))
        sandboxes = asking.create_task(_probed(_sandboxes(client, session_id), client.sandbox_link))
        vaults = asking.create_task(_probed(_vaults(client), client.vault_proxy_link))
        status_of = {name: asking.create_task(asked(getattr(client, f"{name}_link"), _status)) for name in SERVICES}
        reading = asking.create_task(_read_while(session, _read(client, session_id, known)))
        served = asking.create_task(_said(client.served_types()))
        types = asking.create_task(_said(client.harness_types()))
    probes = dict(zip(SERVICES, (it.result()[0] for it in (session, runs, sandboxes, vaults)), strict=True))
    if probes["session"].reason in _ABOUT_THE_ASKER:
        raise HandmeshError(probes["session"].reason, "the mesh does not show you this session", code="NOT_FOUND")
    found, rooms, read = session.result()[1], served.result(), reading.result()
    statuses = {name: it.result() for name, it in status_of.items()}
    now, offsets = _clocks(statuses)
    processes = _processes(statuses, offsets)
    probes = {name: _alive(name, probe) if name in processes else probe for name, probe in probes.items()}
    return Evidence(
        session_id=session_id,
        now=now,
        events=tuple(known) if read is None else read,
        status=named(session_pb2.SessionStatus, found.status, "SESSION_STATUS_") if found else "",
        harness_type=(found.config.harness or "messages") if found else "",
        probes=probes,
        processes=processes,
        harness=_harness(runs.result()[1], session_id, types.result(), offsets.get("harness", 0.0)),
        served=None if rooms is None else {it.name: it.room for it in rooms},
    )


async def _probed(call: Awaitable[T], link: Link) -> tuple[Probe, T | None]:
    try:
        return Probe(True), await call
    except HandmeshError as problem:
        if problem.reason not in _UNANSWERED:
            return Probe(True, problem.reason), None
        return Probe(False, problem.reason, silent=await any_listens(link)), None


def _alive(name: str, probe: Probe) -> Probe:
    """Says what it means that a process tells of itself, and does not answer else: what it needs does not answer it.

    The session service needs its store; the others need the session service, to know who asks.
    """
    if probe.answered:
        return probe
    return Probe(True, "LOG_UNAVAILABLE" if name == "session" else "SESSION_UNAVAILABLE")


async def _said(call: Awaitable[T]) -> T | None:
    """Returns what was answered, None for any failure: that the service fails is known from its probe."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await call
    except (HandmeshError, TimeoutError):
        return None


async def _read_while(session: asyncio.Task[tuple[Probe, Any]], reading: Coroutine[Any, Any, T]) -> T | None:
    """Reads as long as it takes, but not from a service that does not answer."""
    task = asyncio.create_task(reading)
    try:
        if (await session)[0].answered:
            return await task
    except HandmeshError:
        pass
    finally:
        task.cancel()
        await asyncio.wait({task})
    return None


async def _session(client: Client, session_id: str) -> session_pb2.Session:
    request = session_pb2.GetSessionRequest(session_id=session_id)
    answer = await client.session_link.call(client.session_stub.GetSession, request, ANSWER_SECONDS)
    return answer.session


async def _runs(client: Client, session_id: str) -> harness_pb2.ListRunsResponse:
    def ask(link: Link) -> Awaitable[harness_pb2.ListRunsResponse]:
        stub: Any = HarnessServiceStub(link.channel)
        return link.call(stub.ListRuns, harness_pb2.ListRunsRequest(), ANSWER_SECONDS)

    return of_session(await asked(client.harness_link, ask), session_id)


async def _sandboxes(client: Client, session_id: str) -> sandbox_pb2.ListSandboxesResponse:
    request = sandbox_pb2.ListSandboxesRequest(session_id=session_id)
    return await client.sandbox_link.call(client.sandbox_stub.ListSandboxes, request, ANSWER_SECONDS)


async def _vaults(client: Client) -> vault_proxy_pb2.ListVaultsResponse:
    from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub

    stub: Any = VaultProxyServiceStub(client.vault_proxy_link.channel)
    request = vault_proxy_pb2.ListVaultsRequest(page_size=1)
    return await client.vault_proxy_link.call(stub.ListVaults, request, ANSWER_SECONDS)


async def _status(link: Link) -> Said:
    """Asks as nobody: who asks cannot be checked while the session service is away."""
    stub: Any = StatusServiceStub(link.channel)
    try:
        return await stub.GetStatus(status_pb2.GetStatusRequest(), timeout=ANSWER_SECONDS), time.time()
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None


async def _read(client: Client, session_id: str, known: Sequence[Event]) -> tuple[Event, ...]:
    found = list(known)
    start = found[-1].position + 1 if found else 1
    async for event in client.session(session_id).events(start):
        found.append(event)
    return tuple(found)


Said = tuple[status_pb2.GetStatusResponse, float]
Statuses = Mapping[str, Sequence[Said | HandmeshError]]


def _clocks(statuses: Statuses) -> tuple[float, dict[str, float]]:
    """Returns the session service's time, and how far each service's clock is behind it, as far as they say."""
    ahead = {name: at(said[0][0].now) - said[0][1] for name, it in statuses.items() if (said := answered(it))}
    mine = ahead.get("session", 0.0)
    return time.time() + mine, {name: mine - each for name, each in ahead.items()}


def _processes(statuses: Statuses, offsets: Mapping[str, float]) -> dict[str, Process]:
    """Returns what processes say of themselves. Behind one proxy one of them may have answered for all: then none.

    A service of which a replica says nothing is left out: it may be the one that was needed.
    """
    told = {name: [it for it, _ in answered(said)] for name, said in statuses.items()}
    instances = [it.instance for each in told.values() for it in each]
    if len(set(instances)) < len(instances):
        return {}
    return {
        name: together([_process(it, offsets[name]) for it in each])
        for name, each in told.items()
        if each and len(each) == len(statuses[name])
    }


def _process(said: status_pb2.GetStatusResponse, offset: float) -> Process:
    stalls = ((at(each.begin_time) + offset, at(each.end_time) + offset) for each in said.stalls)
    return Process(said.instance, at(said.serve_time) + offset, tuple(stalls))


def _harness(
    runs: harness_pb2.ListRunsResponse | None,
    session_id: str,
    types: Sequence[harness_pb2.HarnessType] | None,
    offset: float,
) -> HarnessSeen | None:
    if runs is None:
        return None
    hindrances = _converted(offset)
    found = next((it for it in runs.runs if it.session_id == session_id), None)
    run = None
    if found is not None:
        heard = at(found.heard_time) + offset if found.HasField("heard_time") else None
        begun = at(found.step_time if found.HasField("step_time") else found.start_time) + offset
        run = RunSeen(found.epoch, found.step, begun, heard, hindrances(found.hindrances))
    names = frozenset(it.name for it in types or () if not it.unavailable)
    return HarnessSeen(names, run, runs.draining, hindrances(runs.hindrances))


def _converted(offset: float) -> Callable[[Iterable[harness_pb2.Hindrance]], tuple[Hindrance, ...]]:
    return lambda found: tuple(
        Hindrance(it.service, it.reason, at(it.since_time) + offset, it.answered)
        for it in found
        if it.service in SERVICES
    )
