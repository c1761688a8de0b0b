"""Counts what a tenant's memory stores hold, all versions of all files, so that one tenant cannot fill the disk.

It is one entry for each tenant in the bucket `memory_stores`, `u.<tenant>`: a JSON object of bytes by store. What is
about to be written is counted first, and taken back when it is not written. So what a process leaves that dies in
between is counted until its store is deleted; never is more there than was counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from services.kit.errors import Full, Unavailable
from services.session import memories_core as core
from services.session.log import Registry

BUCKET = "memory_stores"
MAX_TRIES = 64  # of a compare-and-set


class Usage:
    """The bytes of every tenant, of which each may have `quota`."""

    def __init__(self, registry: Registry, quota: int) -> None:
        self._registry = registry
        self._quota = quota

    async def take(self, tenant: str, store_id: str, size: int) -> None:
        """Counts a version of so many bytes. Raises Full (`MEMORY_QUOTA`, or `FULL` for too many stores)."""
        most = self._quota

        def change(used: dict[str, int]) -> None:
            used[store_id] = used.get(store_id, 0) + core.weight(size)
            if sum(used.values()) > most:
                raise Full("MEMORY_QUOTA", f"a tenant's memory stores have at most {most} bytes", limit_bytes=most)
            if len(used) > core.MAX_STORES:
                raise Full("FULL", f"a tenant has at most {core.MAX_STORES} memory stores with content")

        await self._change(tenant, change)

    async def give_back(self, tenant: str, store_id: str, size: int) -> None:
        """Takes back what was counted and not written."""

        def change(used: dict[str, int]) -> None:
            if store_id in used:
                used[store_id] = max(0, used[store_id] - core.weight(size))

        await self._change(tenant, change)

    async def forget(self, tenant: str, store_id: str) -> None:
        """Takes back all of a store that was deleted."""

        def change(used: dict[str, int]) -> None:
            used.pop(store_id, None)

        await self._change(tenant, change)

    async def _change(self, tenant: str, change: Callable[[dict[str, int]], None]) -> None:
        key = f"u.{core.tenant_key(tenant)}"
        for _ in range(MAX_TRIES):
            entry = await self._registry.get(BUCKET, key)
            before = json.loads(entry.value) if entry else {}
            after = dict(before)
            change(after)
            if after == before:
                return
            text = json.dumps(after, separators=(",", ":")).encode()
            if await self._registry.swap(BUCKET, key, text, entry.revision if entry else 0):
                return
        raise Unavailable("LOG_UNAVAILABLE", "too many others write to the tenant's memory stores", retry_after=0.2)
