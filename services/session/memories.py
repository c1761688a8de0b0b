"""Keeps memory stores: files that outlive sessions, and every version of them.

    memory_stores    s.<store>                  what the store is: the one entry that counts
                     t.<tenant>.<store>         finds a tenant's stores; one without an `s.` was never quite made
                     d.<store>                  a store that was deleted: its content is the janitor's to remove
                     u.<tenant>                 how many bytes a tenant's stores have (`memories_usage`)
    memories         <store>.<path>             a file's newest version
    memory_versions  <store>.<path>.<version>   the versions before that
                     <store>.r.<request>        which version a request makes (`memories_requests`)

A write first copies the newest version to the older ones, which says the same whoever does it, then takes its place
by a compare-and-set. So a history has no gaps, and of two writers that saw the same version one wins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

from services.kit import failpoints, ids
from services.kit.errors import Conflict, Exists, Full, Invalid, Unavailable
from services.session import memories_core as core
from services.session.log import Registry
from services.session.memories_core import MemoryStore, Version
from services.session.memories_requests import FILES, VERSIONS, MemoryRequests, check_path_of
from services.session.memories_usage import Usage
from services.session.objects import Objects, check_young, chunks_of, read, write

STORES = "memory_stores"
REQUESTS = "requests"
MAX_TRIES = 64  # of a compare-and-set


class Memories:
    """Every memory store. `tenant` is whose stores the caller may reach; None means all."""

    def __init__(
        self, objects: Objects, registry: Registry, now: Callable[[], int], quota: int = core.QUOTA_BYTES
    ) -> None:
        self._objects = objects
        self._registry = registry
        self._now = now
        self._usage = Usage(registry, quota)
        self._requests = MemoryRequests(registry)

    async def create(self, tenant: str, name: str, request_id: str) -> MemoryStore:
        """Makes a store (see `CreateMemoryStore`)."""
        if len(name) > core.MAX_NAME:
            raise Invalid("ARGUMENT_INVALID", f"name has at most {core.MAX_NAME} characters", field="name")
        store_id = await self._claim_request(tenant, name, request_id)
        made = MemoryStore(store_id, tenant, name, self._now())
        await self._registry.put(STORES, f"t.{core.tenant_key(tenant)}.{store_id}", b"")
        if not await self._registry.swap(STORES, f"s.{store_id}", core.spell(made), 0):
            there = await self._registry.get(STORES, f"s.{store_id}")
            assert there is not None
            made = core.parse_store(there.value)
        return made

    async def list_stores(self, tenant: str, page_size: int, page_token: str) -> tuple[list[MemoryStore], str]:
        """Returns a page of a tenant's stores, newest first, and where the next one starts."""
        if page_size < 0:
            raise Invalid("ARGUMENT_INVALID", f"page_size is negative: {page_size}", field="page_size")
        if page_token and not ids.MINTED.fullmatch(page_token):
            raise Invalid("ARGUMENT_INVALID", "page_token is not one of ours", field="page_token")
        size = min(page_size or core.DEFAULT_PAGE, core.DEFAULT_PAGE)
        prefix = f"t.{core.tenant_key(tenant)}."
        names = sorted((key.removeprefix(prefix) for key in await self._registry.keys(STORES, prefix)), reverse=True)
        left = [name for name in names if not page_token or name < page_token]
        entries = await self._registry.get_many(STORES, [f"s.{name}" for name in left])
        there = [core.parse_store(entries[f"s.{name}"]) for name in left if f"s.{name}" in entries]
        stores = [store for store in there if not store.deleted]
        return stores[:size], stores[size - 1].memory_store_id if len(stores) > size else ""

    async def delete_store(self, store_id: str, tenant: str | None) -> None:
        """Deletes a store: nobody finds it from now on. Its content is removed later (`remove`)."""
        for _ in range(MAX_TRIES):
            entry = await self._registry.get(STORES, f"s.{store_id}")
            store = core.parse_store(entry.value) if entry else None
            if entry is None or store is None or tenant not in (None, store.tenant):
                raise core.missing("memory store")
            gone = core.spell(replace(store, deleted=True))
            if store.deleted or await self._registry.swap(STORES, f"s.{store_id}", gone, entry.revision):
                await self._usage.forget(store.tenant, store_id)
                await self._registry.put(STORES, f"d.{store_id}", b"")  # last: what has it, the janitor empties
                return
        raise _busy()

    async def deleted(self) -> list[str]:
        """Lists the stores that were deleted and whose content was not removed yet, for the janitor."""
        keys = await self._registry.keys(STORES, "d.")
        marks = await self._registry.get_many(STORES, keys)
        return [key.removeprefix("d.") for key in keys if not marks.get(key)]

    async def remove(self, store_id: str) -> None:
        """Removes the content of a deleted store. The janitor's: the serving identity may not."""
        await self._objects.remove(store_id)
        await self._registry.put(STORES, f"d.{store_id}", b"removed")

    async def write(
        self,
        store_id: str,
        path: str,
        content: bytes,
        expected: str | None,
        tenant: str | None,
        session_id: str,
        request_id: str = "",
    ) -> Version:
        """Writes a file's next version (see `WriteMemory`)."""
        core.check_path(path)
        core.check_content(content)
        core.check_expectation(expected, empty=True)
        owner = (await self._store(store_id, tenant)).tenant
        there, _ = await self._newest(store_id, path)
        if request_id and (done := (await self._requests.made(store_id, session_id, request_id))[0]):
            check_path_of(done, path)
            return done
        core.check_expected(there, expected)
        if there is None:
            await self._check_room(store_id)
        object_id = ids.mint("obj")
        sha256 = hashlib.sha256(content).hexdigest()
        made = Version(path, 0, sha256, len(content), 0, session_id, object_id, request_id)
        await self._usage.take(owner, store_id, len(content))
        unnamed = True
        try:
            await self._store(store_id, tenant)  # whoever deletes it from here on takes back what was counted
            await write(self._objects, store_id, object_id, content)
            unnamed = False  # from here on it may have its name even if the store does not say so
            version = await self._take_place(store_id, made, expected)
            unnamed = version.object_id != object_id  # somebody else has done the same request
        except (Full, Conflict):
            unnamed = True
            raise
        finally:
            if unnamed:
                await self._usage.give_back(owner, store_id, len(content))
                await self._objects.free(store_id, object_id, chunks_of(len(content)))
        return version

    async def delete(
        self,
        store_id: str,
        path: str,
        expected: str | None,
        tenant: str | None,
        session_id: str,
        request_id: str = "",
    ) -> None:
        """Deletes a file; its versions stay (see `DeleteMemory`)."""
        core.check_path(path)
        core.check_expectation(expected, empty=False)
        await self._store(store_id, tenant)
        there, _ = await self._newest(store_id, path)
        if there is None:
            raise core.missing("file")
        if there.sha256:
            await self._take_place(store_id, Version(path, 0, "", 0, 0, session_id, "", request_id), expected)

    async def find(self, store_id: str, request_id: str, tenant: str | None, session_id: str) -> Version:
        """Returns the version that a request has made (see `FindMemory`)."""
        await self._store(store_id, tenant)
        made, _ = await self._requests.made(store_id, session_id, request_id)
        if made is None:
            raise core.missing("request")
        return made

    async def check_tenant(self, store_id: str, tenant: str) -> None:
        """Raises Gone unless a store is this tenant's."""
        await self._store(store_id, tenant)

    async def read(self, store_id: str, path: str, version: int, tenant: str | None) -> tuple[Version, bytes]:
        """Returns a version of a file, 0 meaning the newest, and its content."""
        core.check_path(path)
        if version < 0:
            raise Invalid("ARGUMENT_INVALID", f"version is negative: {version}", field="version")
        await self._store(store_id, tenant)
        found, _ = await self._newest(store_id, path)
        if found is not None and version not in (0, found.version):
            entry = await self._registry.get(VERSIONS, f"{store_id}.{core.path_key(path)}.{version}")
            found = core.parse_version(entry.value) if entry and version < found.version else None
        if found is None or not found.sha256:
            raise core.missing("file, or no such version of it")
        content = b"".join([piece async for piece in read(self._objects, store_id, found.object_id, 0, found.size)])
        if hashlib.sha256(content).hexdigest() != found.sha256:
            raise core.missing("content any more")
        return found, content

    async def list_files(self, store_id: str, folder: str, tenant: str | None) -> list[Version]:
        """Returns the newest versions of the files under a path, by path."""
        folder = core.check_folder(folder)
        await self._store(store_id, tenant)
        keys = await self._registry.keys(FILES, f"{store_id}.")
        found = map(core.parse_version, (await self._registry.get_many(FILES, keys)).values())
        return sorted((each for each in found if each.sha256 and core.lies_under(each.path, folder)), key=_path)

    async def list_versions(self, store_id: str, path: str, tenant: str | None) -> list[Version]:
        """Returns all versions of a file, newest first; those of a deleted one too."""
        core.check_path(path)
        await self._store(store_id, tenant)
        newest, _ = await self._newest(store_id, path)
        if newest is None:
            raise core.missing("file")
        prefix = f"{store_id}.{core.path_key(path)}."
        older = await self._registry.get_many(VERSIONS, [f"{prefix}{number}" for number in range(1, newest.version)])
        return sorted([newest, *map(core.parse_version, older.values())], key=_number, reverse=True)

    async def _take_place(self, store_id: str, made: Version, expected: str | None) -> Version:
        """Makes a version the newest one, or returns the one that its request has made already.

        Raises Conflict when the file is not what the writer expects.
        """
        key = f"{store_id}.{core.path_key(made.path)}"
        for _ in range(MAX_TRIES):
            there, revision = await self._newest(store_id, made.path)
            begun = 0
            if made.request_id:  # looked at behind the newest version: what comes later takes that one's place
                done, begun = await self._requests.made(store_id, made.session_id, made.request_id)
                if done is not None:
                    check_path_of(done, made.path)
                    return done
            core.check_expected(there, expected)
            core.check_versions(there)
            before = there.version if there else 0
            if there is not None:
                await self._registry.put(VERSIONS, f"{key}.{before}", core.spell(there))
            time = max(self._now(), there.write_time if there else 0)
            made = replace(made, version=before + 1, write_time=time)
            check_young(made.object_id)
            if made.request_id and not await self._requests.begin(store_id, made, begun):
                continue
            if await self._registry.swap(FILES, key, core.spell(made), revision):
                failpoints.hit("session.memory_stored")
                return made
        raise _busy()

    async def _newest(self, store_id: str, path: str) -> tuple[Version | None, int]:
        entry = await self._registry.get(FILES, f"{store_id}.{core.path_key(path)}")
        return (core.parse_version(entry.value), entry.revision) if entry else (None, 0)

    async def _store(self, store_id: str, tenant: str | None) -> MemoryStore:
        entry = await self._registry.get(STORES, f"s.{store_id}")
        store = core.parse_store(entry.value) if entry else None
        if store is None or store.deleted or tenant not in (None, store.tenant):
            raise core.missing("memory store")
        return store

    async def _check_room(self, store_id: str) -> None:
        if len(await self._registry.keys(FILES, f"{store_id}.")) >= core.MAX_FILES:
            raise Full("FULL", f"a memory store has at most {core.MAX_FILES} files")

    async def _claim_request(self, tenant: str, name: str, request_id: str) -> str:
        """Says which store a request makes, the same for the same request whenever it comes again."""
        store_id = ids.mint("mem")
        if not request_id:
            return store_id
        key = hashlib.sha256(f"memory store\0{tenant}\0{request_id}".encode()).hexdigest()
        kept = json.dumps({"memory_store_id": store_id, "name": name}).encode()
        if await self._registry.swap(REQUESTS, key, kept, 0):
            return store_id
        entry = await self._registry.get(REQUESTS, key)
        there = json.loads(entry.value) if entry else {}
        if there.get("name") != name:
            raise Exists("REQUEST_ID_REUSED", "the request id was used for another memory store", request_id=request_id)
        return str(there["memory_store_id"])


def _path(version: Version) -> str:
    return version.path


def _number(version: Version) -> int:
    return version.version


def _busy() -> Unavailable:
    return Unavailable("LOG_UNAVAILABLE", "too many others write to the same place", retry_after=0.2)
