"""The demo's session as a real OpenTelemetry Collector sees it: every hop, and nothing that anybody has said."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from rich.console import Console

from handmesh.cli.following import Item
from handmesh.demo.narration import Narrator
from handmesh.demo.stage import mesh_of_its_own, server_address, set_up
from handmesh.demo.story import FIRST_TASK, SECOND_TASK, first_turn, second_turn
from handmesh.session.v1 import event_pb2
from tests.support.canary import hits
from tests.support.otel import Collector, Span, collecting

pytestmark = [pytest.mark.collector, pytest.mark.e2e, pytest.mark.bwrap]

SERVER, CLIENT, INTERNAL = 2, 3, 1  # kinds in OTLP
SERVICES = ("session", "harness", "sandbox", "vault_proxy")
# What was said in the session: by a person, by the model, by a tool, and what a tool was asked with.
SAID = (FIRST_TASK, SECOND_TASK, "isolated hand", "greet.py", "ood morning", "slow job", "run-", "echo ")
SESSION, SANDBOX, PROXY = (
    f"handmesh.{name}.v1.{service}"
    for name, service in (
        ("session", "SessionService"),
        ("sandbox", "SandboxService"),
        ("vault_proxy", "VaultProxyService"),
    )
)


@dataclass(frozen=True)
class Story:
    """What the collector got, what the log says, what was logged, and the token that was in play."""

    spans: Sequence[Span] = field(repr=False)
    exported: bytes = field(repr=False)
    events: Sequence[event_pb2.Event] = field(repr=False)
    logs: dict[str, str] = field(repr=False)
    session_id: str
    token: str = field(repr=False)

    def trace(self, message: str) -> str:
        """Returns the id of the trace that a message began, by the log."""
        found = [it for it in self.events if message in it.message_received.content_json]
        return found[0].traceparent[3:35]

    def path(self, span: Span) -> list[tuple[str, str, int]]:
        """Returns a span and those above it: service, name and kind of each."""
        by_id = {each.id: each for each in self.spans}
        path = [span]
        while path[-1].parent in by_id:
            path.append(by_id[path[-1].parent])
        assert {each.trace for each in path} == {span.trace}
        return [(each.service, each.name, each.kind) for each in path]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def story(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Story]:
    """Both turns of the demo, the second one with a harness that is killed; then all services stop."""
    folder = tmp_path_factory.mktemp("traced")
    narrator, server = Narrator(Console(file=io.StringIO())), server_address()
    async with collecting(folder) as collector:
        async with (
            mesh_of_its_own(folder, server, f"http://{collector.address}") as mesh,
            set_up(folder, mesh, server) as stage,
        ):
            session = await first_turn(stage, narrator, _unseen, "")
            await _come(collector)  # what the harness has not sent yet would be killed with it
            await second_turn(stage, narrator, session, _unseen)
            events = [event async for event in session.events()]
            files = {service: mesh.files.log(service) for service in SERVICES}
            token = stage.token
        logs = {service: file.read_text() for service, file in files.items()}
    yield Story(collector.spans(), collector.file.read_bytes(), events, logs, session.id, token)


async def _come(collector: Collector) -> None:
    """Waits until the collector has a turn as a whole: its own span is the last one."""
    async with asyncio.timeout(30):
        while not any(it.name.startswith("invoke_agent") for it in collector.spans()):
            await asyncio.sleep(0.1)


def _unseen(item: Item) -> None:
    pass


def of(story: Story, trace: str, service: str, name: str) -> list[Span]:
    """Returns the spans of a trace by their service and name."""
    return [it for it in story.spans if (it.trace, it.service, it.name) == (trace, service, name)]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_turn_is_one_trace_through_every_hop(story: Story) -> None:
    """From the client's call to the tool in the sandbox, the MCP server and the vault: one id, each below its cause."""
    trace = story.trace(FIRST_TASK)
    turn = [("harness", "invoke_agent messages", INTERNAL), ("session", f"{SESSION}/CreateSession", SERVER)]
    (ran, *_) = of(story, trace, "sandbox", "run bash")
    (made,) = of(story, trace, "sandbox", "provision sandbox")
    (noted,) = of(story, trace, "vault_proxy", "tools/call add_note")
    chat = next(it for it in story.spans if it.trace == trace and it.name.startswith("chat "))
    assert story.path(ran) == [
        ("sandbox", "run bash", INTERNAL),
        ("sandbox", f"{SANDBOX}/Execute", SERVER),
        ("harness", f"{SANDBOX}/Execute", CLIENT),
        ("harness", "execute_tool bash", INTERNAL),
        *turn,
    ]
    assert story.path(made)[1:] == [
        ("sandbox", f"{SANDBOX}/Provision", SERVER),
        ("harness", f"{SANDBOX}/Provision", CLIENT),
        *turn,
    ]
    assert story.path(noted) == [
        ("vault_proxy", "tools/call add_note", CLIENT),
        ("vault_proxy", f"{PROXY}/Execute", SERVER),
        ("harness", f"{PROXY}/Execute", CLIENT),
        ("harness", "execute_tool shop__add_note", INTERNAL),
        *turn,
    ]
    assert story.path(chat)[1:] == turn
    posts = [
        it
        for it in of(story, trace, "vault_proxy", "POST")
        if ("vault_proxy", "tools/call add_note", CLIENT) in story.path(it)
    ]
    assert [it.attributes["http.response.status_code"] for it in posts] == [200]
    assert of(story, trace, "vault_proxy", "find credential")
    emitted = of(story, trace, "session", f"{SESSION}/EmitEvents")
    assert emitted and all(("harness", "invoke_agent messages", INTERNAL) in story.path(it) for it in emitted)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_turn_that_another_harness_goes_on_with_is_the_same_trace(story: Story) -> None:
    """The harness that was killed and the one that came after it worked in one trace: spans and events say so."""
    trace = story.trace(SECOND_TASK)
    turn = [it for it in story.events if it.traceparent[3:35] == trace]
    started = next(it for it in turn if it.HasField("tool_started"))
    finished = next(it for it in turn if it.HasField("tool_finished"))
    assert 0 < started.epoch < finished.epoch
    instances = of(story, trace, "harness", "invoke_agent messages")
    assert instances and all(it.attributes["handmesh.epoch"] == finished.epoch for it in instances[-1:])
    assert story.path(instances[-1])[1:] == [("session", f"{SESSION}/EmitEvent", SERVER)]
    executed = [
        it for it in story.spans if it.attributes.get("handmesh.execution.id") == started.tool_started.tool_use_id
    ]
    assert {it.trace for it in executed} == {trace}
    assert {it.service for it in executed} == {"harness", "sandbox"}


