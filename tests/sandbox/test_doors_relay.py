"""The ends of a door's connection: who waits too long, who says nothing, who goes first."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import Full
from services.sandbox import doors_relay
from services.sandbox.doors_core import Prepared, door_path, outfit
from services.sandbox.doors_relay import Seats, carried
from services.sandbox.hand import Doors, Visit
from services.sandbox.passes import Passes
from services.sandbox.runner import doors as runner_doors
from services.sandbox.vault_proxy import Stream


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> Iterator[runner_doors.Doors]:
    """Doors on free ports in a loop like the runner's."""
    monkeypatch.setattr(runner_doors, "PORTS", {"git": 0, "egress": 0})
    selector = selectors.DefaultSelector()
    it = runner_doors.Doors(selector)
    it.open(["git", "egress"])
    waking, wake = socket.socketpair()
    selector.register(waking, selectors.EVENT_READ, lambda _: None)
    ended = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            it.turn()
            for key, events in selector.select(min(it.patience(), 5.0)):
                key.data(events)

    thread = threading.Thread(target=loop)
    thread.start()
    yield it
    ended.set()
    wake.send(b"!")
    thread.join()
    for key in list(selector.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
    wake.close()


def test_who_waits_too_long_at_a_door_is_told(looped: runner_doors.Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a service a client gets an HTTP answer, though it still sends, and the next one is let in as before."""
    monkeypatch.setattr(runner_doors, "WAIT_SECONDS", 0.05)
    port = looped.open([])["git"]
    for _ in range(3):
        with closing(socket.create_connection(("127.0.0.1", port), 10)) as tool:
            tool.sendall(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n12")
            answer = tool.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 503 ") and answer.endswith(b"try again in a while\n")


def test_a_caller_that_went_away_gets_no_tool(looped: runner_doors.Doors) -> None:
    """A parked connection of a service that has died is forgotten; the tool gets the one of its successor."""
    port = looped.open([])["egress"]
    dead, its = socket.socketpair()
    looped.park("egress", its)
    dead.close()
    mine, its = socket.socketpair()
    with closing(mine), closing(socket.create_connection(("127.0.0.1", port), 10)) as tool:
        mine.settimeout(10)
        looped.park("egress", its)
        tool.sendall(b"here")
        tool.shutdown(socket.SHUT_WR)
        assert mine.makefile("rb").read() == b'{"visit": 1}\nhere'


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Stream, Stream]]:
    """Gives both ends of a connection."""
    one, two = socket.socketpair()
    ends = await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=two)
    try:
        yield ends
    finally:
        for _, writer in ends:
            writer.close()


async def test_an_idle_connection_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side says anything for too long: both are hung up on."""
    monkeypatch.setattr(doors_relay, "IDLE_SECONDS", 0.05)
    async with pair() as (tool, near), pair() as (far, host), asyncio.timeout(10):

        async def way_out() -> Stream:
            return far

        await carried(Visit(*near), way_out)
        assert (await tool[0].read(), await host[0].read()) == (b"", b"")


async def test_a_way_out_that_fails_is_an_answer() -> None:
    """The client reads the reason as HTTP; what may pass is 503."""
    async with pair() as (tool, near), asyncio.timeout(10):

        async def way_out() -> Stream:
            raise Full("FULL", "too many")

        serving = asyncio.create_task(carried(Visit(*near), way_out))
        answer = await tool[0].read()
        tool[1].write_eof()
        await serving
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and answer.endswith(b"\r\n\r\nFULL: too many\n")


def test_the_connections_of_all_sandboxes_have_an_end() -> None:
    """Who comes then is told so; who goes gives the seat back, however it goes."""
    seats = Seats(1)
    with seats.one() as first, seats.one() as second:
        assert first is None and second is not None and (second.reason, second.metadata) == ("FULL", {"limit": "1"})
    with pytest.raises(KeyError), seats.one():
        raise KeyError
    with seats.one() as next_one:
        assert next_one is None


async def test_the_end_of_one_direction_is_passed_on() -> None:
    """Each side may say all it has to say and still be told the rest."""
    async with pair() as (tool, near), pair() as (far, host), asyncio.timeout(10):

        async def way_out() -> Stream:
            return far

        serving = asyncio.create_task(carried(Visit(*near), way_out))
        tool[1].write(b"question")
        tool[1].write_eof()
        assert await host[0].read() == b"question"
        host[1].write(b"answer")
        host[1].write_eof()
        assert await tool[0].read() == b"answer"
        await serving


def test_the_newest_grant_of_a_session_counts() -> None:
    """An older harness's late call does not replace it; what is revoked is forgotten; nothing shows one."""
    passes = Passes()
    passes.note("a", 2, "second")
    passes.note("a", 1, "first")
    passes.note("b", 5, "other")
    assert (passes.of("a"), passes.of("b"), passes.of("c")) == ("second", "other", None)
    passes.void("a", 2)
    assert passes.of("a") == "second"
    passes.void("a", 3)
    passes.void("b", 0)
    assert passes.of("a") is passes.of("b") is None and "second" not in repr(passes)


def test_git_is_told_of_the_door_and_of_nothing_else() -> None:
    """Each spelling of a repository leads to it; without an egress door, so do all of its host."""
    repositories = ("https://git.test/team/app", "https://git.test:8443/team/*", "https://git.test/team/app")
    both = outfit(Prepared(repositories=repositories), Doors({"git": 1, "egress": 2}, "/t"))
    assert _instead(both) == {
        "http://127.0.0.1:1/git.test/team/app": [
            "https://git.test/team/app",
            "git@git.test:team/app",
            "ssh://git@git.test/team/app",
        ],
        "http://127.0.0.1:1/git.test:8443/team/": [
            "https://git.test:8443/team/",
            "git@git.test:team/",
            "ssh://git@git.test/team/",
        ],
    }
    alone = outfit(Prepared(repositories=repositories[:1]), Doors({"git": 1}, "/t"))
    assert _instead(alone) == {
        "http://127.0.0.1:1/git.test/": ["https://git.test/", "git@git.test:", "ssh://git@git.test/"]
    }
    assert not any("proxy" in name.lower() for name in alone)


def _instead(env: object) -> dict[str, list[str]]:
    assert isinstance(env, dict)
    found: dict[str, list[str]] = {}
    for number in range(int(env["GIT_CONFIG_COUNT"])):
        key, value = env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"]
        if key.startswith("url."):
            found.setdefault(key.removeprefix("url.").removesuffix(".insteadOf"), []).append(value)
    return found


@given(st.sampled_from(["http", "https"]), st.sampled_from(["", ":443", ":8443"]))
def test_a_repository_has_one_place_at_the_door(scheme: str, port: str) -> None:
    """Host, port unless it is the scheme's own, and path."""
    shown = "" if (scheme, port) == ("https", ":443") else port
    assert door_path(f"{scheme}://git.test{port}/team/app.git") == f"/git.test{shown}/team/app.git"
