"""What the memory of executions does within its bounds, without a server."""

from __future__ import annotations

import asyncio

import pytest

from services.kit.errors import Full, Gone, Unavailable
from services.vault_proxy import executions
from services.vault_proxy.core.answer import Answer, Outcome
from services.vault_proxy.executions import Executions, MayHaveRun, Say, Work, digest_of


def work(answer: Answer | Exception) -> Work:
    """Returns work that ends in this way."""

    async def done(say: Say) -> Answer:
        if isinstance(answer, Answer):
            return answer
        raise answer

    return done


async def test_results_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes the id is unknown."""
    moment = 1000.0
    monkeypatch.setattr("services.vault_proxy.executions.time.monotonic", lambda: moment)
    known = Executions(60)
    await known.run(("s", "1"), "d", work(Answer("a")), attach_only=False)
    moment += executions.KEPT_SECONDS - 1
    assert await known.run(("s", "1"), "d", work(Answer("b")), attach_only=False) == Answer("a")
    moment += 2
    with pytest.raises(Gone):
        await known.run(("s", "1"), "d", work(Answer("b")), attach_only=True)


async def test_the_oldest_results_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both counts and bytes are bounded."""
    monkeypatch.setattr(executions, "MOST_KEPT", 10)
    monkeypatch.setattr(executions, "KEPT_BYTES", 1000)
    known = Executions(60)
    for number in range(12):
        await known.run(("s", str(number)), "d", work(Answer("a")), attach_only=False)
    with pytest.raises(Gone):
        await known.run(("s", "1"), "d", work(Answer("b")), attach_only=True)
    assert await known.run(("s", "2"), "d", work(Answer("b")), attach_only=True) == Answer("a")
    await known.run(("s", "large"), "d", work(Answer("x" * 1000)), attach_only=False)
    with pytest.raises(Gone):
        await known.run(("s", "11"), "d", work(Answer("b")), attach_only=True)
    assert (await known.run(("s", "large"), "d", work(Answer("b")), attach_only=True)).output == "x" * 1000


async def test_a_session_runs_so_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than its limit is Full; another session is not concerned; what ends makes room."""
    monkeypatch.setattr(executions, "MOST_RUNNING", 2)
    known, go_on = Executions(60), asyncio.Event()

    async def wait(say: Say) -> Answer:
        await go_on.wait()
        return Answer("a")

    running = [asyncio.ensure_future(known.run(("s", str(number)), "d", wait, False)) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Full):
        await known.run(("s", "3"), "d", wait, False)
    other = asyncio.ensure_future(known.run(("t", "3"), "d", wait, False))
    go_on.set()
    assert await asyncio.gather(*running, other) == [Answer("a")] * 3
    assert await known.run(("s", "3"), "d", wait, False) == Answer("a")


async def test_errors_are_kept_only_when_something_may_have_run() -> None:
    """An error of which nothing came is forgotten; a bug counts as if something had run."""
    known = Executions(60)
    lost = Unavailable("SERVER_UNAVAILABLE", "lost")
    may_have_run = MayHaveRun()
    may_have_run.__cause__ = lost
    bug = KeyError("x")
    for kind, problem, told in (("no", lost, lost), ("may", may_have_run, lost), ("bug", bug, bug)):
        with pytest.raises(type(told)) as caught:
            await known.run(("s", kind), "d", work(problem), False)
        assert (caught.value.args, vars(caught.value)) == (told.args, vars(told))
    assert await known.run(("s", "no"), "d", work(Answer("a")), False) == Answer("a")
    for kind, expected in (("may", Unavailable), ("bug", KeyError)):
        with pytest.raises(expected):
            await known.run(("s", kind), "d", work(Answer("a")), False)


async def test_a_session_that_ends_takes_its_executions_along() -> None:
    """They are interrupted; those of others go on."""
    known, go_on = Executions(60), asyncio.Event()

    async def wait(say: Say) -> Answer:
        await go_on.wait()
        return Answer("a")

    mine = asyncio.ensure_future(known.run(("s", "1"), "d", wait, False))
    theirs = asyncio.ensure_future(known.run(("t", "1"), "d", wait, False))
    await asyncio.sleep(0)
    known.end_session("s")
    assert (await mine).outcome is Outcome.INTERRUPTED
    go_on.set()
    assert await theirs == Answer("a")
    await known.close()


def test_a_digest_tells_calls_apart() -> None:
    """By tool and input; order and spaces do not count."""
    assert digest_of("t", {"a": 1, "b": 2}) == digest_of("t", {"b": 2, "a": 1})
    others = [digest_of("t", {"a": 1}), digest_of("u", {"a": 1}), digest_of("t", {"a": "1"}), digest_of("t", {})]
    assert len(set(others)) == 4


async def test_what_a_call_says_is_followed_from_anywhere() -> None:
    """What it said before, what it says later, and its result; from a number of characters on; also after its end."""
    known, go_on, halfway = Executions(60), asyncio.Event(), asyncio.Event()

    async def talk(say: Say) -> Answer:
        say("one\n")
        say("x" * executions.SAID_CHARACTERS)  # too much: not heard
        halfway.set()
        await go_on.wait()
        say("two\n")
        return Answer("done")

    running = asyncio.ensure_future(known.run(("s", "1"), "d", talk, False))
    await halfway.wait()
    watch = known.watch(("s", "1"), 0)
    assert await anext(watch) == "one\n"
    go_on.set()
    assert [each async for each in watch] == ["two\n", Answer("done")]
    assert [each async for each in known.watch(("s", "1"), 2)] == ["e\ntwo\n", Answer("done")]
    assert await running == Answer("done")
    with pytest.raises(Gone):
        await anext(known.watch(("s", "2"), 0))


async def test_who_watches_a_failure_is_told_it() -> None:
    """Also one that began to watch before."""
    known, go_on = Executions(60), asyncio.Event()

    async def fail(say: Say) -> Answer:
        await go_on.wait()
        raise Unavailable("SERVER_UNAVAILABLE", "gone")

    running = asyncio.ensure_future(known.run(("s", "1"), "d", fail, False))
    await asyncio.sleep(0)
    watching = asyncio.ensure_future(anext(known.watch(("s", "1"), 0)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    go_on.set()
    for waiting in (running, watching):
        with pytest.raises(Unavailable):
            await waiting
