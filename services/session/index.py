"""Which sessions there are, newest first. What they do is read from their logs.

The ids of a tenant's sessions are keys in the registry; they sort by age. An entry holds what filters ask for that
only a configuration changes; an entry whose log is missing is a session that was never quite made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.kit.errors import Gone, Invalid
from services.session.codec import DEFAULT_HARNESS
from services.session.core import WriteState, status
from services.session.log import Registry
from services.session.writer import Writer

BUCKET = "sessions"
DEFAULT_PAGE = 50
MAX_PAGE = 1_000
MAX_SCAN = 2_000  # sessions that one page looks at
SLACK = 60 * 1_000_000_000  # nanoseconds between an entry and its session's first event
AT_ONCE = 16  # logs that are read at once


@dataclass(frozen=True)
class Filter:
    """Which sessions are asked for. Times are in nanoseconds; 0 means any."""

    statuses: frozenset[int] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    harness: str = ""
    created_after: int = 0
    created_before: int = 0

    def fits(self, entry: Mapping[str, object]) -> bool:
        """Says whether a session may be asked for, as far as its entry tells. Its log tells the exact time."""
        created, labels = entry["created"], entry["labels"]
        assert isinstance(created, int) and isinstance(labels, dict)
        return (
            (not self.harness or entry["harness"] == self.harness)
            and all(labels.get(key) == value for key, value in self.labels.items())
            and created >= self.created_after - SLACK
            and (not self.created_before or created < self.created_before + SLACK)
        )

    def fits_state(self, state: WriteState) -> bool:
        """Says whether a session is asked for, as far as its log tells."""
        return (
            (not self.statuses or int(status(state)) in self.statuses)
            and state.create_time >= self.created_after
            and (not self.created_before or state.create_time < self.created_before)
        )


class Index:
    """Finds sessions."""

    def __init__(self, registry: Registry, writer: Writer) -> None:
        self._registry = registry
        self._writer = writer

    async def put(self, session_id: str, config: SessionConfig, created: int) -> None:
        """Writes a session's entry."""
        entry = {
            "harness": config.harness or DEFAULT_HARNESS,
            "labels": dict(config.labels),
            "created": created,
        }
        await self._registry.put(BUCKET, _prefix(config.tenant) + session_id, json.dumps(entry).encode())

    async def find(self, tenant: str, which: Filter, page_size: int, page_token: str) -> tuple[list[str], str]:
        """Returns a page of sessions' ids, newest first, and where the next one starts."""
        if page_size < 0:
            raise Invalid("ARGUMENT_INVALID", f"page_size is negative: {page_size}", field="page_size")
        if page_token and not ids.MINTED.fullmatch(page_token):
            raise Invalid("ARGUMENT_INVALID", "page_token is not one of ours", field="page_token")
        size = min(page_size or DEFAULT_PAGE, MAX_PAGE)
        prefix = _prefix(tenant)
        there = sorted((key.removeprefix(prefix) for key in await self._registry.keys(BUCKET, prefix)), reverse=True)
        left = [session_id for session_id in there if not page_token or session_id < page_token]
        found: list[str] = []
        looked_at = 0
        while looked_at < min(len(left), MAX_SCAN):
            part = left[looked_at : looked_at + size]
            for session_id in await self._fitting(prefix, part, which):
                found.append(session_id)
                if len(found) == size:
                    return found, session_id if session_id != left[-1] else ""
            looked_at += len(part)
        return found, left[looked_at - 1] if looked_at < len(left) else ""

    async def _fitting(self, prefix: str, session_ids: Sequence[str], which: Filter) -> list[str]:
        entries = await self._registry.get_many(BUCKET, [prefix + session_id for session_id in session_ids])
        asked = [each for each in session_ids if which.fits(json.loads(entries.get(prefix + each, _NOTHING)))]
        few = asyncio.Semaphore(AT_ONCE)  # bounds how many logs are read at once

        async def look(session_id: str) -> WriteState | None:
            async with few:
                try:
                    return await self._writer.current(session_id)
                except Gone:
                    return None

        states = await asyncio.gather(*map(look, asked))
        return [
            each for each, state in zip(asked, states, strict=True) if state is not None and which.fits_state(state)
        ]


_NOTHING = json.dumps({"harness": "", "labels": {}, "created": 0}).encode()


def _prefix(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:32] + "."
