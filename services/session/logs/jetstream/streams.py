"""The streams that everything is kept in, and the one setting of NATS without which nothing is kept.

LOG-0 .. LOG-7   log.<shard>.<session>.<position>   one message per subject, for ever
WORK             work.<harness>.<session>           a work queue, one message per subject
OBJECTS          obj.<space>.<object>.<number>      one message per subject, the last one counts
KV_<bucket>      $KV.<bucket>.<key>                 as NATS's own key-value stores
SCHEMA           schema.<what>.<which>              one message per subject, the last one counts; `migrate` alone writes
KV_audit         $KV.audit.<tenant>.<session>.<id>  one message per subject, none ever replaced, for AUDIT_DAYS
"""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any
from urllib.parse import urlsplit

from services.kit.errors import Unavailable
from services.session.log import UnusableStoreError
from services.session.logs.jetstream.connection import Connection
from services.session.migrations import LEVEL, NEWEST, SCHEMA, Level, too_new
from services.session.settings import Settings

SHARDS = 8
WORK = "WORK"
OBJECTS = "OBJECTS"
BUCKETS = (
    "requests",
    "sessions",
    "grants",
    "marks",
    "tombstones",
    "snapshots",
    "blobs",
    "memory_stores",
    "memories",
    "memory_versions",
    "timers",
    "hand_tokens",
    "api_keys",
)
AUDIT = "KV_audit"
AUDIT_DAYS = 365  # unless the operator says otherwise
DAY = 24 * 60 * 60 * 1_000_000_000  # in nanoseconds
GRANT_SECONDS = 24 * 60 * 60  # what is in the bucket `grants` is of no use to anybody after that

ONLY_REPLICAS = frozenset({"num_replicas"})
OPERATORS = {AUDIT: ONLY_REPLICAS | {"max_age"}}  # what is the operator's to say, by stream

MIGRATED_SECONDS = 30.0  # `migrate` has so long when everything starts at once
LOOK_SECONDS = 0.05
MUST_MIGRATE = (
    "Run `python -m services.session.migrate` with NATS's user `migrate` (`handmesh up` does so by itself); "
    "the session service's own user may neither make nor change streams"
)
MUST_SYNC = (
    "nats-server must sync every write: put `sync_interval: always` into its `jetstream` block. "
    "HANDMESH_THROWAWAY=1 runs without, and a power cut can then lose every log"
)


def shard_of(session_id: str) -> int:
    """Says which of the log's streams holds a session."""
    return zlib.crc32(session_id.encode()) % SHARDS


def _stream(name: str, subject: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": [subject],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
    } | more


def wanted(replicas: int = 1, audit_days: int = AUDIT_DAYS) -> list[dict[str, Any]]:
    """Lists the streams, as JetStream's API takes them, each on so many nodes."""
    once = {"discard_new_per_subject": True}
    logs = [
        _stream(f"LOG-{shard}", f"log.{shard}.*.*", allow_direct=True, deny_delete=True, **once)
        for shard in range(SHARDS)
    ]
    buckets = [
        _stream(
            f"KV_{bucket}",
            f"$KV.{bucket}.>",
            allow_direct=True,
            allow_rollup_hdrs=False,  # a header could empty a bucket, whatever permissions say
            max_age=GRANT_SECONDS * 1_000_000_000 if bucket == "grants" else 0,
        )
        for bucket in BUCKETS
    ]
    audit = _stream(
        AUDIT, "$KV.audit.>", allow_direct=True, deny_delete=True, deny_purge=True, max_age=audit_days * DAY, **once
    )
    objects = _stream(OBJECTS, "obj.*.*.*", allow_direct=True)
    schema = _stream(SCHEMA, "schema.*.*", allow_direct=True)
    whole = [*logs, *buckets, audit, objects, schema, _stream(WORK, "work.*.*", retention="workqueue", **once)]
    return [config | {"num_replicas": replicas} for config in whole]


async def check_streams(connection: Connection) -> None:
    """Waits until the streams are there as this version needs them: `migrate` makes them, and may run just now.

    Raises UnusableStoreError when they are not in time, and says what is missing.
    """
    problems: list[str] = []
    try:
        async with asyncio.timeout(MIGRATED_SECONDS):
            while True:
                found = await asyncio.gather(*(_check(connection, config) for config in wanted()))
                problems = [problem for problem in found if problem]
                if not problems and not (problems := await _check_level(connection)):
                    return
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        said = problems[0] if problems else "it does not answer"
        raise UnusableStoreError(f"NATS is not ready: {said}. {MUST_MIGRATE}") from None
    except Unavailable:
        raise UnusableStoreError(f"NATS does not let this user look at its streams. {MUST_MIGRATE}") from None


async def _check_level(connection: Connection) -> list[str]:
    """Says what is missing to this version's level. Raises UnusableStoreError at once for a newer version's store."""
    found = await connection.last(SCHEMA, LEVEL)
    level = Level.of(found.data if found else b"")
    if said := too_new(level):
        raise UnusableStoreError(said)
    return [] if level.number == NEWEST else [f"the store is at step {level.number} of {NEWEST}"]


async def _check(connection: Connection, config: dict[str, Any]) -> str | None:
    name = config["name"]
    answer = await connection.ask(f"$JS.API.STREAM.INFO.{name}", {})
    if "error" in answer:
        return f"stream {name}: {answer['error'].get('description')}"
    connection.replicated |= answer["config"].get("num_replicas", 1) > 1
    for key, value in config.items():
        if key not in OPERATORS.get(name, ONLY_REPLICAS) and answer["config"].get(key, 0) != value:
            return f"stream {name} has {key} other than {value!r}"
    return None


async def check_sync(settings: Settings) -> None:
    """Raises UnusableStoreError unless NATS syncs every write, or the operator does not mind."""
    if settings.throwaway:
        return
    if settings.nats_monitor_url is None:
        raise UnusableStoreError(f"HANDMESH_NATS_MONITOR_URL is not set, and {MUST_SYNC}")
    try:
        async with asyncio.timeout(5):
            varz = await _get_json(settings.nats_monitor_url, "/varz")
    except (OSError, TimeoutError, ValueError, Unavailable):
        raise UnusableStoreError(
            f"HANDMESH_NATS_MONITOR_URL is {settings.nats_monitor_url}, where no nats-server answers; "
            "set its `http` option"
        ) from None
    if varz.get("jetstream", {}).get("config", {}).get("sync_always") is not True:
        raise UnusableStoreError(MUST_SYNC)


async def _get_json(base: str, path: str) -> dict[str, Any]:
    where = urlsplit(base)
    reader, writer = await asyncio.open_connection(where.hostname, where.port or 80)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {where.hostname}\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))
