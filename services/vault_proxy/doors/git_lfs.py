"""Large objects at the git door: a batch goes to the repository's host, and objects to and from where it says.

What the host says stays here, for a quarter of an hour, under an id that works for its session alone; it is in this
process's memory, so a client whose next connection comes to another replica asks for its batch again.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

from services.kit.origin import UrlRefused, origin_of
from services.vault_proxy.core import git_lfs
from services.vault_proxy.core.git_lfs import DOWNLOAD, MEDIA_TYPE, METHODS, UPLOAD, Action, BatchRefused, Entry
from services.vault_proxy.core.git_rules import Repository
from services.vault_proxy.core.http_head import Head, HeadRefused
from services.vault_proxy.doors.git_upstream import Errand, Question, Upstream
from services.vault_proxy.doors.http import Answer, Body, whole
from services.vault_proxy.doors.refusal import Refusal, malformed, unreachable
from services.vault_proxy.doors.visit import Visit

BATCH_BYTES = 1024 * 1024
ANSWER_BYTES = 8 * 1024 * 1024
VERIFY_BYTES = 64 * 1024
ACTION_SECONDS = 900.0
MOST_ACTIONS = 4_000  # of one session; the oldest goes
GOOD = frozenset({200, 201, 202, 204})

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class _Kept:
    action: Action
    repository: Repository
    until: float


class LargeObjects:
    """Serves LFS. `most` bytes of one object."""

    def __init__(self, upstream: Upstream, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._most = most
        self._now = now
        self._kept: dict[str, dict[str, _Kept]] = {}  # session -> id -> what its host said

    def forget(self, session_id: str) -> None:
        """Forgets a session that has ended."""
        self._kept.pop(session_id, None)

    async def batch(self, errand: Errand, head: Head, body: Body, answer: Answer) -> None:
        """Asks a host where objects are, and tells of places at the door. Raises Refusal."""
        try:
            batch = git_lfs.batch_of(await whole(aiter(body)))
            place = head.value("host")
        except (BatchRefused, HeadRefused) as refused:
            raise malformed(str(refused)) from None
        if not _HOST.fullmatch(place):
            raise malformed("the door is a port of this sandbox's own loopback address")
        if batch.operation == UPLOAD and not any(rule.push_patterns for rule in errand.rules):
            message = "this session may read the repository, and not push to it"
            raise Refusal(403, "REFERENCE_DENIED", message, str(errand.repository))
        headers = (("Content-Type", MEDIA_TYPE), ("Accept", MEDIA_TYPE), *errand.headers)
        url = f"{errand.url}/info/lfs/objects/batch"
        question = Question("POST", url, MEDIA_TYPE, headers, batch.encoded())
        async with self._upstream.ask(errand.visit, errand.repository, question) as parts:
            said = b"".join([part async for part in _at_most(parts, ANSWER_BYTES, errand.repository)])
        try:
            entries = list(git_lfs.entries_of(said, batch))
        except BatchRefused:
            raise unreachable(errand.repository, "answers with something that is not Git LFS's") from None
        await answer.say(200, MEDIA_TYPE, git_lfs.answer(self._placed(errand, entries, place), int(ACTION_SECONDS)))

    def _placed(self, errand: Errand, entries: list[Entry], place: str) -> Iterator[tuple[Entry, Mapping[str, str]]]:
        kept = self._kept.setdefault(errand.visit.access.session_id, {})
        until = self._now() + ACTION_SECONDS
        for entry in entries:
            places = {}
            for action in entry.actions:
                name = secrets.token_urlsafe(32)
                kept[name] = _Kept(action, errand.repository, until)
                places[action.name] = f"http://{place}/.lfs/{name}"
            yield entry, places
        while len(kept) > MOST_ACTIONS:
            del kept[next(iter(kept))]

    async def transfer(self, visit: Visit, head: Head, name: str, body: Callable[[int], Body], answer: Answer) -> None:
        """Gets, puts or verifies an object. `body` gives the request's body, of so many bytes at most."""
        kept = self._kept.get(visit.access.session_id, {}).get(name)
        if kept is None or self._now() >= kept.until:
            raise Refusal(404, "DOOR_REQUEST_INVALID", "no such object, or not any more: ask for it again", told=False)
        action, repository = kept.action, kept.repository
        if METHODS[action.name] != head.method:
            raise malformed(f"this object is for {METHODS[action.name]}", 405)
        if not any(rule.covers(repository) for rule in visit.access.repositories):
            raise Refusal(403, "REPOSITORY_DENIED", "this session has that repository no more", str(repository))
        if action.size > self._most:
            raise malformed(f"an object has at most {self._most} bytes", 413)
        question = await self._question(action, repository, head, body)
        async with self._upstream.ask(visit, repository, question) as parts:
            if action.name == DOWNLOAD:
                await answer.stream("application/octet-stream", _at_most(parts, action.size, repository))
            else:
                await answer.say(200, MEDIA_TYPE, b"{}")  # what the host says besides is for nobody

    async def _question(
        self, action: Action, repository: Repository, head: Head, body: Callable[[int], Body]
    ) -> Question:
        names = {name.lower() for name, _ in action.headers}
        try:
            elsewhere = origin_of(action.href) != repository.origin
        except UrlRefused as refused:
            raise unreachable(repository, f"names a place that is not called: {refused}") from None
        authorized = elsewhere or "authorization" in names
        if action.name == DOWNLOAD:
            return Question("GET", action.href, "", action.headers, authorized=authorized)
        if action.name == UPLOAD:
            if head.length != action.size:
                raise malformed(f"the object has {action.size} bytes, and says so")
            kind = () if "content-type" in names else (("Content-Type", "application/octet-stream"),)
            headers, parts = (*action.headers, *kind), aiter(body(action.size))
            return Question("PUT", action.href, "", headers, parts, action.size, authorized, GOOD)
        await whole(aiter(body(VERIFY_BYTES)))  # what it says is what the batch said
        said = json.dumps({"oid": action.oid, "size": action.size}).encode()
        headers = (*action.headers, ("Content-Type", MEDIA_TYPE), ("Accept", MEDIA_TYPE))
        return Question("POST", action.href, "", headers, said, authorized=authorized, good=GOOD)


async def _at_most(parts: AsyncIterator[bytes], most: int, repository: Repository) -> AsyncIterator[bytes]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise unreachable(repository, "answers with more than it said")
        yield part
