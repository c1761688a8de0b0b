"""Seeds: checkouts of git repositories that are made once and then shown, never written to, in any number of sandboxes.

    <root>/<repository>/mirror.git         bare, all branches and tags; the repository is named by the hash of its URL
    <root>/<repository>/trees/<tree>/      a checkout of one commit; its objects are hard links to the mirror's
    <root>/<repository>/trees/<tree>.json  written when the tree is whole; its time is when the tree was last used
    <root>/pins/<sandbox>.json             which sandbox shows which tree
    <root>/new-*, old-*                    being made, being removed

Only what is whole gets its name, by a rename. What answers git without any credential is for everybody. What does
not is fetched through the git door of a session that wants it, and kept apart: a session gets it only after the remote
has answered through its own door.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.kit.errors import Full, Unavailable
from services.kit.logs import Log
from services.kit.origin import UrlRefused
from services.sandbox import seeds_rules as rules
from services.sandbox import seeds_trees
from services.sandbox.doors_core import door_path
from services.sandbox.doors_gate import Gate
from services.sandbox.seeds_git import Git, TooLarge, Watched, disk, unreachable
from services.sandbox.seeds_pins import Pin, Pins
from services.sandbox.seeds_rules import Kept, Remote, Repository, Sources, Target

MAX_FILES = 200_000  # of a checkout
MAX_ANSWERS = 10_000  # remembered of remotes
CLOSED_SECONDS = 600.0  # for so long a remote that did not answer in public is asked through a door first
_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_log = Log("services.sandbox.seeds")


@dataclass(frozen=True)
class SeedSettings:
    """What may be fetched and how much of it is kept. Bytes and seconds."""

    sources: Sources = field(default_factory=Sources)
    repository_bytes: int = 1 << 30
    cache_bytes: int = 10 << 30
    fresh_seconds: float = 30.0
    fetch_seconds: float = 300.0


@dataclass(frozen=True)
class Seed:
    """A checkout, to be read only. `key` names it among the pins."""

    key: str
    tree: Path
    target: Target


class Seeds:
    """The seeds of one service. Each repository has a lock: whoever asks while it is cloned waits for that clone."""

    def __init__(self, root: Path, git: Git, settings: SeedSettings) -> None:
        """Goes on with the seeds under a folder, which is made when the first is."""
        self.pins = Pins(root / "pins")
        self._root = root
        self._git = git
        self._settings = settings
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._answers: OrderedDict[tuple[str, str], tuple[Target, float]] = OrderedDict()
        self._closed: OrderedDict[str, float] = OrderedDict()  # remotes -> when they did not answer in public
        self._making: set[Path] = set()

    def known(self, key: str) -> Path:
        """Returns the checkout of a seed that a sandbox shows."""
        repository, tree = key.split("/")
        return self._root / repository / "trees" / tree

    def check(self, repository: Repository) -> Remote:
        """Reads a repository's URL. Raises Invalid (`RESOURCE_INVALID`) for what is never fetched."""
        return rules.check_repository(repository, self._settings.sources)

    async def seed(self, repository: Repository, sandbox_id: str = "", gate: Gate | None = None) -> Seed:
        """Returns the seed of a repository as it is now, and pins it for a sandbox if there is one.

        `gate` is the way through the session's git door, for what is not public. Raises Invalid (`RESOURCE_INVALID`)
        for what cannot be fetched or is too large, Unavailable (`BACKEND_UNAVAILABLE`) when the remote does not answer,
        Full (`FULL`) when sandboxes show all that there is room for.
        """
        remote = self.check(repository)
        try:
            if gate is None or remote.origin is None:
                return await self._in_public(remote, repository, sandbox_id)
            if not self.is_closed(repository):
                with contextlib.suppress(Unavailable, UrlRefused):
                    return await self._in_public(remote, repository, sandbox_id)
            async with gate() as address:
                through = replace(remote, through=address + door_path(remote.url))
                return await self._seed(through, repository, sandbox_id)
        except UrlRefused as why:
            raise rules.refused(repository, f"url: {why}") from None
        except TooLarge:
            most = f"{self._settings.repository_bytes >> 20} MiB or {MAX_FILES} files"
            raise rules.refused(repository, f"it is larger than {most}") from None

    def is_closed(self, repository: Repository) -> bool:
        """Says whether a repository's remote did not answer in public just now."""
        return time.monotonic() - self._closed.get(repository.url, -CLOSED_SECONDS) < CLOSED_SECONDS

    async def _in_public(self, remote: Remote, repository: Repository, sandbox_id: str) -> Seed:
        try:
            return await self._seed(remote, repository, sandbox_id)
        except (Unavailable, UrlRefused):
            self._closed[remote.url] = time.monotonic()
            self._closed.move_to_end(remote.url)
            if len(self._closed) > MAX_ANSWERS:
                self._closed.popitem(last=False)
            raise

    async def _seed(self, remote: Remote, repository: Repository, sandbox_id: str) -> Seed:
        folder = self._root / hashlib.sha256(remote.key.encode()).hexdigest()[:32]
        async with self._locks.setdefault(folder.name, asyncio.Lock()):
            target = await self._target(remote, repository)
            key = f"{folder.name}/{_tree_name(target)}"
            if not self._take(key, repository, sandbox_id):
                await self._make(remote, repository, folder, target)
                await self._evict()
                if not self._take(key, repository, sandbox_id):
                    raise Full("FULL", "sandboxes show all repositories that there is room for", retry_after=30.0)
            return Seed(key, self.known(key), target)

    async def _target(self, remote: Remote, repository: Repository) -> Target:
        """Asks the remote what the ref stands for, unless it has said so just now; through a door always."""
        asked = (remote.url, repository.ref)
        if not remote.through:
            if rules.is_commit(repository.ref):
                return Target(repository.ref)
            known, at = self._answers.get(asked, (None, 0.0))
            if known is not None and time.monotonic() - at < self._settings.fresh_seconds:
                return known
        names = ["HEAD"] if rules.is_commit(repository.ref) else rules.patterns(repository.ref)
        said = await self._git.ask(remote, "ls-remote", "--symref", "--", remote.asked, *names)
        if rules.is_commit(repository.ref):
            return Target(repository.ref)
        target = rules.target(said.decode("utf-8", "replace"), repository.ref)
        if target is None:
            what = (
                "it has no such branch or tag, and no commit by that name of 40 digits"
                if repository.ref
                else "it is empty"
            )
            raise rules.refused(repository, what)
        if not remote.through:
            self._answers[asked] = (target, time.monotonic())
            self._answers.move_to_end(asked)
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return target

    def _take(self, key: str, repository: Repository, sandbox_id: str) -> bool:
        """Uses a seed, if there is one: from here on it is not evicted. Does not wait, so nothing comes between."""
        whole = self.known(key).with_name(self.known(key).name + ".json")
        if not whole.exists():
            return False
        os.utime(whole)
        if sandbox_id:
            self.pins.set(sandbox_id, repository.path, Pin(repository.url, repository.ref, key))
        return True

    async def _make(self, remote: Remote, repository: Repository, folder: Path, target: Target) -> None:
        began = time.monotonic()
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self._root))
        self._making.add(new)
        try:
            mirror = await self._mirror(remote, repository, folder, target, new)
            await self._check_out(remote, mirror, target, new / "tree")
            await asyncio.to_thread(seeds_trees.keep, new / "tree", folder / "trees" / _tree_name(target))
        finally:
            await asyncio.to_thread(shutil.rmtree, new, True)
            self._making.discard(new)
        _log.info("seed made", repository=folder.name, commit=target.commit, seconds=round(time.monotonic() - began, 3))

    async def _mirror(self, remote: Remote, repository: Repository, folder: Path, target: Target, new: Path) -> Path:
        """Returns a mirror that has the commit."""
        mirror, kept = folder / "mirror.git", True
        if not mirror.exists():
            mirror, kept = new / "mirror.git", False
            mirror.mkdir()
            await self._git.local(mirror, "init", "--quiet", "--bare", "--template=", "--initial-branch=main")
        elif await self._git.has(mirror, target.commit):
            return mirror
        into = Watched(mirror, self._settings.repository_bytes)
        seconds = self._settings.fetch_seconds
        try:
            if not await self._git.fetch(remote, into, _REFS, seconds):
                raise unreachable()
            if not await self._git.has(mirror, target.commit):  # of no branch and no tag, or moved away from just now
                await self._git.fetch(remote, into, [f"+{target.commit}:refs/handmesh/{target.commit}"], seconds)
        finally:
            for part in (mirror / "objects" / "pack").glob("tmp_*"):  # of a fetch that was cut off
                part.unlink(missing_ok=True)
        if not await self._git.has(mirror, target.commit):
            self._answers.clear()
            raise rules.refused(repository, "the remote has no such commit, or does not give it out")
        if kept:
            await self._git.local(mirror, "gc", "--auto", "--quiet", seconds=seconds)
            return mirror
        return await asyncio.to_thread(seeds_trees.keep_mirror, mirror, folder)

    async def _check_out(self, remote: Remote, mirror: Path, target: Target, tree: Path) -> None:
        limits = self._settings
        await self._git.sizes(mirror, target.commit, limits.repository_bytes, MAX_FILES)

        async def git(*arguments: str, folder: Path = tree) -> None:
            await self._git.local(folder, *arguments, seconds=limits.fetch_seconds)

        clone = ("clone", "--quiet", "--local", "--no-checkout", "--template=", "--", str(mirror), str(tree))
        await git(*clone, folder=mirror)
        await git("remote", "set-url", "origin", remote.url)
        await git("config", "core.checkStat", "minimal")  # owner, device and inode are others in each sandbox
        await git("config", "core.trustctime", "false")
        if target.branch:
            await git("update-ref", f"refs/remotes/origin/{target.branch}", target.commit)
            await git("checkout", "--quiet", "-B", target.branch, "--track", f"origin/{target.branch}")
        else:
            await git("checkout", "--quiet", "--detach", target.commit)
        await asyncio.to_thread(seeds_trees.age, tree)
        await git("update-index", "-q", "--refresh")

    async def _evict(self) -> None:
        """Removes what was not used for the longest time, until the rest fits. A mirror goes after its last tree."""
        tried: set[str] = set()
        while going := set(rules.to_evict(await asyncio.to_thread(self._kept), self._settings.cache_bytes)[:1]) - tried:
            for key in going:
                await self._remove(key)
            tried |= going

    def _kept(self) -> list[Kept]:
        held = self.pins.held()
        kept = []
        for whole in self._root.glob("*/trees/*.json"):
            key = f"{whole.parents[1].name}/{whole.stem}"
            kept.append(Kept(key, json.loads(whole.read_text())["size"], whole.stat().st_mtime, key in held))
        with_trees = {it.key.split("/")[0] for it in kept}
        for mirror in self._root.glob("*/mirror.git"):
            name = mirror.parent.name
            kept.append(Kept(name, disk(mirror), mirror.stat().st_mtime, name in with_trees))
        return kept

    async def _remove(self, key: str) -> None:
        """Takes its name from a seed or a mirror, unless it is in use by now, and then removes it."""
        name, _, tree = key.partition("/")
        path = self.known(key) if tree else self._root / name / "mirror.git"
        if key in self.pins.held() or (not tree and self._locks.get(name) is not None):
            return
        old = Path(tempfile.mkdtemp(prefix="old-", dir=self._root))
        if tree:
            path.with_name(tree + ".json").unlink(missing_ok=True)
        path.rename(old / "it")
        await asyncio.to_thread(shutil.rmtree, old, True)
        _log.info("seed removed", key=key)

    async def tidy(self) -> None:
        """Removes what a service that died has left half made or half removed."""
        for path in [*self._root.glob("new-*"), *self._root.glob("old-*")]:
            if path not in self._making:
                await asyncio.to_thread(shutil.rmtree, path, True)


def _tree_name(target: Target) -> str:
    branch = hashlib.sha256(target.branch.encode()).hexdigest()[:12]
    return f"{target.commit}-{branch}" if target.branch else target.commit
