"""Hands, servers and pictures: several at once, slow, lost, refused, changed; and events of kinds from elsewhere."""

from __future__ import annotations

import asyncio
import json

from handmesh.session.v1.config_pb2 import HandSpec, McpServer, SessionConfig
from handmesh.session.v1.event_pb2 import (
    Custom,
    Event,
    MessageReceived,
    SessionArchived,
    SessionForked,
    SessionRestored,
)
from services.harness.core import ToolResult
from services.kit.errors import Invalid, Refused, Unavailable
from tests.golden.recording import BASH, Recording, Scenario
from tests.harness.test_view import png
from tests.support.harness_ports import said

TWO = SessionConfig(hands={"a": HandSpec(environment="default"), "b": HandSpec(environment="docker")})
A, B = ("a__bash", {"command": "ls"}), ("b__bash", {"command": "ls"})


async def a_slow_hand() -> Recording:
    log = Recording(TWO)
    log.hands.slow["b"] = asyncio.Event()

    async def freed(tool: str, input: str) -> None:
        log.hands.slow["b"].set()

    log.hands.work = freed
    await log.run(said(t1=A, t2=B, t3=A), said())
    return log


async def a_hand_of_several_is_lost() -> Recording:
    log = Recording(TWO)

    async def lost() -> None:
        log.hands.sandboxes = {name: id for name, id in log.hands.sandboxes.items() if not name.startswith("b")}

    await log.run(said(t1=A, t2=B), lost, said(t3=A, t4=B, t5=B), said(t6=B), said())
    return log


async def a_hand_that_cannot_be_looked_up() -> Recording:
    log = Recording(TWO)
    log.hands.unknown.add("docker")
    await log.run(said(t1=A, t2=B), said())
    log.hands.unknown.clear()
    await log.say("again", said(t3=B), said())
    return log


async def a_hand_that_cannot_be_made() -> Recording:
    log = Recording()
    log.hands.refusal = Refused("ISOLATION_UNAVAILABLE", "no user namespaces")
    await log.run(said(t1=BASH, t2=BASH), said())
    log.hands.refusal = None
    await log.say("again", said(t3=BASH), said())
    return log


async def outcomes() -> Recording:
    log, left = Recording(), iter(("TIMEOUT", "OUT_OF_MEMORY", "TOOL_ERROR"))

    async def run(tool: str, input: str) -> ToolResult:
        return ToolResult("so", next(left), truncated=True, exit_code=137)  # type: ignore[arg-type]

    log.hands._run = run  # type: ignore[method-assign]
    await log.run(said(t1=BASH, t2=BASH), said(t3=BASH), said())
    return log


async def an_input_that_a_hand_refuses() -> Recording:
    log = Recording()

    async def refuse(*_: object) -> None:
        raise Invalid("TOOL_INPUT_INVALID", "command is required")

    log.hands.execute = refuse  # type: ignore[method-assign,assignment]
    await log.run(said(t1=("bash", {})), said())
    return log


async def a_server_that_is_down() -> Recording:
    log = Recording(SessionConfig(mcp_servers=[McpServer(name="shop", url="https://shop.example")]))
    log.servers.problems = [("shop", "", "SERVER_UNAVAILABLE", "connection refused")]
    await log.run(said(t1=BASH), said())
    log.servers.problems = []
    await log.say("again", said(t2=("shop__buy", {})), said())
    log.servers.refusal = Unavailable("SERVER_UNAVAILABLE", "down")
    await log.say("and again", said(t3=("shop__buy", {})), said())
    return log


class Smaller:
    """Makes every image the same small one."""

    async def shrink(self, data: bytes) -> tuple[bytes, str]:
        await asyncio.sleep(0)
        return b"\x89PNG\r\n\x1a\nsmall", "image/png"


async def pictures() -> Recording:
    log = Recording()
    shown = [png(), png(9_000, 10), {"type": "image", "source": 7}]

    async def run(tool: str, input: str) -> ToolResult:
        return ToolResult("a picture", content=json.dumps(shown))

    log.hands._run = run  # type: ignore[method-assign]
    content = MessageReceived(content_json=json.dumps([png(0, 10), {"type": "text", "text": "look"}]))
    await log.add(Event(event_id="picture", message_received=content))
    await log.run(said(t1=BASH), said())
    await log.say("and now", said())
    return log


async def pictures_made_smaller() -> Recording:
    log = Recording()
    log.pictures = Smaller()
    content = MessageReceived(content_json=json.dumps([png(9_000, 10)]))
    await log.add(Event(event_id="picture", message_received=content))
    await log.run(said())
    await log.say("and now", said())
    return log


async def kinds_from_elsewhere() -> Recording:
    log = Recording()
    await log.add(
        Event(event_id="fork", session_forked=SessionForked(from_session_id="sess_" + "1" * 26)),
        Event(event_id="note", custom=Custom(type="acme.example/note", payload_json="{}"), ignorable=True),
        Event(event_id="newer", ignorable=True),
    )
    await log.run(said(t1=BASH), said())
    await log.add(Event(event_id="archive", session_archived=SessionArchived()))
    await log.add(Event(event_id="restore", session_restored=SessionRestored()))
    await log.say("next", said())
    return log


async def a_kind_that_may_not_be_skipped() -> Recording:
    log = Recording()
    await log.run(said())
    await log.say("next")
    await log.add(Event(event_id="newer"))
    await log.run()
    return log


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        a_slow_hand,
        a_hand_of_several_is_lost,
        a_hand_that_cannot_be_looked_up,
        a_hand_that_cannot_be_made,
        outcomes,
        an_input_that_a_hand_refuses,
        a_server_that_is_down,
        pictures,
        pictures_made_smaller,
        kinds_from_elsewhere,
        a_kind_that_may_not_be_skipped,
    )
}
