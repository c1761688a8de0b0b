"""Keeps a session's log as a file of JSON Lines in its hands: what the model's own code goes through.

The file is brought up to date before each execution on its hand: what is new is put behind what it has. How far it goes
each new run asks the file itself, so nothing has to be remembered. It holds the newest events, as many as fit; when it
is full it begins anew with the newer half.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.json_format import MessageToDict

from handmesh.session.v1.event_pb2 import Event
from services.harness.config import Config, LogView
from services.harness.ports import Hands, SessionLog, Standing
from services.kit.errors import Conflict, Invalid, ServiceError

MAX_FILE_BYTES = 32 * 1024 * 1024
PIECE_BYTES = 1024 * 1024  # that a hand takes at once
END_BYTES = 256 * 1024  # of a file that are looked at for its last event
PAGE_EVENTS = 250
MAX_POSITION = 1 << 40  # more than any log has: what a tool has written may say anything


@dataclass(frozen=True)
class _File:
    """How far a file goes: its size in bytes, and the position that comes next."""

    size: int
    next: int


class LogViews:
    """The files of one session, as one run knows them."""

    def __init__(self, log: SessionLog, hands: Hands) -> None:
        self._log = log
        self._hands = hands
        self._files: dict[tuple[str, str], _File] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # of a sandbox: one writes at a time

    async def refresh(self, config: Config, hand: str, sandbox_id: str, under: Standing) -> ServiceError | None:
        """Brings the files of a hand up to date. Returns why not: then they are older, or incomplete.

        That the sandbox is gone is left for the call itself to find out. Raises Conflict (`EPOCH_STALE`).
        """
        try:
            await self._refresh([view for view in config.log_views if view.hand == hand], sandbox_id, under)
        except Conflict:
            raise
        except ServiceError as problem:
            return problem if problem.reason != "SANDBOX_GONE" else None
        return None

    async def _refresh(self, views: Sequence[LogView], sandbox_id: str, under: Standing) -> None:
        if not views:
            return
        async with self._turns[sandbox_id]:
            for view in views:
                file = self._files.pop((sandbox_id, view.path), None) or await self._found(sandbox_id, view)
                try:
                    after = await self._grow(sandbox_id, view, file, under)
                except Invalid as problem:
                    if problem.reason != "RESOURCE_INVALID" or not file.size:
                        raise
                    after = await self._grow(sandbox_id, view, _File(0, view.start), under)  # somebody has changed it
                self._files[sandbox_id, view.path] = after

    async def _found(self, sandbox_id: str, view: LogView) -> _File:
        """Looks how far a file goes that an earlier run has made."""
        size, end = await self._hands.end_of(sandbox_id, view.path, END_BYTES)
        try:
            position = int(json.loads(end.removesuffix(b"\n").rpartition(b"\n")[2])["position"])
        except (ValueError, TypeError, KeyError, RecursionError):
            position = 0
        known = size <= MAX_FILE_BYTES and end.endswith(b"\n") and 0 < position < MAX_POSITION
        return _File(size, position + 1) if known else _File(0, view.start)

    async def _grow(self, sandbox_id: str, view: LogView, file: _File, under: Standing) -> _File:
        """Puts what is new behind what the file has; from its newer half on when there is too much."""
        size, position = file.size, file.next
        async for lines, upto in self._new(file.next):
            if size + len(lines) > MAX_FILE_BYTES:
                position = await self._half(view.start)
                return await self._grow(sandbox_id, view, _File(0, position), under)
            for piece in _pieces(lines):
                await self._hands.extend(sandbox_id, view.path, piece, size, under)
                size += len(piece)
            position = upto + 1
        return _File(size, position)

    async def _new(self, start: int) -> AsyncIterator[tuple[bytes, int]]:
        """Yields the log from a position on as lines, a page at a time, with the last position of each."""
        while start:
            page = await self._log.read(start, 0, most=PAGE_EVENTS)
            if page.events:
                yield await asyncio.to_thread(_spelled, page.events), page.events[-1].position
            start = page.next

    async def _half(self, start: int) -> int:
        """Returns the position from which on the log fits into half of a file; the newest one always does."""
        end, room = 0, MAX_FILE_BYTES // 2
        kept = 0
        while True:
            page = await self._log.read(start, end, descending=True, most=PAGE_EVENTS)
            for event in page.events:
                room -= len(await asyncio.to_thread(_spelled, [event]))
                if kept and room < 0:
                    return kept
                kept = event.position
            if not page.next:
                return kept or start
            end = page.next


def _spelled(events: Iterable[Event]) -> bytes:
    lines = (json.dumps(MessageToDict(event), ensure_ascii=False, separators=(",", ":")) for event in events)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _pieces(lines: bytes) -> Sequence[bytes]:
    """Cuts lines into pieces that a hand takes, at the end of a line where there is one."""
    pieces: deque[bytes] = deque()
    start = 0
    while start < len(lines):
        end = min(len(lines), start + PIECE_BYTES)
        border = lines.rfind(b"\n", start, end) + 1
        end = border if border > start else end
        pieces.append(lines[start:end])
        start = end
    return pieces
