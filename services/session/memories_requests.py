"""Remembers which version of a file a request has made, so that a request that comes again makes no other.

In the bucket of the older versions, `<store>.r.<request>`: the path and the number of the version that the request is
about to make. It is written before the version, and changed by a compare-and-set alone. A version carries its request:
so whether it was made is seen at the version, however often the request was begun, and by how many at once.
"""

from __future__ import annotations

import hashlib
import json

from services.kit.errors import Exists
from services.session.log import Registry
from services.session.memories_core import Version, parse_version, path_key

FILES = "memories"
VERSIONS = "memory_versions"


class MemoryRequests:
    """Requests that write or delete, by the session that asks (empty for clients) and the id that it gives them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def made(self, store_id: str, session_id: str, request_id: str) -> tuple[Version | None, int]:
        """Returns the version that a request has made, if it has, and the revision of what is remembered of it."""
        entry = await self._registry.get(VERSIONS, _key(store_id, session_id, request_id))
        if entry is None:
            return None, 0
        begun = json.loads(entry.value)
        found = await self._version(store_id, begun["path"], begun["version"])
        is_made = found is not None and (found.session_id, found.request_id) == (session_id, request_id)
        return found if is_made else None, entry.revision

    async def begin(self, store_id: str, version: Version, revision: int) -> bool:
        """Says that a request is about to make a version; no when another of the same was faster.

        `revision` is what `made` returned, after the file's newest version was read and before anything is written.
        """
        key = _key(store_id, version.session_id, version.request_id)
        begun = json.dumps({"path": version.path, "version": version.version}).encode()
        return bool(await self._registry.swap(VERSIONS, key, begun, revision))

    async def _version(self, store_id: str, path: str, number: int) -> Version | None:
        key = f"{store_id}.{path_key(path)}"
        entry = await self._registry.get(FILES, key)
        newest = parse_version(entry.value) if entry else None
        if newest is None or newest.version <= number:
            return newest if newest is not None and newest.version == number else None
        older = await self._registry.get(VERSIONS, f"{key}.{number}")
        return parse_version(older.value) if older else None


def check_path_of(made: Version, path: str) -> None:
    """Raises Exists for a request that was about another file."""
    if made.path != path:
        said = "the request id was used for another file"
        raise Exists("REQUEST_ID_REUSED", said, request_id=made.request_id)


def _key(store_id: str, session_id: str, request_id: str) -> str:
    return f"{store_id}.r.{hashlib.sha256(f'{session_id}/{request_id}'.encode()).hexdigest()}"
