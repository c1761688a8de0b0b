"""Sandboxes that nobody needs any more are destroyed, and no others."""

from __future__ import annotations

import asyncio
import datetime
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit.errors import Denied, Unavailable
from services.kit.ids import mint
from services.sandbox import reaper, reaper_core
from services.sandbox.backends import Backends
from services.sandbox.environments import BUILT_IN
from services.sandbox.hand import ExecutionInfo, HandSettings, Labels, Outcome
from services.sandbox.reaper import Reaper
from services.sandbox.reaper_core import MISSING_SECONDS, Fate, Judge, idle_since
from services.sandbox.sandboxes import Call, Sandboxes, Wanted
from services.sandbox.session_client import SessionClient
from tests.sandbox.service_process import Service
from tests.session.running import make_settings, running
from tests.support.git import planting
from tests.support.nats import NatsServer
from tests.support.owners import owners

GRANT_KEY = "x-handmesh-grant"

OVER, MISSING, LIVES, UNKNOWN = Fate.OVER, Fate.MISSING, Fate.LIVES, Fate.UNKNOWN


def test_who_is_over_may_go_at_once() -> None:
    """And who lives, or of whom nothing is known, never."""
    judge = Judge()
    assert [judge.may_go("s", fate, 0.0) for fate in (OVER, LIVES, UNKNOWN)] == [True, False, False]
    assert not judge.may_go("s", UNKNOWN, 1e9)


def test_who_is_missing_must_be_missed_twice() -> None:
    """At least 30 s apart; who was seen in between is missed from the start again; silence changes nothing."""
    judge, late = Judge(), MISSING_SECONDS
    assert not judge.may_go("s", MISSING, 0.0)
    assert not judge.may_go("s", MISSING, late - 1)
    assert not judge.may_go("s", LIVES, late)
    assert not judge.may_go("s", MISSING, late)
    assert not judge.may_go("s", UNKNOWN, 2 * late)
    assert judge.due(2 * late - 1) == set() and judge.due(2 * late) == {"s"}
    assert judge.may_go("s", MISSING, 2 * late)
    judge.keep_only(["t"])
    assert judge.due(1e9) == set()


def test_idle_is_what_nothing_was_begun_in() -> None:
    """Since the last start, or since it was made; never while something runs."""
    labels = Labels("sbx", "default", 100.0)
    done, runs = ExecutionInfo("a", "bash", 300.0, Outcome.OK), ExecutionInfo("b", "bash", 200.0, None)
    assert [idle_since(labels, it) for it in ([], [done], [runs, done])] == [100.0, 300.0, None]


