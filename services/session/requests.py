"""Which session a request made: the same one for the same request, whenever it comes again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from services.kit import ids
from services.kit.errors import Exists
from services.session.log import Registry

BUCKET = "requests"


@dataclass(frozen=True)
class Claimed:
    """The session of a request, and whether it was asked for just now for the first time. `key` is the request's own
    in the bucket, for whoever deletes the session; empty for a request without an id."""

    session_id: str
    fresh: bool
    key: str = ""


class Requests:
    """Requests that make sessions, by the ids that callers gave them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def claim(self, tenant: str, request_id: str, digest: str, verb: str = "") -> Claimed:
        """Says which session a request makes. `digest` stands for all that it asks; `verb` is another one's than
        CreateSession's.

        Raises Exists (`REQUEST_ID_REUSED`) when the id came with something else. Without an id each call is new.
        """
        session_id = ids.mint("sess")
        if not request_id:
            return Claimed(session_id, True)
        name = f"{tenant}\0{request_id}" + (f"\0{verb}" if verb else "")
        key = hashlib.sha256(name.encode()).hexdigest()
        kept = json.dumps({"session_id": session_id, "digest": digest}).encode()
        if await self._registry.swap(BUCKET, key, kept, 0):
            return Claimed(session_id, True, key)
        entry = await self._registry.get(BUCKET, key)
        there = json.loads(entry.value) if entry else {}
        if there.get("digest") != digest:
            raise Exists("REQUEST_ID_REUSED", "the request id was used for another session", request_id=request_id)
        return Claimed(str(there["session_id"]), False, key)
