"""An entry for each session: what lists ask for, small, so that nobody reads 10,000 logs for a page.

Labels and harness type are written with the event that changes them. What a session does is written behind, at most
`LAG_SECONDS` after it changed, by whoever appended the event. An entry never goes back: each half of it has the
position of the log that it comes from. What a dying process has not written is found by `survey`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace

from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit.errors import Gone, Unavailable
from services.kit.logs import Log as Journal
from services.session.codec import DEFAULT_HARNESS
from services.session.core import Status, WriteState, status
from services.session.log import Log, Registry
from services.session.writer import Writer

BUCKET = "sessions"
LAG_SECONDS = 1.0
MAX_TRIES = 16  # swaps of one entry that lose against another replica
MAX_SHOWN = 16_384  # sessions of which this process remembers what it wrote
AT_ONCE = 16
SURVEY_PAUSE_SECONDS = 0.1  # after every AT_ONCE sessions

_journal = Journal("services.session.index")


@dataclass(frozen=True)
class Row:
    """An entry. Times are in nanoseconds. `position` is where the log was that the rest of it tells of; `config` the
    position of the configuration that `harness` and `labels` are from."""

    harness: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    created: int = 0
    config: int = 0
    status: int = int(Status.IDLE)
    archived: bool = False
    position: int = 0
    updated: int = 0
    size: int = 0
    gone: bool = False
    made: bool = True  # false while a fork or an import is at work on it
    request: str = ""  # what made it, as a key in the bucket `requests`
    parent: str = ""  # the session that started it
    doomed: bool = False  # it is being deleted: written before anything else of a deletion is

    def pack(self) -> bytes:
        """Returns the registry's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, value: bytes) -> Row:
        """Reads the registry's value. What it does not have is as in an empty row; what only a newer version knows is
        left out, so that both work beside each other."""
        told = json.loads(value)
        return cls(**{field.name: told[field.name] for field in fields(cls) if field.name in told})


def merged(old: Row, new: Row) -> Row:
    """Takes of two rows what is newer, half by half. Gone is gone."""
    if old.gone:
        return old
    config = new if new.config >= old.config else old
    does = new if new.position >= old.position else old
    return replace(
        does,
        harness=config.harness,
        labels=config.labels,
        config=config.config,
        created=new.created or old.created,
        gone=new.gone,
        made=old.made or new.made,
        request=old.request or new.request,
        parent=config.parent,
        doomed=old.doomed or new.doomed,
    )


def row_of(state: WriteState) -> Row:
    """Makes the half of a row that a log's state tells."""
    return Row(
        created=state.create_time,
        config=-1,
        made=False,
        status=int(status(state)),
        archived=state.archived,
        position=state.head,
        updated=state.update_time,
        size=state.size,
    )