class Told:
    """A session service that says what a test says. Implements the port `Sessions`."""

    def __init__(self) -> None:
        self.fates: dict[str, Fate | Exception] = {}
        self.asked: list[str] = []
        self.news: asyncio.Queue[str] = asyncio.Queue()

    async def fate(self, session_id: str) -> Fate:
        """Says what the test has written down."""
        self.asked.append(session_id)
        said = self.fates[session_id]
        if isinstance(said, Exception):
            raise said
        return said

    async def endings(self) -> AsyncIterator[str]:
        """Yields what the test has put."""
        while True:
            yield await self.news.get()

    async def asked_again(self, session_id: str, times: int = 2) -> None:
        """Waits until a session was asked for so many times more: the turn before was done with by then."""
        wanted = self.asked.count(session_id) + times
        while self.asked.count(session_id) < wanted:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def reaping(state: Path, sessions: Told | None, idle_seconds: float = 1e9) -> AsyncIterator[Sandboxes]:
    """Sandboxes that are plain processes, with a reaper that runs. What is left is released at the end."""
    backends = Backends(HandSettings(state, allow_unisolated=True))
    sandboxes = Sandboxes(backends, BUILT_IN, planting=planting(state))
    task = asyncio.create_task(Reaper(sandboxes, backends, sessions, idle_seconds, owners(backends)).run())
    yield sandboxes
    task.cancel()
    await asyncio.wait({task})
    for info in await sandboxes.living(""):
        await sandboxes.release(info.labels.sandbox_id)
    await backends.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds without a pause, and little patience with who is missing."""
    monkeypatch.setattr(reaper, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(reaper, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(reaper_core, "MISSING_SECONDS", 0.3)


async def made(sandboxes: Sandboxes, session_id: str = "") -> str:
    """Makes a sandbox."""
    return (await sandboxes.provision(Wanted("process", session_id))).labels.sandbox_id


async def gone(sandboxes: Sandboxes, sandbox_id: str) -> None:
    """Waits until a sandbox is not there any more."""
    while sandbox_id in {info.labels.sandbox_id for info in await sandboxes.living("")}:
        await asyncio.sleep(0.02)


async def test_only_who_is_surely_over_loses_its_sandboxes(tmp_path: Path, quick: None) -> None:
    """Not one that lives, nor one of which the session service says something else, nor somebody's own."""
    told = Told()
    told.fates = {
        "ended": OVER,
        "lives": LIVES,
        "denied": Denied("METHOD_DENIED", "no"),
        "missing": MISSING,
        "z_away": Unavailable("SESSION_UNAVAILABLE", "away"),
    }
    async with reaping(tmp_path, told) as sandboxes:
        ids = {session: [await made(sandboxes, session) for _ in range(2)] for session in ("", *told.fates)}
        for sandbox_id in (*ids["ended"], *ids["missing"]):
            await gone(sandboxes, sandbox_id)
        await told.asked_again("z_away")
        left = {info.labels.sandbox_id for info in await sandboxes.living("")}
        assert left == {sandbox_id for session in ("", "lives", "denied", "z_away") for sandbox_id in ids[session]}


async def test_one_look_is_not_enough_for_the_missing(tmp_path: Path, quick: None) -> None:
    """A session that is there again keeps its sandbox."""
    told = Told()
    told.fates = {"s": MISSING}
    async with reaping(tmp_path, told) as sandboxes:
        sandbox = await made(sandboxes, "s")
        await told.asked_again("s", 1)
        told.fates["s"] = LIVES
        await told.asked_again("s", 30)
        assert [info.labels.sandbox_id for info in await sandboxes.living("")] == [sandbox]


async def test_news_need_no_round(tmp_path: Path) -> None:
    """What the stream says is looked at when it comes, and nobody else is asked for."""
    told = Told()
    told.fates = {"ended": LIVES, "other": LIVES}
    async with reaping(tmp_path, told) as sandboxes:
        ended, other = await made(sandboxes, "ended"), await made(sandboxes, "other")
        told.news.put_nowait("")  # a sign of life: now the stream is up, and a round finds both
        while told.asked.count("other") < 1:
            await asyncio.sleep(0.01)
        told.fates["ended"] = OVER
        told.news.put_nowait("ended")
        await gone(sandboxes, ended)
        assert told.asked.count("other") == 1
        assert [info.labels.sandbox_id for info in await sandboxes.living("")] == [other]


async def test_a_forgotten_sandbox_of_nobody_ends(tmp_path: Path, quick: None) -> None:
    """When nothing was begun in it for long; not while something runs, nor one that a session has."""
    async with reaping(tmp_path, None, idle_seconds=0.5) as sandboxes:
        owned, busy = await made(sandboxes, "s"), await made(sandboxes)
        run = Call(busy, "bash", '{"command": "until [ -e go ]; do sleep 0.01; done"}', "e")
        running = asyncio.create_task(sandboxes.execute(run))
        idle = await made(sandboxes)  # the busy one is at work before this one is made: making may take long
        await gone(sandboxes, idle)
        began = time.monotonic()
        while time.monotonic() - began < 1.0:
            left = {info.labels.sandbox_id for info in await sandboxes.living("")}
            assert left == {owned, busy}
            await asyncio.sleep(0.05)
        await sandboxes.execute(Call(busy, "bash", '{"command": "touch go"}'))
        await running
        await gone(sandboxes, busy)


