"""Memory stores that are mounted in sandboxes as directories, and how what tools change in them gets back.

A mount is filled once. After each execution, before its result is returned, what has changed in it is written to the
store, each file under the condition that the store has what the sandbox last had. So nothing that somebody else wrote
is overwritten: of a file that changed on both sides the store's version takes the name, and the sandbox's is kept
beside it as `<name>.conflict-<n>`, in the sandbox and in the store. What the sandbox last had lies on the disk.

Two lines longer than a module should be: the way there and back is read best in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from services.kit.errors import Conflict, Gone, Invalid, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox.hand import File, FileInfo, Hand
from services.sandbox.session import Memory, Session, Whose

MAX_FILES = 1_000
MAX_BYTES = 64 << 20
MAX_FILE_BYTES = 1 << 20  # of the store, too
SYNC_SECONDS = 20.0  # that a result may wait for the session service
NOTED = 5  # problems told of in one result
_log = Log("services.sandbox.mounts")


@dataclass(frozen=True)
class Mount:
    """A memory store that a sandbox shall have under a path."""

    path: str
    store_id: str
    read_only: bool


@dataclass
class Held:
    """What a mount had when it was last in step with its store: for each file its SHA-256 and its stamp."""

    mount: Mount
    files: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Mounted:
    """The mounts of a sandbox, and for whom it has them."""

    whose: Whose
    held: list[Held]


class Mounts:
    """The mounts of all sandboxes, in a folder with a file for each that has any."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder when there is something to keep."""
        self._folder = folder
        self._known: dict[str, Mounted | None] = {}
        self._locks: dict[str, asyncio.Lock] = {}  # one sync of a sandbox at a time: two would race for each file

    def paths(self, sandbox_id: str) -> list[str]:
        """Lists where a sandbox has mounts."""
        mounted = self._load(sandbox_id)
        return [held.mount.path for held in mounted.held] if mounted else []

    async def fill(self, hand: Hand, sandbox_id: str, session: Session, whose: Whose, wanted: Sequence[Mount]) -> None:
        """Gives a sandbox mounts that it does not have yet."""
        async with self._lock(sandbox_id):
            mounted = self._load(sandbox_id) or Mounted(whose, [])
            there = {held.mount.path for held in mounted.held}
            for mount in wanted:
                if mount.path not in there:
                    mounted.held.append(await _filled(hand, sandbox_id, session, whose, mount))
                    self._save(sandbox_id, mounted)

    async def sync(self, hand: Hand, sandbox_id: str, session: Session | None, *, strictly: bool = False) -> list[str]:
        """Writes what has changed to the stores; returns sentences for the model on what did not go as expected.

        `strictly` raises Unavailable when the session service cannot be asked.
        """
        mounted = self._load(sandbox_id)
        if mounted is None or all(held.mount.read_only for held in mounted.held):
            return []
        notes: list[str] = []
        async with self._lock(sandbox_id):
            try:
                if session is None:
                    raise Gone("SESSION_UNAVAILABLE", "this service knows no session service")
                async with asyncio.timeout(SYNC_SECONDS):
                    for held in mounted.held:
                        if not held.mount.read_only:
                            await _Sync(hand, sandbox_id, session, mounted.whose, held, notes).run()
            except (ServiceError, TimeoutError) as error:
                reason = error.reason if isinstance(error, ServiceError) else "TIMEOUT"
                _log.warning("memory not synced", sandbox_id=sandbox_id, reason=reason)
                if strictly and (isinstance(error, Unavailable | TimeoutError)):
                    raise Unavailable("SESSION_UNAVAILABLE", "what is in memory mounts cannot be written now") from None
                notes.append(f"memory is not saved yet ({reason}); it is tried again after the next call")
            finally:
                self._save(sandbox_id, mounted)
        return notes[:NOTED] + ([f"and {len(notes) - NOTED} more"] if len(notes) > NOTED else [])

    def forget(self, sandbox_id: str) -> None:
        """Forgets the mounts of a sandbox that is gone. Idempotent."""
        self._known.pop(sandbox_id, None)
        self._locks.pop(sandbox_id, None)
        with contextlib.suppress(FileNotFoundError):
            self._file(sandbox_id).unlink()

    def keep_only(self, living: set[str]) -> None:
        """Forgets the mounts of all other sandboxes."""
        for file in self._folder.glob("*.json") if self._folder.is_dir() else ():
            if file.stem not in living:
                self.forget(file.stem)

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        return self._locks.setdefault(sandbox_id, asyncio.Lock())

    def _file(self, sandbox_id: str) -> Path:
        return self._folder / f"{sandbox_id}.json"

    def _load(self, sandbox_id: str) -> Mounted | None:
        if sandbox_id not in self._known:
            try:
                kept = json.loads(self._file(sandbox_id).read_text())
            except FileNotFoundError:
                return None
            held = [
                Held(Mount(**it["mount"]), {path: (row[0], row[1]) for path, row in it["files"].items()})
                for it in kept["held"]
            ]
            self._known[sandbox_id] = Mounted(Whose(**kept["whose"]), held)
        return self._known[sandbox_id]

    def _save(self, sandbox_id: str, mounted: Mounted) -> None:
        """Writes by a rename. What a power cut takes back is found out by the conditions of the next sync."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._file(sandbox_id).with_suffix(".new")
        new.write_text(json.dumps(asdict(mounted)))
        new.replace(self._file(sandbox_id))
        self._known[sandbox_id] = mounted


async def check(session: Session, whose: Whose, wanted: Sequence[Mount]) -> None:
    """Raises Gone (`MEMORY_NOT_FOUND`) or Invalid (`RESOURCE_INVALID`) for a store that cannot be mounted."""
    for mount in wanted:
        await _list(session, whose, mount)


async def _list(session: Session, whose: Whose, mount: Mount) -> list[Memory]:
    memories = await session.memories(whose, mount.store_id)
    size = sum(memory.size for memory in memories)
    if len(memories) > MAX_FILES or size > MAX_BYTES:
        what = f"a memory store of {len(memories)} files and {size} bytes cannot be mounted"
        most = f"at most {MAX_FILES} files and {MAX_BYTES} bytes can"
        raise Invalid("RESOURCE_INVALID", f"{what}: {most}", mount_path=mount.path)
    return memories


async def _filled(hand: Hand, sandbox_id: str, session: Session, whose: Whose, mount: Mount) -> Held:
    hashes: dict[str, str] = {}
    for memory in await _list(session, whose, mount):
        try:
            now, content = await session.read_memory(whose, mount.store_id, memory.path)
        except Gone:
            continue  # deleted meanwhile
        mode = 0o444 if mount.read_only else 0o644
        await hand.put(sandbox_id, [File(f"{mount.path}/{memory.path}", content, mode)])
        hashes[memory.path] = now.sha256
    if not hashes:
        return Held(mount)
    there, _ = await hand.files(sandbox_id, mount.path)
    stamps = {_relative(mount, file): file.stamp for file in there}
    return Held(mount, {path: (sha256, stamps.get(path, "")) for path, sha256 in hashes.items()})


def _relative(mount: Mount, file: FileInfo) -> str:
    return file.path.removeprefix(mount.path + "/")


class _Sync:
    """One pass over one mount."""

    def __init__(
        self, hand: Hand, sandbox_id: str, session: Session, whose: Whose, held: Held, notes: list[str]
    ) -> None:
        self._hand, self._sandbox_id = hand, sandbox_id
        self._session, self._whose, self._store = session, whose, held.mount.store_id
        self._mount, self._files, self._notes = held.mount, held.files, notes

    async def run(self) -> None:
        try:
            found, more = await self._hand.files(self._sandbox_id, self._mount.path)
        except Gone as error:
            if error.reason != "FILE_NOT_FOUND":
                raise
            found, more = (), False
        if more:
            self._notes.append(
                f"{self._mount.path} has more than {MAX_FILES} files: memory is not saved until it has fewer"
            )
            return
        here = {_relative(self._mount, file): file for file in found}
        missing = [path for path in self._files if path not in here]  # before conflicts add to them
        for path, file in here.items():
            if self._files.get(path, ("", ""))[1] != file.stamp:
                await self._changed(path, file)
        for path in missing:
            await self._deleted(path)

    async def _changed(self, path: str, file: FileInfo) -> None:
        if file.size > MAX_FILE_BYTES:
            self._notes.append(f"{file.path} is not saved: a memory has at most {MAX_FILE_BYTES} bytes")
            return
        try:
            content = await self._read(file.path)
        except Gone as error:
            if error.reason != "FILE_NOT_FOUND":
                raise
            return  # removed meanwhile by another execution, whose end comes
        sha256, before = hashlib.sha256(content).hexdigest(), self._files.get(path, ("", ""))[0]
        if sha256 != before:
            try:
                await self._session.write_memory(self._whose, self._store, path, content, before)
            except Conflict as conflict:
                if conflict.metadata.get("sha256") != sha256:
                    await self._conflict(path, file, content)
                    return
            except Invalid as error:
                self._notes.append(f"{file.path} is not saved: {error.message}")
                return
        self._files[path] = (sha256, file.stamp)

    async def _read(self, path: str) -> bytes:
        content = bytearray()
        async with aclosing(self._hand.read_file(self._sandbox_id, path)) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > MAX_FILE_BYTES:
                    break
        return bytes(content[: MAX_FILE_BYTES + 1])

    async def _conflict(self, path: str, file: FileInfo, content: bytes) -> None:
        """Keeps both: the sandbox's under a new name, the store's under the name."""
        try:
            theirs, theirs_content = await self._session.read_memory(self._whose, self._store, path)
        except Gone:  # deleted there, changed here: the change is kept
            sha256 = await self._session.write_memory(self._whose, self._store, path, content, "")
            self._files[path] = (sha256, file.stamp)
            self._notes.append(f"{file.path} had been deleted in the memory store; your version is there again")
            return
        kept = await self._aside(path, content)
        await self._hand.put(
            self._sandbox_id, [File(f"{self._mount.path}/{kept}", content), File(file.path, theirs_content)]
        )
        self._files[path] = (theirs.sha256, await self._stamp(file.path))
        self._files[kept] = (hashlib.sha256(content).hexdigest(), await self._stamp(f"{self._mount.path}/{kept}"))
        self._notes.append(
            f"{file.path} was changed by somebody else meanwhile: it has their version now, and yours is in "
            f"{self._mount.path}/{kept}"
        )

    async def _aside(self, path: str, content: bytes) -> str:
        """Writes content to the store under the first free name beside a path; returns the name."""
        for number in range(1, MAX_FILES):
            name = f"{path}.conflict-{number}"
            if name in self._files:
                continue
            try:
                await self._session.write_memory(self._whose, self._store, name, content, "")
            except Conflict:
                continue
            return name
        raise Invalid("RESOURCE_INVALID", f"{path} has too many conflicts", mount_path=self._mount.path)

    async def _stamp(self, path: str) -> str:
        found, _ = await self._hand.files(self._sandbox_id, path)
        return found[0].stamp if found else ""

    async def _deleted(self, path: str) -> None:
        sha256, _ = self._files[path]
        try:
            await self._session.delete_memory(self._whose, self._store, path, sha256)
        except Conflict:
            theirs, content = await self._session.read_memory(self._whose, self._store, path)
            where = f"{self._mount.path}/{path}"
            await self._hand.put(self._sandbox_id, [File(where, content)])
            self._files[path] = (theirs.sha256, await self._stamp(where))
            self._notes.append(
                f"{where} was changed by somebody else meanwhile: it is not deleted, and has their version"
            )
            return
        except Gone as error:
            if error.reason != "MEMORY_NOT_FOUND":
                raise
        self._files.pop(path, None)
