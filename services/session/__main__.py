"""Wires the session service and runs it."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from handmesh.session.v1.memory_pb2_grpc import add_MemoryServiceServicer_to_server
from handmesh.session.v1.session_pb2_grpc import add_SessionServiceServicer_to_server
from services.kit.callers import Callers
from services.kit.key_file import KeyFile
from services.kit.logs import Log as Journal
from services.kit.serving import Server, main, until_signal
from services.kit.settings import SettingsError
from services.kit.watched import UnreadableError
from services.session import counting, retention
from services.session.admission import MAX_SESSION_BYTES
from services.session.api_keys import ApiKeys
from services.session.audit import Audit
from services.session.blobs import Blobs
from services.session.blobs_core import DEFAULT_LIMITS, Limits
from services.session.children import Children
from services.session.claims import Claims
from services.session.credentials import Credentials, Tokens
from services.session.families import Families
from services.session.grants import Grants, Vouch
from services.session.hand_tokens import HandTokens
from services.session.index import Index
from services.session.integrity import Marks
from services.session.lifecycle import Lifecycle
from services.session.lifecycle_fork import Forks
from services.session.lifecycle_import import Imports
from services.session.listing import Listing
from services.session.log import Store, UnusableStoreError
from services.session.memories import Memories
from services.session.memories_core import QUOTA_BYTES as MEMORY_BYTES
from services.session.memories_server import MemoryServicer
from services.session.orphans import Orphans
from services.session.previews import Previews
from services.session.reader import Reader
from services.session.recent import Recent
from services.session.requests import Requests
from services.session.retention import Rule
from services.session.server import Parts, SessionServicer
from services.session.sessions import Sessions
from services.session.settings import Settings
from services.session.snapshots import Snapshots
from services.session.tenancy import Tenancy
from services.session.tombstones import LivingLog, Tombstones
from services.session.upkeep import Upkeep
from services.session.verifying import Verifier
from services.session.vouchers import Vouchers
from services.session.watcher import Watcher
from services.session.writer import Writer

SERVICES = ("handmesh.session.v1.SessionService", "handmesh.session.v1.MemoryService")

_journal = Journal("services.session")


def parts(
    store: Store,
    session_bytes: int = MAX_SESSION_BYTES,
    rules: Sequence[Rule] = (),
    limits: Limits = DEFAULT_LIMITS,
    memory_bytes: int = MEMORY_BYTES,
    vouch: Vouch | None = None,
    key_file: KeyFile | None = None,
    tokens: Tokens | None = None,
) -> Parts:
    """Puts the service's parts together over a store."""
    now = time.time_ns
    marks = Marks(store.registry)
    stones = Tombstones(store.registry)
    log = LivingLog(store.log, stones, time.monotonic)
    tenancy = Tenancy(store.log, store.registry)
    writer = Writer(log, store.wire, marks, now, session_bytes, Snapshots(store.registry), tenancy)
    recent = Recent(log)
    reader = Reader(recent, writer)
    index = Index(store.registry)
    claims = Claims(store.queue, store.wire, store.registry, writer, now)
    grants = Grants(store.registry, store.wire, writer, reader, now, vouch)
    watcher = Watcher(recent, store.wire)
    audit = Audit(store.registry, stones, writer, now)
    memories = Memories(store.objects, store.registry, now, memory_bytes)
    listing = Listing(store.registry, index, writer, reader)
    families = Families(writer, index, listing, claims, grants)
    sessions = Sessions(writer, reader, store.registry, index, claims, grants, audit, memories, families, now)
    lifecycle = Lifecycle(store.log, store.wire, stones, writer, sessions, index, claims, grants, families, now)
    orphans = Orphans(writer, listing, families, lifecycle)
    asked = Requests(store.registry)
    blobs = Blobs(store.objects, store.registry, writer, limits)
    forks = Forks(log, writer, reader, sessions, asked, index, claims, blobs, now)
    imports = Imports(log, writer, reader, sessions, lifecycle, asked, index, claims, blobs, now, session_bytes)
    return Parts(
        sessions,
        lifecycle,
        forks,
        imports,
        listing,
        Upkeep(log, writer, index, listing, lifecycle, claims, orphans, now, rules),
        Children(writer, sessions, asked, index, claims, grants, families, now),
        reader,
        watcher,
        Previews(writer, watcher),
        claims,
        grants,
        writer,
        Verifier(log, marks, writer),
        blobs,
        memories,
        Vouchers(store.registry, now, vouch),
        audit,
        HandTokens(store.registry, grants, now),
        Credentials(ApiKeys(store.registry, grants, now), key_file or KeyFile(None), tokens, grants),
    )


