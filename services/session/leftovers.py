"""Finds the bytes that nobody will ever name: what uploads, copies and writes left behind that died half-way.

An object is named within `NAMED_WITHIN_SECONDS` of its beginning or never, and a name is never taken back. So each
object is looked at once, when it is `LEFT_SECONDS` old; what was freed, and is an empty message now, goes the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from services.kit import ids
from services.kit.logs import Log as Journal
from services.session import blobs_core, memories_core
from services.session.objects import NAMED_WITHIN_SECONDS
from services.session.operator import Operator
from services.session.purging import purge, subjects

LEFT_SECONDS = 2 * NAMED_WITHIN_SECONDS  # longer by more than clocks differ
OBJECTS = "OBJECTS"

_journal = Journal("services.session.janitor")


class Leftovers:
    """Purges objects without a name. `now` is the time of day in seconds."""

    def __init__(self, operator: Operator, now: Callable[[], float]) -> None:
        self._operator = operator
        self._now = now
        self._seen = ""  # objects before this one were looked at

    async def sweep(self) -> int:
        """Purges what is left and was not looked at yet; returns how many objects that were."""
        oldest = ids.spell("obj", int((self._now() - LEFT_SECONDS) * 1_000), bytes(10))
        there: defaultdict[str, set[str]] = defaultdict(set)
        async for subject in subjects(self._operator, OBJECTS, "obj.*.*.*"):
            _, space, object_id, _ = subject.split(".")
            if self._seen <= object_id < oldest:
                there[space].add(object_id)
        count = 0
        for space, objects in there.items():  # the names are read after the objects: what is named by now stays
            left = objects - await self._named(space)
            for object_id in left:
                await purge(self._operator, OBJECTS, f"obj.{space}.{object_id}.*")
            if left:
                _journal.info("leftovers purged", space=space, objects=len(left))
            count += len(left)
        self._seen = oldest
        return count

    async def _named(self, space: str) -> set[str]:
        """Returns the objects of a session or a memory store that have a name."""
        if space.startswith("sess_"):
            catalog = await self._operator.value("KV_blobs", f"$KV.blobs.{space}")
            return {blob.object_id for blob in blobs_core.parse(catalog).values()} if catalog else set()
        found: set[str] = set()
        # The newest first: a version is copied to the older ones before another takes its place.
        for stream, subject in (("memories", f"{space}.*"), ("memory_versions", f"{space}.>")):
            async for key in subjects(self._operator, f"KV_{stream}", f"$KV.{stream}.{subject}"):
                version = await self._operator.value(f"KV_{stream}", key)
                if version:
                    found.add(memories_core.parse_version(version).object_id)
        return found
