"""A deletion is carried through whoever dies, and leaves nothing but a tombstone; and bytes without a name go."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.session.__main__ import parts
from services.session.index import prefix_of
from services.session.janitor import REQUEST_SECONDS, Janitor
from services.session.leftovers import LEFT_SECONDS, Leftovers
from services.session.logs.jetstream.streams import wanted
from services.session.logs.memory import make
from services.session.operator import Operator, StoreError
from services.session.settings import Settings
from services.session.tombstones import is_fence
from tests.session.running import Run, Service, make_settings, message, note, refusal, serving
from tests.session.test_integrity_operators import operator
from tests.support.nats import NatsServer

LONELY = SessionConfig(harness="lonely")  # of which there is none: the session stays in the queue
LATER = 60.0  # seconds, after which a tombstone is old enough for the janitor


async def everything(server: NatsServer, needle: str) -> list[str]:
    """Returns the subjects of all messages in all streams that name something: in subject, header or value."""
    connection = await nats.connect(server.url, **server.migrate_login)
    found: list[str] = []
    for config in wanted():
        sequence = 0
        while True:
            question = json.dumps({"seq": sequence + 1, "next_by_subj": ">"}).encode()
            answer = await connection.request(f"$JS.API.STREAM.MSG.GET.{config['name']}", question)
            kept = json.loads(answer.data).get("message")
            if kept is None:
                break
            sequence = kept["seq"]
            whole = kept["subject"].encode() + b"".join(
                base64.b64decode(kept.get(part, "")) for part in ("hdrs", "data")
            )
            if needle.encode() in whole:
                found.append(kept["subject"])
    await connection.close()
    return found


@pytest.mark.nats
async def test_nothing_but_the_tombstone_stays(own_nats_server: NatsServer, run: Run) -> None:
    """Of a deleted session no stream and no bucket holds its id as key, value or subject; others keep everything."""
    async with run() as service, operator(own_nats_server, "janitor") as cleaner:
        gone = await _used(service, "r1")
        kept = await _used(service, "r2")
        before = {subject.removeprefix("$KV.").split(".")[0] for subject in await everything(own_nats_server, gone)}
        assert before == {"log", "work", "obj", "requests", "sessions", "grants", "marks", "snapshots", "blobs"}
        await service.client.DeleteSession(pb.DeleteSessionRequest(session_id=gone))
        whole = set(await everything(own_nats_server, kept))
        assert await Janitor(cleaner, lambda: time.time() + LATER).sweep() == 1
        left = await everything(own_nats_server, gone)
        assert sorted(subject.split(".")[1] for subject in left) == ["requests", "tombstones"]
        again = await refusal(service.create(request_id="r1", config=LONELY))
        assert again.reason == "SESSION_NOT_FOUND"  # for a day the request is known, and makes no other session
        assert len(await everything(own_nats_server, gone)) == 2
        await Janitor(cleaner, lambda: time.time() + LATER + REQUEST_SECONDS).sweep()
        assert await everything(own_nats_server, gone) == [f"$KV.tombstones.{gone}"]
        assert set(await everything(own_nats_server, kept)) == whole


async def _used(service: Service, request: str) -> str:
    """Makes a session that has something of everything; it stays in the queue."""
    session = await service.create(request_id=request, config=LONELY)
    await service.wake(session)
    for number in range(300):
        await service.emit(session, note(f"n{number}"))
    await service.emit(session, message())
    await service.harness.UploadBlob(
        iter([pb.UploadBlobRequest(session_id=session, media_type="image/png", chunk=b"x")])
    )
    await service.parts.writer.finish()
    async with asyncio.timeout(10):
        while await service.store.registry.get("snapshots", f"{session}.state") is None:
            await asyncio.sleep(0.01)
    return session


class Killed(BaseException):
    """The process ends here."""


class Dying:
    """Wraps a port, and ends the process at one of its calls, before or after it has happened: after so many steps."""

    def __init__(self, port: Any, left: list[int]) -> None:
        self._port, self._left = port, left

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._step()
            result = await method(*args, **kwargs)
            self._step()
            return result

        return call if name in ("append", "swap", "send") else method

    def _step(self) -> None:
        if self._left[0] == 0:
            raise Killed
        self._left[0] -= 1


@pytest.mark.parametrize("step", range(12))
async def test_a_deletion_that_broke_off_is_carried_through(
    step: int, memory_settings: Settings, identities: Path
) -> None:
    """The process ends at any step of a deletion. Before the first one nothing has happened; after that the next
    process carries it through by itself: fence, tombstone and entry are there, and nobody said it again."""
    async with make() as store:
        async with serving(memory_settings, store, identities) as service:
            session = await service.create(note("n1"))
        left: list[Any] = [step]
        dying = replace(
            store, log=Dying(store.log, left), registry=Dying(store.registry, left), wire=Dying(store.wire, left)
        )
        with pytest.raises((Killed, asyncio.CancelledError)):
            await parts(dying).lifecycle._bury(session, "default", prefix_of("default"))
        async with serving(memory_settings, store, identities) as service:
            upkeep, listing = service.parts.upkeep, service.parts.listing
            await upkeep.finish_deletions()
            await listing.sync()
            assert listing.doomed() == []
            if step == 0:
                assert len(await service.log(session)) == 2
                return
            assert (await refusal(service.emit(session, note("n2")))).reason == "SESSION_NOT_FOUND"
            last = await store.log.head(session)
            assert last is not None and is_fence(last)
            stone = await store.registry.get("tombstones", session)
            assert stone is not None and json.loads(stone.value)["tenant"] == "default"
            assert session not in [found for _, found, _ in listing.rows()]


@pytest.fixture
def memory_settings(identities: Path) -> Settings:
    """Settings for a store in memory."""
    return make_settings(identities, None, "memory")


# --- leftovers ---


@pytest.mark.nats
async def test_what_nobody_named_is_purged(own_nats_server: NatsServer, run: Run) -> None:
    """Of objects without a name the old ones go, of sessions and of memory stores, those that were freed too; what has
    a name stays, however old, and so does what may still get one."""
    async with run() as service, operator(own_nats_server, "janitor") as cleaner:
        objects = service.store.objects
        session = await service.create()
        asked = [pb.UploadBlobRequest(session_id=session, media_type="image/png", chunk=b"kept")]
        blob = (await service.client.UploadBlob(iter(asked))).blob
        memories = service.parts.memories
        store = (await memories.create("default", "notes", "")).memory_store_id
        for content in (b"one", b"two"):
            await memories.write(store, "a/b", content, None, None, "")
        left = [ids.mint("obj") for _ in range(3)]
        for space, name in zip((session, session, store), left, strict=True):
            for number in range(2):
                await objects.put(space, name, number, b"half")
        await objects.free(session, left[1], 2)
        sweeper = Leftovers(cleaner, lambda: time.time() + LEFT_SECONDS + 1)
        assert await Leftovers(cleaner, time.time).sweep() == 0
        assert await sweeper.sweep() == 3
        assert await sweeper.sweep() == 0
        assert len(await objects.list(session)) == 1 and len(await objects.list(store)) == 2
        request = pb.DownloadBlobRequest(session_id=session, blob_id=blob.blob_id)
        assert b"".join([answer.chunk async for answer in service.client.DownloadBlob(request)]) == b"kept"
        assert [(await memories.read(store, "a/b", number, None))[1] for number in (1, 2)] == [b"one", b"two"]


@pytest.mark.nats
async def test_a_look_for_leftovers_that_failed_is_made_again(own_nats_server: NatsServer, run: Run) -> None:
    """NATS refuses once: what was not purged then is purged at the next look."""

    class Failing(Operator):
        broken = True

        async def value(self, stream: str, subject: str) -> bytes:
            if self.broken:
                raise StoreError("away")
            return await super().value(stream, subject)

    async with run() as service, operator(own_nats_server, "janitor") as cleaner:
        failing = Failing()
        failing.client = cleaner.client
        session = await service.create()
        await service.store.objects.put(session, ids.mint("obj"), 0, b"half")
        sweeper = Leftovers(failing, lambda: time.time() + LEFT_SECONDS + 1)
        with pytest.raises(StoreError, match="away"):
            await sweeper.sweep()
        failing.broken = False
        assert await sweeper.sweep() == 1