@pytest.mark.asyncio(loop_scope="module")
async def test_the_model_s_spans_are_as_the_convention_says(story: Story) -> None:
    """What was asked, how many tokens it was, why it ended, in the words of the conventions for generative AI."""
    # Of the first turn: what a process has not sent yet goes with it when it is killed.
    trace = story.trace(FIRST_TASK)
    replies = [it.model_replied for it in story.events if it.HasField("model_replied") and trace in it.traceparent]
    assert len(replies) > 3
    chats = {it.attributes["gen_ai.response.id"]: it for it in story.spans if it.name.startswith("chat ")}
    for reply in replies:
        span = chats[reply.message_id]
        assert span.kind == CLIENT
        assert span.name == f"chat {span.attributes['gen_ai.request.model']}"
        told = {key: value for key, value in span.attributes.items() if key.startswith("gen_ai.")}
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": reply.stop_reason}]}
        assert told["gen_ai.usage.output_tokens"] == reply.usage.output_tokens
        assert span.attributes["handmesh.session.id"] == story.session_id


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_that_was_said_is_exported_or_logged(story: Story) -> None:
    """No token, no text of a person, the model or a tool is in what was exported, nor in any service's log."""
    places = {"the export": story.exported, **{name: log.encode() for name, log in story.logs.items()}}
    assert [name for name, content in places.items() if hits(story.token, content)] == []
    said = [(name, text) for name, content in places.items() for text in SAID if text.encode() in content]
    assert said == []
    assert story.session_id.encode() in story.exported and len(story.exported) > 10_000


@pytest.mark.asyncio(loop_scope="module")
async def test_log_lines_name_session_and_trace(story: Story) -> None:
    """Every line of a service is JSON; those about a call say whose it is and in which trace."""
    lines = [json.loads(line) for log in story.logs.values() for line in log.splitlines() if line.startswith("{")]
    ran = [line for line in lines if line["event"] == "tool finished"]
    traces = {story.trace(FIRST_TASK), story.trace(SECOND_TASK)}
    assert {(line["session_id"], line["trace_id"]) for line in ran} == {(story.session_id, trace) for trace in traces}
