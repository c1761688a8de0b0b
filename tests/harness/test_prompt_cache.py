"""The prompt of a session only grows: what was sent before is the beginning of what is sent next, to the byte."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import CustomTool, SessionConfig
from tests.harness.api import Session, client, talking
from tests.harness.test_model_turns import LS

SYSTEM = "Be good. " * 600


def bare(body: dict[str, Any]) -> list[str]:
    """Returns the prompt's parts in the order of the cache, without markers."""
    head = [json.dumps([body["model"], body.get("tools"), body.get("system")])]
    parts = head + [json.dumps([it["role"], block]) for it in body["messages"] for block in it["content"]]
    return [part.replace(', "cache_control": {"type": "ephemeral"}', "") for part in parts]


def marks(body: dict[str, Any]) -> int:
    return json.dumps(body).count('"cache_control"')


def last_mark(body: dict[str, Any]) -> int:
    """Returns how many parts of `bare` lie before the last marker, with it."""
    blocks = [block for it in body["messages"] for block in it["content"]]
    return 1 + max(place for place, block in enumerate(blocks, 1) if "cache_control" in block)


def script(calls: int) -> dict[str, Any]:
    """A turn of three replies, the first with so many calls at once."""
    steps = [
        {"say": [{"thinking": "hm"}, {"text": "at once"}, *[LS] * calls]},
        {"say": [{"text": "and once more"}, LS]},
        {"say": [{"text": "done"}]},
    ]
    return {"default": {"repeat": True, "steps": steps}}


# More than 20 blocks in a turn are more than the API looks back from a marker.
@pytest.mark.parametrize(("system", "turns", "calls"), [(SYSTEM, 40, 2), ("", 6, 25)])
async def test_each_turn_reads_what_the_turns_before_have_written(
    tmp_path: Path, system: str, turns: int, calls: int
) -> None:
    """Parallel calls, with thinking; each turn in another process's harness that reads the log anew.

    Each request begins with the one before, up to its last marker; four markers at most; the log's hashes say so, and
    the API's accounts show that all of it was read from the cache.
    """
    tools = [
        CustomTool(name=f"own_{n}", description="x" * 300, input_schema_json='{"type":"object"}') for n in range(9)
    ]
    config = SessionConfig(system=system, custom_tools=tools)
    async with talking(tmp_path, script(calls), config=config) as (server, session):
        await session.run()
        for turn in range(turns - 1):
            async with client(tmp_path, server.base_url) as model:
                later = Session(model)
                later.log, later.hands = session.log, session.hands
                later._names = session._names
                await later.say(f"turn {turn}")
    requests = [request.body for request in server.requests if request.body is not None]
    assert {request.status for request in server.requests} == {200}
    assert len(requests) == turns * 3
    assert all(0 < marks(body) <= 4 for body in requests)
    for before, after in itertools.pairwise(requests):
        reach = last_mark(before)
        assert bare(after)[:reach] == bare(before)[:reach]
        assert reach == len(bare(before))
    replies = session.log.only("model_replied")
    for before, after in itertools.pairwise(replies):
        assert after.prefix_hash == before.prompt_hash
        written = before.usage.cache_read_input_tokens + before.usage.cache_creation_input_tokens
        assert after.usage.cache_read_input_tokens == written
        assert after.usage.input_tokens == 0
    assert replies[0].prefix_hash == ""


async def test_a_change_before_the_end_shows_in_the_log(tmp_path: Path) -> None:
    """Another system prompt: the prefix is no longer the prompt before, and the log's hashes differ."""
    async with talking(tmp_path, script(25), config=SessionConfig(system="one")) as (_, session):
        await session.run()
        session.log.events[0].session_started.config.system = "two"
        await session.say("next")
    replies = session.log.only("model_replied")
    assert replies[3].prefix_hash != replies[2].prompt_hash
    assert replies[4].prefix_hash == replies[3].prompt_hash


async def test_the_request_of_a_reply_can_be_built_again(tmp_path: Path) -> None:
    """Three messages land while the model streams: what another harness would send is what was sent, by its hash."""
    async with talking(tmp_path, script(25)) as (server, session):
        await session.run()
        first = [request.body for request in server.requests]
        hashes = [it.request_hash for it in session.log.only("model_replied")]
    async with talking(tmp_path, script(25)) as (server, again):
        await again.run()
    assert [request.body for request in server.requests] == first
    assert [it.request_hash for it in again.log.only("model_replied")] == hashes
