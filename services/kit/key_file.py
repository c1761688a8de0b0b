"""The operator's file of keys: what a mesh begins with. Read again when it changes.

    [{"sha256": "...", "tenant": "default", "name": "local", "scope": "operator"}]

`sha256` is that of the whole key, in hex. `scope` is `read`, `run`, `admin` (what it is without) or `operator`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from services.kit.access import Scope
from services.kit.identity import Caller, unknown
from services.kit.watched import LOOK_SECONDS, UnreadableError, Watched


class KeyFile:
    """A `Source` (see `callers`) of the keys in a file. Without one nobody is known."""

    def __init__(self, file: Path | None) -> None:
        """Raises OSError, and UnreadableError when the file is none."""
        self._rows: Watched[Mapping[str, Caller]] | None = None
        if file is not None:
            self._rows = Watched([file], lambda: read(file))

    def find(self, digest: str) -> Caller | None:
        """Returns whose key has this SHA-256, in hex."""
        return self._rows.get().get(digest) if self._rows is not None else None

    async def ask(self, credential: str) -> Caller:
        """See `Source.ask`."""
        found = self.find(hashlib.sha256(credential.encode()).hexdigest())
        if found is None:
            raise unknown()
        return found

    async def news(self) -> AsyncIterator[str]:
        """Yields the ids of keys that are not in the file any more, or that say something else."""
        kept = dict(self._rows.get()) if self._rows is not None else {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._rows is None:
                continue
            now = self._rows.get()
            for digest, caller in kept.items():
                if now.get(digest) != caller:
                    yield caller.id
            kept = dict(now)


def read(file: Path) -> Mapping[str, Caller]:
    """Reads a file of keys: SHA-256 in hex -> the client. Raises OSError, UnreadableError."""
    try:
        rows = json.loads(file.read_bytes())
        return {row["sha256"]: _caller(row) for row in rows}
    except (ValueError, TypeError, KeyError):
        raise UnreadableError("expected a JSON list of {sha256, tenant, name, scope}") from None


def _caller(row: Mapping[str, str]) -> Caller:
    scope = Scope[row.get("scope", "admin").upper()]
    return Caller("client", row["tenant"], row["name"], id="file:" + row["sha256"][:16], scope=scope)
