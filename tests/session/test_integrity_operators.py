"""`migrate` makes the store's streams, `janitor` empties what has a tombstone, and the service can do neither."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from handmesh.launcher.nats import SHARDS
from handmesh.session.v1 import session_pb2 as pb
from services.session import purging
from services.session.integrity import Mark, Marks
from services.session.janitor import Janitor
from services.session.log import StoredBatch
from services.session.logs.jetstream import streams
from services.session.logs.jetstream.streams import shard_of, wanted
from services.session.migrate import LAYOUT, LAYOUT_KEY, migrate
from services.session.operator import Operator, OperatorSettings, StoreError, connected
from tests.session.running import Run, make_settings, message, note, running
from tests.support.nats import NatsServer

pytestmark = pytest.mark.nats
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def operator(nats: NatsServer, user: str) -> AsyncIterator[Operator]:
    """Logs in as one of the operators."""
    credentials = nats.session_credentials.with_name(f"{user}.json")
    async with connected(OperatorSettings(nats.url, credentials, "info"), user) as found:
        yield found


async def config_of(migrator: Operator, stream: str) -> dict[str, object]:
    """Returns a stream's configuration."""
    return dict((await migrator.ask(f"STREAM.INFO.{stream}"))["config"])


# --- migrate ---


async def test_migrating_again_does_nothing(own_nats_server: NatsServer) -> None:
    """It may be run at any time: once everything is there, nothing is left to do."""
    async with operator(own_nats_server, "migrate") as migrator:
        assert await migrate(migrator) == []
        config = await config_of(migrator, "LOG-0")
        assert dict(config["metadata"])[LAYOUT_KEY] == str(LAYOUT)  # type: ignore[call-overload]


async def test_an_old_layout_is_brought_forward(own_nats_server: NatsServer, run: Run) -> None:
    """A stream of an older version is changed in place, and keeps what is in it."""
    async with operator(own_nats_server, "migrate") as migrator, run() as service:
        session = await service.create(message())
        stream = f"LOG-{shard_of(session)}"
        old = await config_of(migrator, stream)
        await migrator.ask(f"STREAM.UPDATE.{stream}", old | {"allow_direct": False, "metadata": {}})
        assert await migrate(migrator) == [f"changed {stream}"]
        assert (await config_of(migrator, stream))["allow_direct"] is True
        assert len(await service.log(session)) == 2


async def test_a_newer_layout_is_left_alone(own_nats_server: NatsServer) -> None:
    """Forward only: an older version says that it is the older one, and changes nothing."""
    async with operator(own_nats_server, "migrate") as migrator:
        newer = (await config_of(migrator, "WORK")) | {"metadata": {LAYOUT_KEY: str(LAYOUT + 1)}, "max_bytes": 1 << 30}
        await migrator.ask("STREAM.UPDATE.WORK", newer)
        with pytest.raises(StoreError, match="upgrade handmesh"):
            await migrate(migrator)
        assert (await config_of(migrator, "WORK"))["max_bytes"] == 1 << 30


