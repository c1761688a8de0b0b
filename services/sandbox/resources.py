"""What goes into sandboxes from elsewhere, and what is kept of them: blobs, memory stores, checkpoints."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from services.kit.errors import Invalid, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox import core, mounts
from services.sandbox.hand import Content, Hand, Packed, Result, SandboxInfo, Streamed
from services.sandbox.mounts import Mount, Mounts
from services.sandbox.seeds_rules import Repository
from services.sandbox.session import Session, Whose

CHECKPOINT_TYPE = "application/gzip"
_log = Log("services.sandbox.resources")


@dataclass(frozen=True)
class Blob:
    """A blob of the session that shall be a file."""

    path: str
    blob_id: str
    mode: int = 0o644


Resource = Content | Blob | Mount | Repository


@dataclass(frozen=True)
class Load:
    """What a sandbox shall be given, looked at: content for the hand, and what comes when the sandbox is there."""

    contents: tuple[Content, ...]
    mounts: tuple[Mount, ...]
    repositories: tuple[Repository, ...]
    whose: Whose


class Resources:
    """Resources of all sandboxes. Without a session service there are no blobs, memories and checkpoints."""

    def __init__(self, session: Session | None, kept: Mounts) -> None:
        """Takes the session service, and where mounts are kept."""
        self._session = session
        self._mounts = kept
        self._at_work: Counter[str] = Counter()
        self._quiet = asyncio.Event()  # set, and replaced, whenever work on a sandbox has ended

    async def load(
        self, wanted: Sequence[Resource], session_id: str, tenant: str | None, limit_bytes: int, checkpoint_id: str = ""
    ) -> Load:
        """Looks at what is wanted. `tenant` is the caller's; a harness has none, and acts for its session's.

        Raises Invalid (`RESOURCE_INVALID`, `ARGUMENT_INVALID`), and what the session service says of a store.
        """
        core.check_apart([it.path for it in wanted if not isinstance(it, Packed)])
        for it in wanted:
            if isinstance(it, Blob | Mount | Repository):
                core.check_mount_path(it.path)
        core.check_contents([it for it in wanted if not isinstance(it, Blob | Mount | Repository)])
        stores = tuple(it for it in wanted if isinstance(it, Mount))
        blobs = [it for it in wanted if isinstance(it, Blob)]
        whose = Whose("", session_id)
        if stores or blobs or checkpoint_id:
            whose = await self._whose(session_id, tenant)
        if (blobs or checkpoint_id) and not session_id:
            raise Invalid("ARGUMENT_INVALID", "blobs and checkpoints are a session's: name it", field="session_id")
        if stores:
            await mounts.check(self._service(), whose, stores)
        contents: list[Content] = []
        if checkpoint_id:
            contents.append(Packed(lambda: self._service().download(whose, checkpoint_id), limit_bytes))
        for it in wanted:
            if isinstance(it, Blob):
                contents.append(self._streamed(it, whose))
            elif not isinstance(it, Mount | Repository):
                contents.append(it)
        return Load(tuple(contents), stores, tuple(it for it in wanted if isinstance(it, Repository)), whose)

    def _streamed(self, blob: Blob, whose: Whose) -> Streamed:
        return Streamed(blob.path, lambda: self._service().download(whose, blob.blob_id), blob.mode)

    async def _whose(self, session_id: str, tenant: str | None) -> Whose:
        if tenant is None:
            if not session_id:
                raise Invalid("ARGUMENT_INVALID", "memory stores are a tenant's: name a session", field="session_id")
            tenant = await self._service().tenant_of(session_id)
        return Whose(tenant, session_id)

    def _service(self) -> Session:
        if self._session is None:
            raise Unavailable("SESSION_UNAVAILABLE", "this sandbox service was not told where the session service is")
        return self._session

    async def mount(self, hand: Hand, sandbox_id: str, load: Load) -> None:
        """Mounts stores in a sandbox that is there."""
        if load.mounts:
            taken = self._mounts.paths(sandbox_id)
            core.check_apart([*taken, *(it.path for it in load.mounts if it.path not in taken)])
            await self._mounts.fill(hand, sandbox_id, self._service(), load.whose, load.mounts)

    async def synced(self, hand: Hand, sandbox_id: str, result: Result) -> Result:
        """Writes what an execution has changed to its stores; tells the model what did not go as expected."""
        notes = await self._mounts.sync(hand, sandbox_id, self._session)
        return replace(result, text="\n".join([result.text, *(f"[{note}]" for note in notes)])) if notes else result

    async def release(self, hand: Hand, sandbox_id: str) -> None:
        """Writes what is left to write before a sandbox goes."""
        try:
            for note in await self._mounts.sync(hand, sandbox_id, self._session):
                _log.warning("memory at release", sandbox_id=sandbox_id, note=note)
        except ServiceError as error:  # it is gone already
            _log.warning("memory not synced", sandbox_id=sandbox_id, reason=error.reason)

    @contextmanager
    def at_work(self, sandbox_id: str) -> Iterator[None]:
        """Says that a sandbox is being filled: until that has ended it changes no owner (see `quiet`)."""
        self._at_work[sandbox_id] += 1
        try:
            yield
        finally:
            self._at_work[sandbox_id] -= 1
            if not self._at_work[sandbox_id]:
                del self._at_work[sandbox_id]
            self._quiet.set()
            self._quiet = asyncio.Event()

    async def quiet(self, sandbox_id: str) -> None:
        """Waits until nobody fills a sandbox."""
        while self._at_work[sandbox_id]:
            await self._quiet.wait()

    async def part(self, hand: Hand, sandbox_id: str) -> None:
        """Writes what is left to write before a sandbox changes its owner, and ends its mounts: its files stay.

        Raises Unavailable while that cannot be done.
        """
        if self.has_mounts(sandbox_id):
            for note in await self._mounts.sync(hand, sandbox_id, self._session, strictly=True):
                _log.warning("memory at transfer", sandbox_id=sandbox_id, note=note)
            self._mounts.forget(sandbox_id)

    def has_mounts(self, sandbox_id: str) -> bool:
        """Tells whether a sandbox has memory stores mounted."""
        return bool(self._mounts.paths(sandbox_id))

    def forget(self, sandbox_id: str) -> None:
        """Forgets a sandbox that is gone."""
        self._mounts.forget(sandbox_id)

    def keep_only(self, living: set[str]) -> None:
        """Forgets all sandboxes but those that live."""
        self._mounts.keep_only(living)

    async def checkpoint(self, hand: Hand, info: SandboxInfo, tenant: str | None) -> str:
        """Keeps a workspace as a blob of the session that owns the sandbox; returns its id."""
        labels = info.labels
        if not labels.session_id:
            what = "a checkpoint is a blob of the session that owns the sandbox; this one has no owner"
            raise Invalid("ARGUMENT_INVALID", what, field="sandbox_id")
        whose = await self._whose(labels.session_id, tenant)
        content: AsyncGenerator[bytes, None] = hand.pack(labels.sandbox_id, self._mounts.paths(labels.sandbox_id))
        async with aclosing(content):
            return await self._service().upload(whose, content, CHECKPOINT_TYPE)