async def run(settings: Settings) -> None:
    """Serves until SIGTERM, or until the store is gone for good: then the process ends with an error."""
    rules, vouch = _rules(settings), _vouching(settings)
    logs = importlib.import_module(f"services.session.logs.{settings.log}")
    try:
        async with logs.make(settings) as store:
            why = await serve(settings, store, rules, vouch)
    except UnusableStoreError as problem:
        sys.exit(f"session: {problem}")
    if why:
        sys.exit(f"session: {why}")


def _rules(settings: Settings) -> list[Rule]:
    try:
        return retention.read(settings.retention_file) if settings.retention_file else []
    except retention.RetentionError as problem:
        raise SettingsError(f"HANDMESH_RETENTION_FILE: {problem}") from None


def _vouching(settings: Settings) -> Vouch | None:
    if settings.vault_issuer_key_file is None:
        return None
    from services.session.vouching import KeyRefused, Voucher  # it loads a library that others do not need

    try:
        return Voucher.of_file(settings.vault_issuer_key_file, time.time_ns).sign
    except KeyRefused as problem:
        raise SettingsError(f"HANDMESH_VAULT_ISSUER_KEY_FILE {problem}") from None


def _key_file(settings: Settings) -> KeyFile:
    try:
        return KeyFile(settings.api_keys_file)
    except (OSError, UnreadableError) as problem:
        raise SettingsError(f"HANDMESH_API_KEYS_FILE: {problem}") from None


def _tokens(settings: Settings) -> Tokens | None:
    if settings.oidc_file is None:
        return None
    from services.session import tokens  # it loads a library that others do not need

    try:
        return tokens.Tokens(settings.oidc_file)
    except (OSError, UnreadableError) as problem:
        raise SettingsError(f"HANDMESH_OIDC_FILE: {problem}") from None


async def serve(settings: Settings, store: Store, rules: Sequence[Rule] = (), vouch: Vouch | None = None) -> str:
    """Serves a store until the end, and says why it came; nothing when it was asked for."""
    limits = Limits(settings.blob_quota_bytes, settings.max_blob_bytes)
    whole = parts(
        store,
        settings.session_bytes,
        rules,
        limits,
        settings.memory_quota_bytes,
        vouch,
        _key_file(settings),
        _tokens(settings),
    )
    whole.claims.count()
    counting.WATCHERS.watch(lambda: whole.watcher.watches)
    server = Server(settings, Callers(whole.credentials))
    add_SessionServiceServicer_to_server(SessionServicer(whole), server.grpc)
    add_MemoryServiceServicer_to_server(MemoryServicer(whole.memories, whole.grants), server.grpc)
    keeping = asyncio.create_task(whole.run())
    caring = asyncio.create_task(whole.upkeep.run())
    ends: set[asyncio.Task[Any]] = {
        caring,
        asyncio.create_task(until_signal()),
        lost := asyncio.create_task(store.lost()),
        keeping,
    }
    try:
        await server.start(*SERVICES)
        _settle()
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in (keeping, caring):
            if task.done():
                task.result()  # it never ends by itself
        return lost.result() if lost.done() else ""
    finally:
        for part in (whole.claims, whole.watcher, whole.grants):
            part.drain()
        await server.stop()
        await whole.finish()
        for task in ends:
            task.cancel()
        await asyncio.wait(ends)


def _settle() -> None:
    """Spares what was imported from every collection of garbage: a full one took 20 ms of somebody's append."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


if __name__ == "__main__":
    main("session", Settings, run, (_rules, _vouching, _key_file, _tokens))