async def test_the_service_says_what_is_missing(
    own_nats_server: NatsServer, identities: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not make streams by itself: it waits for a while, and then says what to run."""
    async with operator(own_nats_server, "migrate") as migrator:
        await migrator.ask("STREAM.DELETE.KV_marks")
        monkeypatch.setattr(streams, "MIGRATED_SECONDS", 0.3)
        with pytest.raises(streams.UnusableStoreError, match=r"KV_marks.*services\.session\.migrate"):
            async with running(make_settings(identities, own_nats_server), identities):
                pass
        monkeypatch.undo()
        starting = asyncio.create_task(_start_and_create(own_nats_server, identities))
        await migrate(migrator)
        assert await starting


async def _start_and_create(nats: NatsServer, identities: Path) -> str:
    async with running(make_settings(identities, nats), identities) as service:
        return await service.create()


async def test_an_operator_hears_why_it_is_refused(own_nats_server: NatsServer) -> None:
    """NATS's refusal is a timeout to its caller; the error has NATS's own words."""
    async with operator(own_nats_server, "janitor") as janitor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("services.session.operator.ANSWER_SECONDS", 0.5)
            with pytest.raises(StoreError, match=r"(?i)permissions violation"):
                await janitor.ask("STREAM.DELETE.LOG-0")


async def test_migrate_runs_as_a_command(own_nats_server: NatsServer) -> None:
    """As the launcher runs it: it makes what is missing, says so, and ends."""
    async with operator(own_nats_server, "migrate") as migrator:
        await migrator.ask("STREAM.DELETE.KV_marks")
        code, said = await _run("migrate", own_nats_server.url, own_nats_server.migrate_credentials)
        assert code == 0 and '"made KV_marks"' in said
        assert (await config_of(migrator, "KV_marks"))["name"] == "KV_marks"


async def _run(module: str, url: str, credentials: Path) -> tuple[int, str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HANDMESH_NATS_URL": url,
        "HANDMESH_NATS_CREDENTIALS_FILE": str(credentials),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"services.session.{module}", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    return process.returncode or 0, said.decode()


def test_streams_that_hold_logs_cannot_lose_a_message() -> None:
    """One message a position, for ever: no limit of a log's stream drops anything, and no header empties a bucket."""
    for config in wanted():
        assert not config.get("allow_rollup_hdrs")
        if config["name"].startswith("LOG-"):
            assert (config["max_msgs_per_subject"], config["discard"], config["deny_delete"]) == (1, "new", True)
            assert not config.get("max_age") and not config.get("max_bytes") and not config.get("max_msgs")


# --- janitor ---


async def test_what_has_a_tombstone_is_purged(
    own_nats_server: NatsServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events, mark and entry go, in steps; the tombstone and every other session stay."""
    monkeypatch.setattr(purging, "STEP", 3)
    async with (
        operator(own_nats_server, "migrate") as migrator,
        run() as service,
        operator(own_nats_server, "janitor") as cleaner,
    ):
        await _make_tombstones(migrator)
        gone, kept = await service.create(), await service.create()
        for number in range(10):
            for session in (gone, kept):
                await service.emit(session, note(f"n{number}"))
        await service.parts.writer.finish()
        janitor = Janitor(cleaner)
        assert await janitor.sweep() == 0
        await service.store.registry.put("tombstones", gone, json.dumps({"deleted": 1}).encode())
        assert await janitor.sweep() == 1
        assert await janitor.sweep() == 0
        assert await service.store.log.head(gone) is None
        assert await Marks(service.store.registry).read(gone) == Mark()
        assert not [key for key in await service.store.registry.keys("sessions", "") if key.endswith(gone)]
        assert await service.store.registry.get("tombstones", gone) is not None
        assert len(await service.log(kept)) == 11
        assert (await Marks(service.store.registry).read(kept)).position == 11


async def test_blobs_and_memory_stores_are_purged(own_nats_server: NatsServer, run: Run) -> None:
    """Of a deleted session its blobs go, of a deleted store its files and versions; others stay."""
    async with (
        operator(own_nats_server, "migrate") as migrator,
        run() as service,
        operator(own_nats_server, "janitor") as cleaner,
    ):
        await _make_tombstones(migrator)
        sessions = [await service.create(), await service.create()]
        memories = service.parts.memories
        stores = [(await memories.create("default", "notes", "")).memory_store_id for _ in range(2)]
        for session, store in zip(sessions, stores, strict=True):
            asked = [pb.UploadBlobRequest(session_id=session, media_type="image/png", chunk=b"x")]
            await service.harness.UploadBlob(iter(asked))
            for content in (b"one", b"two"):
                await memories.write(store, "a/b", content, None, None, "")
        await memories.delete_store(stores[0], None)
        await service.store.registry.put("tombstones", sessions[0], json.dumps({"deleted": 1}).encode())
        assert await Janitor(cleaner).sweep() == 2
        registry, objects = service.store.registry, service.store.objects
        assert await registry.get("blobs", sessions[0]) is None
        assert await objects.list(sessions[0]) == await objects.list(stores[0]) == {}
        assert await registry.keys("memories", f"{stores[0]}.") == []
        assert await registry.keys("memory_versions", f"{stores[0]}.") == []
        assert await memories.deleted() == []
        assert await registry.get("blobs", sessions[1]) is not None
        assert len(await objects.list(sessions[1])) == 1
        assert (await memories.read(stores[1], "a/b", 1, None))[1] == b"one"


async def test_an_unfinished_purge_is_finished(own_nats_server: NatsServer, run: Run) -> None:
    """A janitor that died half-way is followed by one that begins again; what is there twice is no error."""
    async with (
        operator(own_nats_server, "migrate") as migrator,
        run() as service,
        operator(own_nats_server, "janitor") as cleaner,
    ):
        await _make_tombstones(migrator)
        session = await service.create()
        await service.store.registry.put("tombstones", session, b'{"deleted": 1}')
        assert await Janitor(cleaner).sweep() == 1
        await service.store.log.append(session, StoredBatch(7, 1, "", b""))  # an append that was under way
        assert await Janitor(cleaner).sweep() == 1
        assert await service.store.log.head(session) is None


async def test_without_tombstones_there_is_nothing_to_do(own_nats_server: NatsServer) -> None:
    """A store that nobody has deleted from, or that has no such bucket yet, is swept without an error."""
    async with operator(own_nats_server, "janitor") as cleaner:
        assert await Janitor(cleaner).sweep() == 0


async def _make_tombstones(migrator: Operator) -> None:
    """Makes the bucket if this version's layout has none."""
    await migrator.ask(
        "STREAM.CREATE.KV_tombstones",
        {"name": "KV_tombstones", "subjects": ["$KV.tombstones.>"], "allow_direct": True, "max_msgs_per_subject": 1},
    )


def test_the_janitor_may_purge_every_shard() -> None:
    """The launcher's permissions name each of the log's streams."""
    assert SHARDS == streams.SHARDS
