"""The suite of harness types finds what is wrong with one: each of these breaks one promise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from services.harness import conformance as suite
from services.harness.conformance import Stand
from services.harness.core import Configured, Started
from services.harness.loops import echo, review
from services.harness.loops.echo import Echo
from services.harness.loops.review import Review
from services.harness.ports import HarnessType, Ports, Progress, SessionLog
from services.harness.turn.loop import MakeAnswering, TurnType
from services.harness.turn.state import State
from services.harness.turn.traits import Traits


class Unread(Echo):
    """Says that it has read what it has not."""

    async def answer(self) -> None:
        self._state = lambda: State()  # an empty one
        await super().answer()


class Forgetful(Review):
    """Asks twice, and says one answer."""

    async def answer(self) -> None:
        ask = self._replies.ask

        async def again(body: bytes, read: int) -> object:
            await ask(body, read=read)
            return await ask(body, read=read)

        self._replies.ask = again  # type: ignore[method-assign, assignment]
        await super().answer()


class Stubborn(Review):
    """Does not stop when it is told to."""

    async def answer(self) -> None:
        work = asyncio.ensure_future(super().answer())
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(work)


class Deaf:
    """Takes every session for its own."""

    description = "for tests"

    async def run(self, log: SessionLog, ports: Ports, instance: str, progress: Progress) -> float | None:
        page = await anext(aiter(log.follow(1)))
        config = [fact.config for fact in page.facts if isinstance(fact, Configured | Started)][-1]
        kind = TurnType(Traits(config.harness, tools=False), "for tests", Echo)
        return await kind.run(log, ports, instance, progress)


def _stand(kind: Callable[[], HarnessType], name: str) -> Stand:
    return Stand(name, lambda ports: nullcontext(kind()), tools=False)


def _turns(answering: MakeAnswering, traits: Traits) -> Stand:
    return _stand(lambda: TurnType(traits, "for tests", answering), traits.name)


BROKEN = [
    (_turns(Unread, echo.TRAITS), suite.check_01_it_answers_a_message),
    (_turns(Forgetful, review.TRAITS), suite.check_05_it_may_die_anywhere),
    (_turns(Stubborn, review.TRAITS), suite.check_08_an_interrupt_stops_the_model),
    (_stand(Deaf, "echo"), suite.check_15_a_session_that_moved_away),
]


@pytest.mark.parametrize(("stand", "check"), BROKEN, ids=[check.__name__ for _, check in BROKEN])
async def test_a_broken_type_is_found(
    stand: Stand, check: Callable[[Stand], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type that breaks a promise fails the check that is about it."""
    monkeypatch.setattr(suite, "SECONDS", 0.2)
    with pytest.raises((AssertionError, TimeoutError)):
        await check(stand)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
