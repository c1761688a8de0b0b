"""The git door: git's smart HTTP protocol, to the repositories of a session, with credentials added outside.

    references   GET info/refs; what the host offers for a push that is not let through is taken out
    objects      POST git-upload-pack: what is asked is a few megabytes at most, what comes streams
    push         POST git-receive-pack: see `git_pushing`
    LFS          see `git_lfs`

A client's own headers go no further, but for git's version of its protocol and its name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import assert_never

from services.vault_proxy.core.git_paths import PUSH, Asked, Route, RouteRefused, repository, route
from services.vault_proxy.core.git_push import Advertisement
from services.vault_proxy.core.http_head import Head, HeadRefused
from services.vault_proxy.core.pkt_line import LineRefused
from services.vault_proxy.doors.git_lfs import BATCH_BYTES, LargeObjects
from services.vault_proxy.doors.git_pushing import NO_PUSH, Pushing
from services.vault_proxy.doors.git_upstream import Errand, Question, Upstream
from services.vault_proxy.doors.http import Answer, Body, discard, inflated, read_head, whole
from services.vault_proxy.doors.refusal import Refusal, malformed, unreachable
from services.vault_proxy.doors.refusals import Refusals
from services.vault_proxy.doors.visit import Visit

DOOR = "git"
FETCH_BYTES = 16 * 1024 * 1024  # of what a client says to fetch: what it wants and what it has

_PROTOCOL = re.compile(r"version=[012]")
_AGENT = re.compile(r"git(-lfs)?/[A-Za-z0-9._+-]{1,100}")


class GitDoor:
    """Implements `visit.Door`."""

    def __init__(self, upstream: Upstream, refusals: Refusals, push_bytes: int) -> None:
        self._upstream = upstream
        self._refusals = refusals
        self._push_bytes = push_bytes
        self._pushing = Pushing(upstream, self._tell)
        self._lfs = LargeObjects(upstream, push_bytes)

    async def serve(self, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = Answer(writer)
        try:
            head = await read_head(reader)
            if head is not None:
                await self._serve(visit, head, reader, writer, answer)
        except Refusal as refusal:
            self._tell(visit, refusal)
            if answer.begun:
                raise ConnectionAbortedError("the answer breaks off") from None
            await answer.refuse(refusal)
            await discard(reader)

    def forget(self, session_id: str) -> None:
        """Forgets a session that has ended."""
        self._lfs.forget(session_id)

    def _tell(self, visit: Visit, refusal: Refusal) -> None:
        if refusal.told:
            self._refusals.tell(visit, DOOR, refusal.target, refusal.reason, refusal.message)

    async def _serve(
        self, visit: Visit, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer
    ) -> None:
        try:
            to = route(head.method, head.target)
            headers = _headers(head)
        except RouteRefused as refused:
            raise Refusal(refused.status, "DOOR_REQUEST_INVALID", str(refused), head.target) from None
        except HeadRefused as refused:
            raise malformed(str(refused)) from None
        if to.asked is Asked.LFS_OBJECT:
            await self._lfs.transfer(visit, head, to.lfs_id, lambda most: Body(head, reader, writer, most), answer)
            return
        found, rules = repository(to, visit.access.repositories)
        if found is None:
            names = ", ".join(map(str, visit.access.repositories[:8])) or "none"
            asked = f"https://{to.authority}/{to.path}"
            raise Refusal(403, "REPOSITORY_DENIED", f"this session's repositories are: {names}", asked)
        errand = Errand(visit, found, rules, f"{found}{to.ending}", headers)
        match to.asked:
            case Asked.REFERENCES:
                await self._references(errand, to, answer)
            case Asked.OBJECTS:
                body = Body(head, reader, writer, FETCH_BYTES)
                await self._objects(errand, await whole(_unpacked(head, body, FETCH_BYTES)), answer)
            case Asked.PUSH:
                most = self._push_bytes
                parts = _unpacked(head, Body(head, reader, writer, most), most)
                length = head.length if not head.values("content-encoding") else None
                await self._pushing.push(errand, parts, length, answer)
            case Asked.LFS_BATCH:
                await self._lfs.batch(errand, head, Body(head, reader, writer, BATCH_BYTES), answer)
            case _:
                assert_never(to.asked)

    async def _references(self, errand: Errand, to: Route, answer: Answer) -> None:
        if to.service == PUSH and not any(rule.push_patterns for rule in errand.rules):
            raise Refusal(403, "REFERENCE_DENIED", NO_PUSH, str(errand.repository))
        kind = f"application/x-{to.service}-advertisement"
        question = Question("GET", f"{errand.url}/info/refs?service={to.service}", kind, errand.headers)
        async with self._upstream.ask(errand.visit, errand.repository, question) as parts:
            await answer.stream(kind, _advertised(errand, parts) if to.service == PUSH else parts)

    async def _objects(self, errand: Errand, body: bytes, answer: Answer) -> None:
        kind = "application/x-git-upload-pack-result"
        sent = (("Content-Type", "application/x-git-upload-pack-request"), ("Accept", kind), *errand.headers)
        question = Question("POST", f"{errand.url}/git-upload-pack", kind, sent, body)
        async with self._upstream.ask(errand.visit, errand.repository, question) as parts:
            await answer.stream(kind, parts)


def _headers(head: Head) -> tuple[tuple[str, str], ...]:
    """Returns what of a client's headers goes on."""
    protocol, agent = head.value("git-protocol"), head.value("user-agent")
    sent = [("User-Agent", agent if _AGENT.fullmatch(agent) else "git/handmesh")]
    if _PROTOCOL.fullmatch(protocol):
        sent.append(("Git-Protocol", protocol))
    return tuple(sent)


def _unpacked(head: Head, body: Body, most: int) -> AsyncIterator[bytes]:
    """Returns the parts of a body, unpacked. Raises Refusal for a coding that git does not use."""
    coding = head.value("content-encoding").lower()
    if coding in ("", "identity"):
        return aiter(body)
    if coding not in ("gzip", "x-gzip"):
        raise malformed("a body is gzipped, or as it is")
    return inflated(aiter(body), most)


async def _advertised(errand: Errand, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    advertisement = Advertisement()
    try:
        async for part in parts:
            yield advertisement.feed(part)
    except LineRefused:
        raise unreachable(errand.repository, "answers with something that is not git's") from None
    yield advertisement.end()
