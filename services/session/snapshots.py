"""Write states that are kept beside the log, so that a cold session is not read from its beginning.

A snapshot is a convenience: it is written behind, may be missing, and is used only when it is of this version, whole,
and the log holds, at its position, the batch that it says. It is two kinds of entries of the bucket `snapshots`:

    <session>.state      the state as JSON, a newline, and the newest names
    <session>.names.<k>  the k-th segment of names, which the log decides and so never changes
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import zlib
from typing import Any

from services.kit.errors import Unavailable
from services.kit.logs import Log as Journal
from services.session.core import Call, Usage, WriteState
from services.session.log import Registry
from services.session.names import Names, Segment

BUCKET = "snapshots"
EVERY = 256  # events between two snapshots of a session: reading that many is most of what a cold append takes
FOLD = 3  # to be raised with every change of what `core.fold` makes of a log that it has folded before
MAX_WRITES = 8  # snapshots that are being written at a time; more are left out

_KEPT = [field for field in dataclasses.fields(WriteState) if field.name != "names"]
_VERSION = [FOLD, sys.byteorder, [f"{field.name}: {field.type}" for field in _KEPT]]
_journal = Journal("services.session.snapshots")


class Snapshots:
    """Keeps states in a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._writing: dict[str, asyncio.Task[None]] = {}

    def keep(self, session_id: str, state: WriteState, kept: int) -> int:
        """Begins to write a state, when the one that was kept is old, and returns the position of the kept one."""
        if state.head - kept < EVERY or state.damaged or not isinstance(state.names, Names):
            return kept
        if session_id in self._writing or len(self._writing) >= MAX_WRITES:
            return kept
        segments = state.names.segments
        task = asyncio.create_task(self._write(session_id, encode(state), segments))
        self._writing[session_id] = task
        task.add_done_callback(lambda _: self._writing.pop(session_id, None))
        return state.head

    async def _write(self, session_id: str, data: bytes, segments: tuple[Segment, ...]) -> None:
        try:
            keys = [f"{session_id}.names.{number}" for number in range(len(segments))]
            there = await self._registry.get_many(BUCKET, keys[-1:])
            for key, segment in zip(keys, segments, strict=True):
                if there.get(keys[-1]) != segments[-1].to_bytes():
                    await self._registry.put(BUCKET, key, segment.to_bytes())
            await self._registry.put(BUCKET, f"{session_id}.state", data)
        except Unavailable:
            _journal.debug("snapshot not written", session_id=session_id)

    async def load(self, session_id: str) -> WriteState | None:
        """Returns a session's kept state, if there is one of this version and whole. The log has to be asked next."""
        entry = await self._registry.get(BUCKET, f"{session_id}.state")
        if entry is None:
            return None
        try:
            told, _, fresh = entry.value.partition(b"\n")
            header = json.loads(told)
            if header["version"] != _VERSION:
                return None
            keys = [f"{session_id}.names.{number}" for number in range(len(header["segments"]))]
            there = await self._registry.get_many(BUCKET, keys)
            return decode(header, [there[key] for key in keys], fresh)
        except (KeyError, ValueError, TypeError):
            _journal.warning("snapshot not readable", session_id=session_id)
            return None


def encode(state: WriteState) -> bytes:
    """Writes a state but for its segments, of which it holds the sums."""
    names = state.names
    assert isinstance(names, Names)
    fresh = Segment.unsorted(names.fresh).to_bytes()
    header = {
        "version": _VERSION,
        "state": {field.name: _plain(getattr(state, field.name)) for field in _KEPT},
        "segments": [zlib.crc32(segment.to_bytes()) for segment in names.segments],
        "fresh": zlib.crc32(fresh),
    }
    return json.dumps(header).encode() + b"\n" + fresh


def decode(header: dict[str, Any], segments: list[bytes], fresh: bytes) -> WriteState:
    """Makes the state again. Raises ValueError, TypeError or KeyError for what is not whole."""
    if header["segments"] != [zlib.crc32(data) for data in segments] or header["fresh"] != zlib.crc32(fresh):
        raise ValueError("a sum does not fit")
    newest = Segment.from_bytes(fresh)
    names = Names(tuple(map(Segment.from_bytes, segments)), dict(zip(newest.hashes, newest.positions, strict=True)))
    told = dict(header["state"])
    told["calls"] = {call: Call[step] for call, step in told["calls"].items()}
    told["usage"] = Usage(**told["usage"])
    return WriteState(**told, names=names)


def _plain(value: Any) -> Any:
    if isinstance(value, Usage):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: step.name if isinstance(step, Call) else step for key, step in value.items()}
    return value