@pytest.fixture
def identities(tmp_path: Path) -> Path:
    """Certificates for every service, and a client's API key."""
    ensure_certificates(tmp_path / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    ensure_api_key(tmp_path)
    (tmp_path / "keys.json").write_text((tmp_path / "api_keys.json").read_text())
    return tmp_path


@pytest.mark.nats
async def test_an_ended_sessions_sandbox_is_gone(own_nats_server: NatsServer, identities: Path) -> None:
    """With the real session service: at once by its stream; and when the sandbox service comes back from being down."""
    async with running(make_settings(identities, own_nats_server), identities) as session:
        service = Service(identities, HANDMESH_SESSION_ADDRESS=session.served.address)
        await service.start()
        ids = [await session.create() for _ in range(4)]
        standing = [await session.wake(session_id) for session_id in ids]
        made = [await provisioned(service, *each) for each in zip(ids, standing, strict=True)]
        kept, *going = made
        epoch, grant = standing[1]
        run = pb.ExecuteRequest(
            sandbox_id=going[0], name="bash", input='{"command": "sleep 600"}', execution_id="e", epoch=epoch
        )
        running_there = asyncio.ensure_future(service.stub.Execute(run, metadata=((GRANT_KEY, grant),)))
        await session.client.EndSession(session_pb2.EndSessionRequest(session_id=ids[1]))
        await only(service, {kept, *going[1:]})
        await asyncio.wait({running_there})
        assert "SANDBOX_GONE" in str(running_there.exception())
        await session.client.ArchiveSession(session_pb2.ArchiveSessionRequest(session_id=ids[2]))
        await only(service, {kept, going[2]})
        _, grant = await session.wake(ids[0])  # a newer harness voids the grants of older ones: that ends nothing
        await service.end(signal.SIGKILL)
        await session.client.EndSession(session_pb2.EndSessionRequest(session_id=ids[3]))
        await service.start()
        await only(service, {kept})
        await service.stub.Release(pb.ReleaseRequest(sandbox_id=kept), metadata=((GRANT_KEY, grant),))
        assert await service.end(signal.SIGTERM) == 0
        await service.channel.close()


async def provisioned(service: Service, session_id: str, standing: tuple[int, str]) -> str:
    """Makes a session's sandbox, as the harness that has it."""
    epoch, grant = standing
    request = pb.ProvisionRequest(
        environment="process", session_id=session_id, request_id=f"{session_id}/main/1", epoch=epoch
    )
    sandbox_id: str = (await service.stub.Provision(request, metadata=((GRANT_KEY, grant),))).sandbox.sandbox_id
    return sandbox_id


async def only(service: Service, wanted: set[str]) -> None:
    """Waits until these sandboxes are left."""
    while True:
        found = {each.sandbox_id for each in (await service.stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes}
        assert wanted <= found
        if found == wanted:
            return
        await asyncio.sleep(0.05)


@pytest.mark.nats
async def test_a_session_that_was_never_there_is_told_from_one_that_is(
    own_nats_server: NatsServer, identities: Path
) -> None:
    """The sandbox service may ask for any tenant's session, and hears of one that is not there that it is missing."""
    async with (
        running(make_settings(identities, own_nats_server), identities) as session,
        session.served.as_service("sandbox") as channel,
    ):
        client = SessionClient(SessionServiceStub(channel))
        there = await session.create()
        assert (await client.fate(there), await client.fate(mint("sess"))) == (LIVES, MISSING)
        await session.client.DeleteSession(session_pb2.DeleteSessionRequest(session_id=there))
        assert await client.fate(there) is MISSING
    async with session.served.as_service("sandbox") as channel:
        with pytest.raises(Unavailable):
            await SessionClient(SessionServiceStub(channel)).fate(there)
