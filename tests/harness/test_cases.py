"""Cases from the field: what has left other people's sessions unusable, at every place where it can happen.

Each is played against the scripted model's strict API: a request that Claude would refuse is a 400 here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as sandboxes
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceServicer, add_SandboxServiceServicer_to_server
from handmesh.session.v1.config_pb2 import SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import Event, InterruptRequested
from handmesh.session.v1.session_pb2 import Preview
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as servers
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import (
    VaultProxyServiceServicer,
    add_VaultProxyServiceServicer_to_server,
)
from services.harness.adapters.sandbox import RemoteHands
from services.harness.adapters.vault_proxy import RemoteServers
from services.harness.core import ToolResult
from services.harness.ports import Appended, Standing
from services.kit.errors import Conflict
from tests.harness.api import Session, talking
from tests.harness.test_model_turns import LS, outcomes, script, statuses

SAYS = "née at once, piece by piece"
THREE: dict[str, Any] = {"say": [{"thinking": "hm"}, {"text": SAYS}, LS, LS, LS], "chunk": 4}
DONE: dict[str, Any] = {"say": [{"text": "done"}]}
DENY = SessionConfig(tool_policies=[ToolPolicy(pattern="bash", action=ToolPolicyAction.TOOL_POLICY_ACTION_DENY)])
MOST = 60  # appends or pieces of one turn here: each test ends with the first number that the turn does not come to


def strike(session: Session, number: int, before: bool, blow: Callable[[], Awaitable[None]]) -> asyncio.Event:
    """Has something happen at the harness's n-th append, before it or right after; the event tells whether it did."""
    emit, count, struck = session.log.emit, itertools.count(1), asyncio.Event()

    async def struck_emit(events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        mine = next(count) == number
        if mine and before:
            struck.set()
            await blow()
        appended = await emit(events, epoch, expected_position)
        if mine and not before:
            struck.set()
            await blow()
        return appended

    session.log.emit = struck_emit  # type: ignore[method-assign]
    return struck


def settled_once(session: Session) -> bool:
    """Tells whether each call of the model has exactly one result."""
    said = [block for it in session.log.only("model_replied") for block in json.loads(it.content_json)]
    calls = [block["id"] for block in said if block["type"] == "tool_use"]
    return sorted(calls) == sorted(it.tool_use_id for it in session.log.only("tool_finished"))


async def three_more_turns(session: Session) -> None:
    for number in range(3):
        await session.say(f"next {number}")


def peace(session: Session) -> None:
    """Ends what `strike` began."""
    del session.log.emit  # type: ignore[method-assign]


class Victim:
    """A harness at work that can be killed: what it was about to do or to learn is lost."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None

    async def work(self) -> None:
        """Works until there is nothing to do, or until it is killed."""
        self._task = asyncio.create_task(self._session.run())
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    def kill(self) -> None:
        """Kills it where it is."""
        assert self._task is not None
        self._task.cancel()

    async def die(self) -> None:
        """Kills it from inside: whoever calls this does not come back."""
        self.kill()
        await asyncio.Event().wait()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("config", [None, DENY], ids=["allowed", "denied"])
async def test_a_restart_at_any_append_leaves_a_session_that_goes_on(
    tmp_path: Path, config: SessionConfig | None, before: bool
) -> None:
    """Killed before or after each append of a turn with three calls, allowed or denied: another harness ends the turn,
    each call has one result and ran at most once, and three more turns are taken by the API."""
    for number in range(1, MOST):
        async with talking(tmp_path, script(THREE, DONE), config=config) as (server, session):
            victim = Victim(session)
            struck = strike(session, number, before, victim.die)
            await victim.work()
            peace(session)
            await session.run()
            await three_more_turns(session)
        assert statuses(server) == {200}, number
        assert session.ends() == ["DONE"] * 4, number
        assert settled_once(session), number
        assert outcomes(session) == ["DENIED" if config else "OK"] * 3, number
        assert len(session.hands.ran) == (0 if config else 3), number
        if not struck.is_set():
            break
    assert number > 5


async def interrupted_at(directory: Path, number: int, before: bool) -> tuple[Session, bool]:
    """Interrupts a turn at the harness's n-th append; tells whether it came to it. One of three calls ends itself."""
    hangs, place = asyncio.Event(), itertools.count()

    async def work(tool: str, input: str) -> None:
        if next(place):
            await hangs.wait()

    async def interrupt() -> None:
        await session.log.add(Event(event_id="stop", interrupt_requested=InterruptRequested()))

    async with talking(directory, script(THREE, DONE)) as (server, session):
        session.hands.work = work
        struck = strike(session, number, before, interrupt)
        working = asyncio.create_task(session.run())
        while not (struck.is_set() or working.done() or hangs.is_set()):
            if session.log.kinds().count("tool_finished") == 1 and len(session.hands.executions) == 3:
                hangs.set()
            await asyncio.sleep(0)
        with suppress(Conflict):  # the log moved on while the session was taken up: it is left to the next run
            await working
        peace(session)
        hangs.set()
        await three_more_turns(session)
    assert statuses(server) == {200}
    return session, struck.is_set()


@pytest.mark.parametrize("before", [True, False])
async def test_an_interrupt_at_any_append_leaves_no_call_without_its_result(tmp_path: Path, before: bool) -> None:
    """Before a tool starts, while it runs, when it is done and not yet in the log: three parallel calls, of which one
    ends by itself. Each has one result, and three more turns are taken by the API."""
    found = set()
    for number in range(1, MOST):
        session, struck = await interrupted_at(tmp_path, number, before)
        assert session.ends()[-3:] == ["DONE"] * 3, number
        assert settled_once(session), number
        found.add((session.ends()[0], *sorted(outcomes(session))))
        if not struck:
            break
    assert ("INTERRUPTED", *["INTERRUPTED"] * 3) in found
    assert ("INTERRUPTED", *["INTERRUPTED"] * 2, "OK") in found
    assert number > 5


async def killed_at(directory: Path, number: int) -> tuple[Session, bool]:
    """Kills a harness when it shows the n-th piece of an answer, and lets another one go on; tells whether it came."""
    async with talking(directory, script(THREE, DONE)) as (server, session):
        victim, count, struck = Victim(session), itertools.count(1), asyncio.Event()

        def show(preview: Preview) -> None:
            session.log.shown.append(preview)
            if next(count) == number:
                struck.set()
                victim.kill()

        session.log.show = show  # type: ignore[method-assign]
        await victim.work()
        await session.run()
    assert statuses(server) == {200}
    return session, struck.is_set()


async def test_a_kill_at_any_piece_of_an_answer_glues_nothing_together(tmp_path: Path) -> None:
    """Whatever was shown of an answer that did not come has an id that no event has; what was shown of the one that
    came is the beginning of it, and the log has each answer once and whole."""
    for number in range(1, MOST):
        session, struck = await killed_at(tmp_path, number)
        replies = [event for event in session.log.events if event.HasField("model_replied")]
        said = {event.event_id: json.loads(event.model_replied.content_json) for event in replies}
        for event_id, blocks in said.items():
            pieces = [it for it in session.log.shown if it.event_id == event_id]
            assert not any(it.discarded for it in pieces), number
            text = "".join(it.text for it in pieces if it.text)
            assert text == "".join(block.get("text", "") for block in blocks), number
        assert [block.get("text") for block in said[replies[0].event_id]][1] == SAYS, number
        assert len(said) == 2, number
        if not struck:
            break
    assert number > 10


async def test_nothing_empty_is_refused(tmp_path: Path) -> None:
    """A tool that prints nothing, an answer of nothing, a message of nothing or of an empty text: all are taken."""
    nothing: dict[str, Any] = {"say": []}
    async with talking(tmp_path, script({"say": [LS]}, nothing, first=[nothing], second=[nothing])) as (
        server,
        session,
    ):

        async def silent(tool: str, input: str) -> ToolResult:
            return ToolResult("")

        session.hands._run = silent  # type: ignore[method-assign]
        await session.run()
        for content in ([], [{"type": "text", "text": ""}], [{"type": "text", "text": " \n"}]):
            await session.say(content)
        await three_more_turns(session)
    assert statuses(server) == {200}
    assert session.ends() == ["DONE"] * 7


class Slow(SandboxServiceServicer, VaultProxyServiceServicer):
    """Notes how long each caller would wait for its call."""

    def __init__(self) -> None:
        self.patience: list[float | None] = []

    async def Execute(self, request: Any, context: Any) -> Any:
        self.patience.append(context.time_remaining())
        mine = isinstance(request, sandboxes.ExecuteRequest)
        return sandboxes.ExecuteResponse() if mine else servers.ExecuteResponse()


async def test_a_call_is_waited_for_however_long_it_runs() -> None:
    """No deadline is on a tool's call, in a hand or at a server: its own limit is the environment's. So nothing is run
    again while it still runs, and a step of six minutes is one step."""
    slow, server = Slow(), grpc.aio.server()
    add_SandboxServiceServicer_to_server(slow, server)
    add_VaultProxyServiceServicer_to_server(slow, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await RemoteHands(channel).execute("sbx", "bash", "{}", "t1", Standing(3))
        await RemoteServers(channel).execute("grant", "shop__buy", "{}", "t2", False, 3)
    await server.stop(None)
    assert slow.patience == [None, None]
