"""Pushes at the git door: what may be pushed is let through as it comes, what may not is refused in git's own words.

the commands        read before anything is sent; one that is refused has the whole push refused
objects             stream to the host. For a push that moves a reference the commits are read as they go by, and the
                    pack's last bytes, without which the host takes nothing, are held back until they are shown to
                    lead forward
what a reference is the host compares with the command's `old` itself, in the step in which it moves it
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from services.vault_proxy.core.git_push import NOT_FORWARD, all_refused, moved, refusals
from services.vault_proxy.core.pack import PackReader, PackRefused
from services.vault_proxy.core.pkt_line import Command, LineRefused, Push, PushReader, report
from services.vault_proxy.doors.git_upstream import Errand, Question, Upstream
from services.vault_proxy.doors.http import Answer
from services.vault_proxy.doors.refusal import Refusal, malformed
from services.vault_proxy.doors.visit import Visit

NO_PUSH = "this session may read the repository, and not push to it"
RESULT = "application/x-git-receive-pack-result"
MOST_TOLD = 3  # references of a refused push that the session hears of
HELD_BACK_BYTES = 20  # of a pack: at least a part of the hash at its end


class _NotForward(Exception):
    """References that a push would not move forward."""

    def __init__(self, references: dict[str, str]) -> None:
        super().__init__("not forward")
        self.references = references


class Pushing:
    """Lets pushes through. `tell` is told of each refusal."""

    def __init__(self, upstream: Upstream, tell: Callable[[Visit, Refusal], None]) -> None:
        self._upstream = upstream
        self._tell = tell

    async def push(self, errand: Errand, parts: AsyncIterator[bytes], length: int | None, answer: Answer) -> None:
        """Does a push, or refuses it. `length` is that of the parts, when it is known. Raises Refusal."""
        if not any(rule.push_patterns for rule in errand.rules):
            raise Refusal(403, "REFERENCE_DENIED", NO_PUSH, str(errand.repository))
        reader = PushReader()
        push = await _read(reader, parts)
        if why := refusals(push, errand.rules):
            await self._refuse(errand, push, why, parts, answer)
            return
        kind = "application/x-git-receive-pack-request"
        sent = (("Content-Type", kind), ("Accept", RESULT), *errand.headers)
        body = _let_through(reader, moved(push), parts)
        question = Question("POST", f"{errand.url}/git-receive-pack", RESULT, sent, body, length)
        try:
            async with self._upstream.ask(errand.visit, errand.repository, question) as result:
                await answer.stream(RESULT, result)
        except _NotForward as refused:
            await self._refuse(errand, push, refused.references, parts, answer)

    async def _refuse(
        self, errand: Errand, push: Push, why: dict[str, str], parts: AsyncIterator[bytes], answer: Answer
    ) -> None:
        target = str(errand.repository)
        refused = [Refusal(403, "REFERENCE_DENIED", f"{name}: {reason}", target) for name, reason in why.items()]
        for each in refused[:MOST_TOLD]:
            self._tell(errand.visit, each)
        said = report(push, all_refused(push, why))
        if not said:
            raise Refusal(403, "REFERENCE_DENIED", refused[0].message, target, told=False)
        async for _ in parts:
            pass  # git hears nothing before it has said all
        await answer.say(200, RESULT, said)


async def _read(reader: PushReader, parts: AsyncIterator[bytes]) -> Push:
    """Reads what a push says before its objects."""
    try:
        async for part in parts:
            push = reader.feed(part)
            if push is not None:
                return push
    except LineRefused as problem:
        raise malformed(str(problem)) from None
    raise malformed("expected the references of a push")


async def _let_through(
    reader: PushReader, moves: tuple[Command, ...], parts: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yields a push as it came. One that moves references ends before its end unless it is shown to move them forward.

    Raises _NotForward.
    """
    yield reader.said
    pack = PackReader("sha256" if moves and len(moves[0].new) == 64 else "sha1")
    held = reader.rest
    if moves and held:
        await _look(pack, held)
    async for part in parts:
        if not moves:
            if held:
                yield held
            held = part
            continue
        await _look(pack, part)
        data = held + part
        held = data[-HELD_BACK_BYTES:]
        if len(data) > len(held):
            yield data[: -len(held)]
    back = {move.reference: NOT_FORWARD for move in moves if not (pack.complete and pack.leads(move.new, move.old))}
    if back:
        raise _NotForward(back)
    if held:
        yield held


async def _look(pack: PackReader, part: bytes) -> None:
    try:
        await asyncio.to_thread(pack.feed, part)  # unpacking takes time, and gives way to others in a thread only
    except PackRefused as problem:
        raise malformed(str(problem)) from None
