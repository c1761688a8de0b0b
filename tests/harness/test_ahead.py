"""What is said in one append: a fact, and what is decided because of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from handmesh.session.v1.config_pb2 import McpServer, SessionConfig
from handmesh.session.v1.event_pb2 import Event, InterruptRequested, ModelReplied
from services.harness.adapters import codec
from services.harness.loops.messages import make
from services.harness.ports import Appended
from services.harness.turn.ahead import MAX_BYTES, with_what_follows
from services.harness.turn.state import fold_all
from services.harness.turn.traits import USUAL
from tests.support.harness_ports import MemoryHands, MemoryLog, MemoryServers, ScriptedModel, Told, message, ports, said

LS = ("bash", {"command": "ls"})


class Counted(MemoryLog):
    """Notes what is appended together; `before` lands before the next append of a kind."""

    def __init__(self, config: SessionConfig | None = None, before: dict[str, Event] | None = None) -> None:
        super().__init__(config)
        self.appends: list[list[str]] = []
        self.before = before or {}

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        kinds = [str(event.WhichOneof("kind")) for event in events]
        if (landed := self.before.pop(kinds[-1], None)) is not None:
            await self.add(landed)
        appended = await super().emit(events, epoch, expected_position)
        self.appends.append(kinds)
        return appended


async def turns(
    log: Counted, model: ScriptedModel, servers: MemoryServers | None = None, hands: MemoryHands | None = None
) -> list[list[str]]:
    await make().run(log, ports(model, hands, servers), "test", Told())
    return log.appends


async def test_a_turn_with_a_tool_is_said_in_few_appends() -> None:
    """A call's start comes with its reply, or with its sandbox when there was none; the end with the last reply."""
    log, hands = Counted(), MemoryHands()
    model = ScriptedModel(said(t1=LS), said(), said(t2=LS), said())
    await turns(log, model, hands=hands)
    await log.add(message("again", "m2"))
    start = len(log.appends)
    await turns(log, model, hands=hands)
    assert log.appends[:start][2:] == [
        ["model_replied"],
        ["sandbox_provisioned", "tool_started"],
        ["tool_finished"],
        ["model_replied", "turn_ended"],
    ]
    assert log.appends[start:] == [
        ["harness_woke"],
        ["model_replied", "tool_started"],
        ["tool_finished"],
        ["model_replied", "turn_ended"],
    ]


async def test_calls_of_one_reply_start_together() -> None:
    """As many as one append takes; the others start by themselves."""
    log = Counted()
    calls = {f"t{number}": LS for number in range(20)}
    appends = await turns(
        log, ScriptedModel(said(t0=LS), said(**{f"u{key}": call for key, call in calls.items()}), said())
    )
    together = max(appends, key=len)
    assert together == ["model_replied", *["tool_started"] * 15]
    assert appends.count(["tool_started"]) == 5
    assert len(log.only("tool_started")) == len(log.only("tool_finished")) == 21


async def test_a_message_that_lands_first_keeps_the_turn_open() -> None:
    """The reply is said alone, and the message is answered in the same turn."""
    log = Counted(before={"turn_ended": message("and this", "m2")})
    appends = await turns(log, ScriptedModel(said(), said()))
    assert appends[2:] == [["model_replied"], ["model_replied", "turn_ended"]]
    assert [it.read_position for it in log.only("model_replied")] == [4, 6]


async def test_an_interrupt_that_lands_first_keeps_the_calls_from_starting() -> None:
    """None of them reaches a hand."""
    log = Counted(before={"tool_started": Event(event_id="i", interrupt_requested=InterruptRequested())})
    appends = await turns(log, ScriptedModel(said(t1=LS), said(t2=LS), said()))
    assert ["sandbox_provisioned"] in appends
    assert "tool_started" not in log.kinds()


async def test_a_servers_call_that_starts_with_its_reply_is_sent_as_a_new_one() -> None:
    """It is only waited for when somebody else has started it."""
    servers = MemoryServers()
    log = Counted(SessionConfig(mcp_servers=[McpServer(name="shop", url="https://shop.example")]))
    appends = await turns(log, ScriptedModel(said(t1=("shop__buy", {})), said()), servers)
    assert ["model_replied", "tool_started"] in appends
    assert servers.calls == [("t1", False)]


async def test_an_append_is_never_larger_than_a_log_takes() -> None:
    """A reply that fills an append is said alone, and its turn's end after it; a smaller one is said with it."""
    state = fold_all(codec.fact_of(event) for event in Counted().events)
    for size, kinds in ((10, ["model_replied", "turn_ended"]), (MAX_BYTES, ["model_replied"])):
        content = json.dumps([{"type": "text", "text": "x" * size}]).encode()
        reply = Event(
            model_replied=ModelReplied(content_json=content, stop_reason="end_turn", read_position=state.head)
        )
        said_together = with_what_follows(state, reply, state.head, 0.0, USUAL)
        assert [event.WhichOneof("kind") for event in said_together] == kinds
