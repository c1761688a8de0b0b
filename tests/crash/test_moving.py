"""A session that moves between harness types, each of which another process is, and processes that die meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handmesh.client import Client, Session
from handmesh.session.v1 import event_pb2 as pb
from handmesh.session.v1 import session_pb2
from tests.crash.crew import Crew
from tests.crash.crew import crew as start
from tests.crash.story import count

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.vault, pytest.mark.bwrap, pytest.mark.timeout(180)]


async def move(session: Session, harness: str) -> None:
    """Makes it a session of another type."""
    found = await session.get()
    found.config.harness = harness
    await session.update(found.config)


async def answered(session: Session, position: int) -> list[pb.Event]:
    """Waits until a turn has dealt with a message, and returns the log."""
    async with asyncio.timeout(60):
        async for event in session.watch(position):
            if event.HasField("turn_ended") and event.turn_ended.read_position >= position:
                break
    return [event async for event in session.events()]


async def served(client: Client) -> list[str]:
    """Names the harness types that somebody serves."""
    request = session_pb2.ListServedTypesRequest()
    return [it.name for it in (await client.session_link.call(client.session_stub.ListServedTypes, request)).types]


def woken(log: list[pb.Event]) -> list[str]:
    """Names the harness types that had the session, one after the other."""
    return [event.harness_woke.harness for event in log if event.HasField("harness_woke")]


async def test_from_type_to_type_over_processes_and_deaths(tmp_path: Path) -> None:
    """messages, echo, messages, review: a session waits for a harness of its type, and each reads the same log."""
    async with start(tmp_path, types="messages") as crew:
        client = crew.client
        session = await client.create_session(content="hello")
        await answered(session, 2)
        await move(session, "echo")
        said = await session.send("say this")
        assert await served(client) == ["messages"]
        assert (await session.get()).status == session_pb2.SESSION_STATUS_RUNNING  # it waits
        await crew.add_harness("echoes", types="echo")
        log = await answered(session, said)
        assert woken(log) == ["messages", "echo"]
        replies = [event.model_replied.content_json for event in log if event.HasField("model_replied")]
        assert replies[-1] == '[{"type":"text","text":"say this"}]'

        crew.arm("harness.reply_stored", "kill")
        said = await session.send("and this")
        log = await answered(session, said)
        await crew.struck("harness.reply_stored")
        log = await answered(session, await session.send("and that"))
        assert count(log, "model_replied") == 4  # none is lost, and none said twice
        assert woken(log)[-1] == "echo" and len({event.epoch for event in log if event.HasField("model_replied")}) > 2

        await move(session, "messages")
        log = await answered(session, await session.send("hello again"))
        assert woken(log)[-1] == "messages"

        await _reviewed(crew, session)


async def _reviewed(crew: Crew, session: Session) -> None:
    """Moves the session while its message waits, to a type whose harness dies between two of its answers."""
    await crew.add_harness("reviews", types="review")
    assert await served(crew.client) == ["echo", "messages", "review"]
    await move(session, "review")
    crew.arm("harness.reply_stored", "kill after 1")
    before = count([event async for event in session.events()], "model_replied")
    log = await answered(session, await session.send("Teh text."))
    await crew.struck("harness.reply_stored")
    assert woken(log)[-2:] == ["review", "review"]
    assert count(log, "model_replied") - before == 3
    answers = [event for event in log if event.HasField("model_replied")][-3:]
    assert answers[0].epoch == answers[1].epoch < answers[2].epoch
