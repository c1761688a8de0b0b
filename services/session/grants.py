"""Grants: what shows that somebody acts for a session, under its current epoch and no other.

A grant is its session's id and 256 random bits. Only its SHA-256 is kept, so whoever reads the store cannot act for
anybody; the session's id is there for the janitor, who takes a deleted session's grants away with the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.kit.errors import Full, Gone, Unauthenticated, Unavailable
from services.session.log import Registry, Stop, Wire
from services.session.reader import Reader
from services.session.writer import Writer

BUCKET = "grants"
REVOKED, EVERYBODY = "revoked", "all"  # topic and key
CALLERS = "callers"  # the key for clients' credentials: replicas of version 0.1 cannot read of them
LIFETIME_SECONDS = 24 * 60 * 60  # of a grant whose session and epoch live so long; the bucket forgets it then
CACHE_SECONDS = 5  # how long a caller may keep an answer, while it watches revocations
LIFE_SECONDS = 2.0  # between two signs of life
MAX_WAITING = 10_000  # revocations for one watcher
BYTES = 32


@dataclass(frozen=True)
class Granted:
    """Whose a grant is. Times are in nanoseconds."""

    session_id: str
    tenant: str
    epoch: int
    expire_time: int
    config: SessionConfig


@dataclass(frozen=True)
class Revoked:
    """Grants of a session that are void: those of epochs below this one, or with 0 all of them; or a hand's token; or a
    client's credential."""

    session_id: str
    below_epoch: int
    hand_token_id: str = ""
    caller_id: str = ""

    @classmethod
    def from_bytes(cls, data: bytes) -> Revoked:
        """Reads what a replica has sent, which may be a newer one and say more."""
        said = json.loads(data)
        return cls(**{name: said[name] for name in cls.__match_args__ if name in said})


Vouch = Callable[[Granted], str]


class Grants:
    """Mints, checks and revokes grants."""

    def __init__(
        self,
        registry: Registry,
        wire: Wire,
        writer: Writer,
        reader: Reader,
        now: Callable[[], int],
        vouch: Vouch | None = None,
    ) -> None:
        self._registry = registry
        self._wire = wire
        self._writer = writer
        self._reader = reader
        self._now = now
        self._vouch = vouch
        self._watches: set[asyncio.Queue[Revoked | Exception]] = set()

    def drain(self) -> None:
        """Ends all watches: this process ends."""
        for watch in self._watches:
            _put(watch, Unavailable("DRAINING", "this process is going away; ask another"))

    async def mint(self, session_id: str, epoch: int) -> str:
        """Makes a grant for a session's epoch. It is good as soon as this returns."""
        grant = f"{session_id}.{secrets.token_urlsafe(BYTES)}"
        expires = self._now() + LIFETIME_SECONDS * 1_000_000_000
        kept = {"session_id": session_id, "epoch": epoch, "expires": expires}
        await self._registry.put(BUCKET, _key(grant), json.dumps(kept).encode())
        return grant

    async def check(self, grant: str) -> Granted:
        """Says whose a grant is. Raises Unauthenticated (`GRANT_INVALID`) when it is nobody's any more."""
        key = _key(grant)
        entry = await self._registry.get(BUCKET, key) if key else None
        if entry is None:
            raise _invalid()
        kept = json.loads(entry.value)
        try:
            state = await self._writer.current(kept["session_id"])
        except Gone:
            raise _invalid() from None
        if (
            state.ended
            or state.archived
            or state.damaged
            or state.epoch != kept["epoch"]
            or self._now() >= kept["expires"]
        ):
            raise _invalid()
        config = await self._reader.config(kept["session_id"], state.config_position)
        return Granted(kept["session_id"], state.tenant, state.epoch, kept["expires"], config)

    def vouch(self, granted: Granted) -> str:
        """Returns this service's word to the vault for what was granted, or nothing when it has no key for that."""
        return self._vouch(granted) if self._vouch is not None else ""

    async def revoke(self, session_id: str, below_epoch: int) -> None:
        """Tells everybody who holds an answer. What `check` says follows from the log alone."""
        told = json.dumps({"session_id": session_id, "below_epoch": below_epoch}).encode()
        await self._wire.send(REVOKED, EVERYBODY, told)

    async def revoke_hand(self, hand_token_id: str) -> None:
        """Tells everybody who holds an answer about a hand's token."""
        told = json.dumps({"session_id": "", "below_epoch": 0, "hand_token_id": hand_token_id}).encode()
        await self._wire.send(REVOKED, EVERYBODY, told)

    async def revoke_caller(self, caller_id: str) -> None:
        """Tells everybody who holds an answer about a client's credential."""
        told = json.dumps({"session_id": "", "below_epoch": 0, "caller_id": caller_id}).encode()
        await self._wire.send(REVOKED, CALLERS, told)

    async def watch(self) -> AsyncIterator[Revoked | None]:
        """Yields revocations as they happen, and None as a sign of life, the first at once.

        Raises Unavailable when some may have been missed: what was kept is worth nothing then.
        """
        watch: asyncio.Queue[Revoked | Exception] = asyncio.Queue(MAX_WAITING)
        stops: list[Stop] = []

        def hear(data: bytes) -> None:
            _put(watch, Revoked.from_bytes(data))

        def miss() -> None:
            _put(watch, Unavailable("LOG_UNAVAILABLE", "revocations may have been missed"))

        self._watches.add(watch)
        try:
            stops.append(await self._wire.listen(REVOKED, EVERYBODY, hear, miss))
            stops.append(await self._wire.listen(REVOKED, CALLERS, hear))
            yield None
            while True:
                yield await _next(watch)
        finally:
            self._watches.discard(watch)
            for stop in stops:
                await stop()


def _put(watch: asyncio.Queue[Revoked | Exception], what: Revoked | Exception) -> None:
    if watch.full():
        while not watch.empty():
            watch.get_nowait()
        what = Full("READER_SLOW", "revocations came faster than they were read")
    watch.put_nowait(what)


async def _next(watch: asyncio.Queue[Revoked | Exception]) -> Revoked | None:
    try:
        async with asyncio.timeout(LIFE_SECONDS):
            what = await watch.get()
    except TimeoutError:
        return None
    if isinstance(what, Exception):
        raise what
    return what


def _key(grant: str) -> str:
    """Returns a grant's key, or nothing for what can be none."""
    session_id = grant.partition(".")[0]
    return f"{session_id}.{hashlib.sha256(grant.encode()).hexdigest()}" if ids.MINTED.fullmatch(session_id) else ""


def _invalid() -> Unauthenticated:
    return Unauthenticated("GRANT_INVALID", "the grant is not valid, or not any more")
