"""What every client has to do, as checks. Each drives the programs of all languages side by side, on one mesh."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from clients.conformance.ground import UNKNOWN_SESSION, WRONG_KEY, Ground
from clients.conformance.languages import Language
from clients.conformance.log import events_of, line_of, misfits, previews_of, story
from clients.conformance.program import Program, Wrong
from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import SCOPE_ADMIN, SCOPE_READ
from tests.support.cut_link import cut_link

Outcome = Mapping[Language, str]
"""What is wrong, by language. Empty text means nothing."""

SEEN_BEFORE, SEEN_AFTER = 8, 2
"""Previews that are waited for before a cut, and behind it."""


async def same_story(ground: Ground, languages: Sequence[Language]) -> Outcome:
    """A session with a long answer, a tool of the client's and a call to decide, over a link that is cut twice.

    Each event is printed once and as the SDK reads it; pieces fit their reply; and it is the same in every language.
    """
    stories: dict[Language, Any] = {}

    async def converse(language: Language) -> None:
        async with cut_link(ground.port) as link, AsyncExitStack() as stack:
            arguments = ("--address", f"127.0.0.1:{link.port}", "look into order 7")
            program = await stack.enter_async_context(await Program.start(language, ground.key, *arguments))
            await program.until(lambda lines: len(previews_of(lines)) >= SEEN_BEFORE, "the answer's first pieces")
            link.cut()
            link.mend()
            more = len(previews_of(program.lines)) + SEEN_AFTER
            await program.until(lambda lines: len(previews_of(lines)) >= more, "pieces behind the cut")
            await program.until(lambda lines: has(lines, "custom_tool_requested"), "the question for the tool")
            link.cut()
            link.mend()
            lines = await program.ended(0)
        log = await ground.log(lines[0]["session"])
        must_equal(events_of(lines), [line_of(event) for event in log])
        must_fit(lines, log)
        stories[language] = story(events_of(lines))

    wrong = dict(await each(languages, converse))
    first = next(iter(stories.values()), None)

    async def compare(language: Language) -> None:
        must_equal(stories[language], first)

    return wrong | dict(await each([language for language in stories if not wrong[language]], compare))


async def from_a_position(ground: Ground, languages: Sequence[Language]) -> Outcome:
    """Events from a position on are printed, and none before; what is decided already is refused, typed, twice over."""
    session = await ground.conversation("look into order 8")
    log = await ground.log(session)
    asked = next(event.position for event in log if event.HasField("custom_tool_requested"))
    calls = {event.custom_tool_requested.tool_use_id for event in log} | {
        event.tool_confirmation_requested.tool_use_id for event in log
    }

    async def follow(language: Language) -> None:
        lines = await run(ground, language, 0, "--session", session, "--from", str(asked), "--deny")
        must_equal(events_of(lines), [line_of(event) for event in log if event.position >= asked])
        refused = [line["refused"] for line in lines if "refused" in line]
        must_equal({it["metadata"]["tool_use_id"] for it in refused}, calls - {""})
        must_equal({(it["code"], it["reason"]) for it in refused}, {("FAILED_PRECONDITION", "TOOL_CALL_SETTLED")})

    wrong = await each(languages, follow)
    must_equal(len(await ground.log(session)), len(log))
    return wrong


async def declined(ground: Ground, languages: Sequence[Language]) -> Outcome:
    """A call that is declined does not run. In TLS, with the mesh's authority; another one's word counts nothing."""

    async def decline(language: Language) -> None:
        async with ground.in_tls() as port:
            where = ("--address", f"localhost:{port}", "--ca")
            lines = await run(ground, language, 0, *where, str(ground.ca_file), "--deny", "throw it away")
            must_equal([line["outcome"] for line in lines if line.get("event") == "tool_finished"], ["DENIED"])
            must_equal([line["allowed"] for line in lines if line.get("event") == "tool_confirmed"], [False])
            arguments = (*where, str(ground.other_ca_file), "--patience", "0.5", "hello")
            (line,) = await run(ground, language, 1, *arguments)
            must_equal((line["error"]["code"], line["error"]["reason"]), ("UNAVAILABLE", ""))

    return await each(languages, decline)


async def refused(ground: Ground, languages: Sequence[Language]) -> Outcome:
    """Refusals come as code, reason and metadata: a wrong key, or one that may not, and sessions that are not there."""
    address = ("--address", f"127.0.0.1:{ground.port}")
    ours = await ground.conversation("hello")
    stranger, reader = await ground.key_of("elsewhere", SCOPE_ADMIN), await ground.key_of("", SCOPE_READ)

    async def ask(language: Language) -> None:
        (line,) = await run(ground, language, 1, "hello", key=WRONG_KEY)
        must_equal((line["error"]["code"], line["error"]["reason"]), ("UNAUTHENTICATED", "IDENTITY_UNKNOWN"))
        (line,) = await run(ground, language, 1, "hello", key=reader)
        denied = {"code": "PERMISSION_DENIED", "reason": "SCOPE_DENIED", "metadata": {"scope": "run", "has": "read"}}
        must_equal(line, {"error": denied})
        for session, key in ((UNKNOWN_SESSION, ground.key), (ours, stranger)):
            lines = await run(ground, language, 1, "--session", session, key=key)
            gone = {"code": "NOT_FOUND", "reason": "SESSION_NOT_FOUND", "metadata": {"session_id": session}}
            must_equal(lines, [{"session": session}, {"error": gone}])
        lines = await run(ground, language, 1, "--session", "no id", "hello")
        must_equal((lines[-1]["error"]["code"], lines[-1]["error"]["reason"]), ("INVALID_ARGUMENT", "ID_INVALID"))
        async with await Program.start(language, ground.key, *address) as program:
            must_equal(await program.ended(2), [])  # neither a task nor a session

    return await each(languages, ask)


async def restarted(ground: Ground, languages: Sequence[Language]) -> Outcome:
    """The session service is killed in the middle of an answer, and started again: nothing is lost or told twice."""
    async with AsyncExitStack() as stack:
        programs = {}
        for language in languages:
            started = await Program.start(language, ground.key, "--address", f"127.0.0.1:{ground.port}", "tell me all")
            programs[language] = await stack.enter_async_context(started)

        async def begin(language: Language) -> None:
            some = SEEN_BEFORE
            await programs[language].until(lambda lines: len(previews_of(lines)) >= some, "the answer's first pieces")

        async def end(language: Language) -> None:
            lines = await programs[language].ended(0)
            log = await ground.log(lines[0]["session"])
            must_equal(events_of(lines), [line_of(event) for event in log])
            must_equal([line["reason"] for line in lines if line.get("event") == "turn_ended"], ["DONE"])
            must_fit(lines, log)

        begun = await each(languages, begin)
        await ground.restart()
        ended = await each([it for it in languages if not begun[it]], end)
    return dict(begun) | dict(ended)


@dataclass(frozen=True)
class Check:
    """One check: what it says of a client, and how that is found out."""

    says: str
    find: Callable[[Ground, Sequence[Language]], Awaitable[Outcome]]


CHECKS = (
    Check("a session is the same in every language", same_story),
    Check("a session is read from a position on", from_a_position),
    Check("a call is declined, in TLS", declined),
    Check("refusals are typed", refused),
    Check("a restart loses nothing", restarted),
)


async def run(
    ground: Ground, language: Language, code: int, *arguments: str, key: str | None = None
) -> list[dict[str, Any]]:
    """Runs a program to its end and returns its lines."""
    address = () if "--address" in arguments else ("--address", f"127.0.0.1:{ground.port}")
    async with await Program.start(language, key or ground.key, *address, *arguments) as program:
        return await program.ended(code)


async def each(languages: Sequence[Language], work: Callable[[Language], Awaitable[None]]) -> Outcome:
    """Does the same with each language, side by side. Returns what is wrong, by language."""
    done = await asyncio.gather(*(work(language) for language in languages), return_exceptions=True)
    for problem in done:
        if isinstance(problem, BaseException) and not isinstance(problem, (Wrong, KeyError, ValueError)):
            raise problem
    return {language: f"{it!r}" if it else "" for language, it in zip(languages, done, strict=True)}


def has(lines: Sequence[Mapping[str, Any]], kind: str) -> bool:
    """Says whether an event of this kind was printed."""
    return any(line.get("event") == kind for line in lines)


def must_equal(found: Any, expected: Any) -> None:
    """Raises Wrong when something is not what it must be."""
    if found != expected:
        raise Wrong(f"{json.dumps(found, default=repr)}\n  is not\n  {json.dumps(expected, default=repr)}")


def must_fit(lines: Sequence[Mapping[str, Any]], log: Sequence[Event]) -> None:
    """Raises Wrong when a piece that was printed is not in the reply that it was shown of."""
    replies = [event for event in log if event.HasField("model_replied")]
    must_equal(misfits(previews_of(lines), replies), [])