class Index:
    """Writes entries."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._shown: OrderedDict[str, tuple[int, bool, int]] = OrderedDict()  # written last, or about to be
        self._behind: dict[str, Row] = {}  # by key
        self._flushing: asyncio.Task[None] | None = None

    async def put(
        self, session_id: str, config: SessionConfig, created: int, position: int = 1, request: str = ""
    ) -> None:
        """Writes what a configuration says. `position` is that of the event that holds it; `request` the key of what
        makes the session."""
        harness, labels = config.harness or DEFAULT_HARNESS, dict(config.labels)
        parent = config.parent_session_id
        row = Row(harness, labels, created, position, position=0, request=request, parent=parent)
        key = key_of(config.tenant, session_id)
        if position > 1 or not await self._registry.swap(BUCKET, key, row.pack(), 0):
            await self._write(key, row)

    async def announce(self, session_id: str, tenant: str, now: int, request: str = "") -> None:
        """Writes that a session is being made, which is not to be listed before it has its configuration (`put`)."""
        row = Row(created=now, config=-1, updated=now, made=False, request=request)
        await self._registry.swap(BUCKET, key_of(tenant, session_id), row.pack(), 0)

    async def is_made(self, session_id: str, tenant: str) -> bool:
        """Says whether a session that was announced has its configuration by now."""
        entry = await self._registry.get(BUCKET, key_of(tenant, session_id))
        return entry is not None and Row.unpack(entry.value).made

    async def doom(self, session_id: str, prefix: str) -> Row:
        """Writes that a session is being deleted, so that somebody carries it through (`Upkeep`) even if this process
        ends now. Returns the entry."""
        return await self._write(prefix + session_id, Row(config=-1, position=-1, made=False, doomed=True))

    async def bury(self, session_id: str, prefix: str) -> None:
        """Marks a deleted session's entry, below its tenant's prefix. The janitor removes it with the log."""
        key = prefix + session_id
        self._behind.pop(key, None)
        await self._write(key, Row(gone=True))

    def note(self, session_id: str, state: WriteState) -> None:
        """Takes what a log says by now; it is written soon, if that changes the entry."""
        # The last input is part of it: another replica may have written the end of the turn before meanwhile.
        shown = (int(status(state)), state.archived, state.last_input)
        if self._shown.get(session_id) == shown:
            return
        self._shown[session_id] = shown
        if len(self._shown) > MAX_SHOWN:
            self._shown.popitem(last=False)
        self._behind[key_of(state.tenant, session_id)] = row_of(state)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush_soon())

    def behind(self) -> tuple[tuple[str, Row], ...]:
        """Returns what this process knows and has not written yet, by key."""
        return tuple(self._behind.items())

    async def finish(self) -> None:
        """Writes what is left to be written."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait({self._flushing})
        await self._flush()

    async def _flush_soon(self) -> None:
        while self._behind:
            await asyncio.sleep(LAG_SECONDS)
            await self._flush()

    async def _flush(self) -> None:
        pending = tuple(self._behind.items())
        for start in range(0, len(pending), AT_ONCE):
            await asyncio.gather(*(self._try(*each) for each in pending[start : start + AT_ONCE]))

    async def _try(self, key: str, row: Row) -> None:
        try:
            await self._write(key, row)
        except Unavailable:
            return  # it stays to be written
        if self._behind.get(key) is row:
            del self._behind[key]

    async def _write(self, key: str, row: Row) -> Row:
        for _ in range(MAX_TRIES):
            entry = await self._registry.get(BUCKET, key)
            old = Row.unpack(entry.value) if entry else Row(config=-1)
            new = merged(old, row)
            if entry is not None and new == old:
                return old
            if await self._registry.swap(BUCKET, key, new.pack(), entry.revision if entry else 0):
                return new
        raise Unavailable("LOG_UNAVAILABLE", "too many others write the session's entry", retry_after=0.1)


async def survey(index: Index, writer: Writer, log: Log, rows: Iterable[tuple[str, Row]]) -> int:
    """Looks at all sessions, paced, and mends entries that are behind their logs. Returns how many were looked into.

    Only a log that has gone on since its entry was written is looked into.
    """
    mended = 0
    waiting = [(session_id, row.position) for session_id, row in rows]

    async def look(session_id: str, position: int) -> bool:
        try:
            last = await log.head(session_id)
            if last is None or last.last_position == position:
                return False
            index.note(session_id, await writer.current(session_id))
        except (Gone, Unavailable):
            return False
        return True

    for start in range(0, len(waiting), AT_ONCE):
        part = waiting[start : start + AT_ONCE]
        mended += sum(await asyncio.gather(*(look(*each) for each in part)))
        await asyncio.sleep(SURVEY_PAUSE_SECONDS)
    _journal.info("sessions surveyed", sessions=len(waiting), looked_into=mended)
    return mended


def key_of(tenant: str, session_id: str) -> str:
    """Spells an entry's key: a tenant's entries begin alike."""
    return prefix_of(tenant) + session_id


def prefix_of(tenant: str) -> str:
    """Spells what the keys of a tenant's entries begin with."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32] + "."
