"""Sessions as a whole: made once, found again, changed, ended; and whose they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from handmesh.sandbox.v1.sandbox_pb2 import LogView
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import (
    AgentRef,
    Budgets,
    CustomTool,
    HandSpec,
    McpServer,
    SessionConfig,
    ToolPolicy,
)
from services.kit import ids
from tests.session.running import Service, finished, message, note, refusal, replied, turn_ended

STORE = "mem_" + "0" * 26
FULL = SessionConfig(
    harness="messages",
    model="m",
    system="be kind",
    hands={"main": HandSpec(environment="default"), "db-2": HandSpec(standing_hand="x")},
    mcp_servers=[McpServer(name="tickets", url="https://mcp.example/mcp")],
    vault_ids=["vault_" + "0" * 26],
    custom_tools=[CustomTool(name="ask", input_schema_json='{"type":"object"}')],
    tool_policies=[ToolPolicy(pattern="*", action=2)],
    budgets=Budgets(max_turns=3),
    mesh_tools=["session_events", "of_a_later_harness"],
    context_policy_json="{}",
    labels={"team": "a", "env": "test"},
    title="A title",
    agent=AgentRef(id="agent", version="1"),
)


async def test_a_session_is_made_whole(service: Service) -> None:
    """The answer is the session: its configuration, and its first events in the log behind SessionStarted."""
    request = pb.CreateSessionRequest(config=FULL, initial_events=[message("a", "m1"), note("n1")])
    session = (await service.client.CreateSession(request)).session
    wanted = SessionConfig()
    wanted.CopyFrom(FULL)
    wanted.tenant = "default"
    assert session.config == wanted
    assert (session.last_position, session.status, session.epoch) == (3, pb.SESSION_STATUS_RUNNING, 0)
    log = await service.log(session.session_id)
    assert [(e.position, e.emitter, e.WhichOneof("kind")) for e in log] == [
        (1, "session", "session_started"),
        (2, "client", "message_received"),
        (3, "client", "custom"),
    ]
    assert log[0].session_started.config == wanted
    assert ids.MINTED.fullmatch(session.session_id)


async def test_an_empty_request_is_a_default_session(service: Service) -> None:
    """Nothing needs to be said; two calls without a request id are two sessions."""
    one, other = await service.create(), await service.create()
    assert one != other
    assert await service.status(one) == "IDLE"


async def test_a_request_id_makes_one_session(service: Service) -> None:
    """Said again, also at the same time, it is the same session; another configuration under it is refused."""
    request = pb.CreateSessionRequest(request_id="r1:" + ids.mint("x"), config=FULL, initial_events=[message()])
    answers = await asyncio.gather(*(service.client.CreateSession(request) for _ in range(5)))
    assert len({answer.session.session_id for answer in answers}) == 1
    session_id = answers[0].session.session_id
    await service.emit(session_id, message("more"))
    again = (await service.client.CreateSession(request)).session
    assert (again.session_id, again.last_position) == (session_id, 3)
    request.config.title = "another"
    error = await refusal(service.client.CreateSession(request))
    assert (error.code, error.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    assert (await service.other.CreateSession(request)).session.session_id != session_id


BAD_CONFIGS: list[tuple[str, Callable[[SessionConfig], Any]]] = [
    ("harness", lambda c: setattr(c, "harness", "Bad Name")),
    ("harness", lambda c: setattr(c, "harness", "a.>")),
    ("hands", lambda c: c.hands["UPPER"].CopyFrom(HandSpec())),
    ("hands", lambda c: c.hands["two__parts"].CopyFrom(HandSpec())),
    ("hands", lambda c: c.hands["under_score"].CopyFrom(HandSpec())),
    ("hands", lambda c: c.hands[""].CopyFrom(HandSpec())),
    ("hands", lambda c: c.hands["x" * 40].CopyFrom(HandSpec())),
    ("no_hands", lambda c: setattr(c, "no_hands", True)),
    ("mcp_servers[1].name", lambda c: c.mcp_servers.add(name="tickets", url="https://x")),
    ("mcp_servers[1].name", lambda c: c.mcp_servers.add(name="main", url="https://x")),
    ("mcp_servers[1].url", lambda c: c.mcp_servers.add(name="x", url="file:///etc/passwd")),
    ("mcp_servers[1].url", lambda c: c.mcp_servers.add(name="x", url="https://user:secret@host/")),
    ("mcp_servers[1].url", lambda c: c.mcp_servers.add(name="x", url="https://[::1")),
    ("vault_ids[1]", lambda c: c.vault_ids.append("vault_*")),
    ("custom_tools[1].name", lambda c: c.custom_tools.add(name="a__b", input_schema_json='{"type":"object"}')),
    ("custom_tools[1].name", lambda c: c.custom_tools.add(name="ask", input_schema_json='{"type":"object"}')),
    ("custom_tools[1].input_schema_json", lambda c: c.custom_tools.add(name="x", input_schema_json="[]")),
    ("custom_tools[1].input_schema_json", lambda c: c.custom_tools.add(name="x", input_schema_json='{"type":"array"}')),
    ("custom_tools[1].input_schema_json", lambda c: c.custom_tools.add(name="x", input_schema_json="[" * 9_999)),
    ("tool_policies[1].action", lambda c: c.tool_policies.add(pattern="x")),
    ("tool_policies[1].action", lambda c: c.tool_policies.add(pattern="x", action=17)),
    ("tool_policies[1].pattern", lambda c: c.tool_policies.add(action=1)),
    ("memory_stores[0].memory_store_id", lambda c: c.memory_stores.add(memory_store_id="mem", name="notes")),
    ("memory_stores[0].name", lambda c: c.memory_stores.add(memory_store_id=STORE, name="a/b")),
    ("memory_stores[1].name", lambda c: [c.memory_stores.add(memory_store_id=STORE, name="notes") for _ in "ab"]),
    ("memory_stores", lambda c: [c.memory_stores.add(memory_store_id=STORE, name=f"n{n}") for n in range(17)]),
    (
        "memory_stores[0].description",
        lambda c: c.memory_stores.add(memory_store_id=STORE, name="notes", description="x" * 1_025),
    ),
    ("mesh_tools", lambda c: c.mesh_tools.append("Session Events")),
    ("hands[main].resources[0].log_view", lambda c: c.hands["main"].resources.add(log_view=LogView(json_lines=b"{}"))),
    ("hands[main].resources[0].log_view", lambda c: c.hands["main"].resources.add(log_view=LogView(offset=1))),
    (
        "hands[main].resources[0].log_view.start_position",
        lambda c: c.hands["main"].resources.add(log_view=LogView(start_position=-1)),
    ),
    ("mesh_tools", lambda c: c.mesh_tools.extend(["session_events", "session_events"])),
    ("child_limits.max_depth", lambda c: setattr(c.child_limits, "max_depth", -1)),
    ("child_limits.budgets.max_turns", lambda c: setattr(c.child_limits.budgets, "max_turns", -1)),
    ("budgets.max_turns", lambda c: setattr(c.budgets, "max_turns", -1)),
    ("max_output_tokens", lambda c: setattr(c, "max_output_tokens", -1)),
    ("context_policy_json", lambda c: setattr(c, "context_policy_json", "nonsense")),
    ("labels", lambda c: c.labels.update({str(number): "" for number in range(40)})),
    ("labels", lambda c: c.labels.update({"k" * 65: ""})),
    ("labels[key]", lambda c: c.labels.update({"key": "v" * 257})),
    ("title", lambda c: setattr(c, "title", "t" * 2_000)),
]


@pytest.mark.parametrize(("field", "spoil"), BAD_CONFIGS, ids=[str(number) for number in range(len(BAD_CONFIGS))])
async def test_a_wrong_configuration_names_its_field(
    service: Service, field: str, spoil: Callable[[SessionConfig], Any]
) -> None:
    """A configuration that no harness could work with is refused at both doors, with the field."""
    config = SessionConfig()
    config.CopyFrom(FULL)
    spoil(config)
    session = await service.create(config=FULL)
    for call in (
        service.client.CreateSession(pb.CreateSessionRequest(config=config)),
        service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=config)),
    ):
        error = await refusal(call)
        assert (error.code, error.reason, error.metadata) == ("INVALID_ARGUMENT", "CONFIG_INVALID", {"field": field})


async def test_a_server_is_not_called_like_a_hand(service: Service) -> None:
    """Also not like `main`, the hand of a session that names none: a tool's name says where it goes."""
    server = McpServer(name="main", url="https://tickets.example/mcp")
    for config in (
        SessionConfig(mcp_servers=[server]),
        SessionConfig(hands={"main": HandSpec()}, mcp_servers=[server]),
    ):
        error = await refusal(service.client.CreateSession(pb.CreateSessionRequest(config=config)))
        assert (error.reason, error.metadata) == ("CONFIG_INVALID", {"field": "mcp_servers[0].name"})
    for config in (
        SessionConfig(no_hands=True, mcp_servers=[server]),
        SessionConfig(hands={"build": HandSpec()}, mcp_servers=[server]),
    ):
        await service.client.CreateSession(pb.CreateSessionRequest(config=config))


async def test_too_many_first_events(service: Service) -> None:
    """What comes with a session is one batch with SessionStarted."""
    request = pb.CreateSessionRequest(initial_events=[note() for _ in range(16)])
    assert (await refusal(service.client.CreateSession(request))).reason == "ARGUMENT_INVALID"
    await service.client.CreateSession(pb.CreateSessionRequest(initial_events=[note() for _ in range(15)]))


async def test_a_session_belongs_to_its_tenant(service: Service) -> None:
    """For another tenant it does not exist, whatever is asked; services see it."""
    session = await service.create(message())
    calls = [
        service.other.GetSession(pb.GetSessionRequest(session_id=session)),
        service.other.GetEvents(pb.GetEventsRequest(session_id=session)),
        service.other.WatchEvents(pb.WatchEventsRequest(session_id=session)),
        service.other.EmitEvent(pb.EmitEventRequest(session_id=session, event=message(event_id="session_started"))),
        service.other.EmitEvents(pb.EmitEventsRequest(session_id=session, events=[message()])),
        service.other.UpdateSession(pb.UpdateSessionRequest(session_id=session)),
        service.other.EndSession(pb.EndSessionRequest(session_id=session)),
    ]
    for call in calls:
        error = await refusal(call)
        assert (error.code, error.reason, error.metadata) == ("NOT_FOUND", "SESSION_NOT_FOUND", {"session_id": session})
    assert await service.head(session) == 2
    assert (await service.harness.GetSession(pb.GetSessionRequest(session_id=session))).session.session_id == session


async def test_a_client_starts_nobodys_child(service: Service) -> None:
    """What a client says of tenant and parent is not listened to."""
    parent = await service.create()
    config = SessionConfig(parent_session_id=parent, tenant="other")
    made = (await service.client.CreateSession(pb.CreateSessionRequest(config=config))).session
    assert (made.config.tenant, made.config.HasField("parent_session_id")) == ("default", False)


async def test_a_configuration_changes_as_a_whole(service: Service) -> None:
    """UpdateSession appends ConfigChanged; whose the session is and what it is a run of stay."""
    session = await service.create(config=FULL)
    new = SessionConfig(title="new", tenant="other", labels={"team": "b"})
    request = pb.UpdateSessionRequest(session_id=session, config=new, expected_position=1)
    changed = (await service.client.UpdateSession(request)).session
    assert (changed.config.title, changed.config.tenant, changed.config.agent) == ("new", "default", FULL.agent)
    assert changed.config.hands == {} and changed.last_position == 2
    error = await refusal(service.client.UpdateSession(request))
    assert (error.reason, error.metadata) == ("POSITION_CONFLICT", {"last_position": "2"})
    new.agent.id = "another"
    error = await refusal(service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=new)))
    assert (error.reason, error.metadata) == ("CONFIG_INVALID", {"field": "agent"})
    found = await service.client.ListSessions(pb.ListSessionsRequest(labels={"team": "b"}))
    assert session in [each.session_id for each in found.sessions]


async def test_the_end_is_for_good(service: Service) -> None:
    """EndSession can be said again; nothing is appended after it; it can still be read."""
    session = await service.create(message("a", "m1"))
    for _ in range(2):
        ended = (await service.client.EndSession(pb.EndSessionRequest(session_id=session, reason="done"))).session
        assert (ended.status, ended.last_position) == (pb.SESSION_STATUS_ENDED, 3)
    for call in (
        service.emit(session, message()),
        service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session)),
    ):
        error = await refusal(call)
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "SESSION_ENDED")
    assert (await service.emit(session, message("a", "m1"))).duplicate
    assert (await service.log(session))[-1].session_ended.reason == "done"
    too_long = pb.EndSessionRequest(session_id=session, reason="x" * 10_000)
    assert (await refusal(service.client.EndSession(too_long))).reason == "ARGUMENT_INVALID"


async def test_what_a_session_says_of_itself(service: Service) -> None:
    """GetSession sums the log up: usage, turns, what waits, why the last turn ended."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    usage = ev.TokenUsage(input_tokens=1, output_tokens=2, cache_creation_input_tokens=3, cache_read_input_tokens=4)
    await service.emit(session, replied("t1", "t2", read=epoch, usage=usage), epoch)
    asked = ev.ToolConfirmationRequested(tool_use_id="t1", name="bash")
    await service.emit(session, ev.Event(tool_confirmation_requested=asked), epoch)
    await service.emit(session, finished("t2"), epoch)
    found = (await service.client.GetSession(pb.GetSessionRequest(session_id=session))).session
    assert (found.status, list(found.waiting_tool_use_ids)) == (pb.SESSION_STATUS_WAITING, ["t1"])
    assert (found.usage, found.epoch, found.turns, found.last_turn_end) == (usage, epoch, 0, 0)
    await service.emit(session, finished("t1"), epoch)
    await service.emit(session, turn_ended(epoch + 4, ev.TURN_END_REASON_DONE), epoch)
    found = (await service.client.GetSession(pb.GetSessionRequest(session_id=session))).session
    assert (found.status, found.turns, found.last_turn_end) == (pb.SESSION_STATUS_IDLE, 1, ev.TURN_END_REASON_DONE)
    log = await service.log(session)
    assert (found.create_time, found.update_time) == (log[0].emit_time, log[-1].emit_time)


async def test_sessions_are_listed_newest_first_page_by_page(service: Service) -> None:
    """Pages cover every session of the tenant once, newest first, and nobody else's."""
    label = ids.mint("x")
    made = [await service.create(config=SessionConfig(labels={"test": label})) for _ in range(7)]
    found: list[str] = []
    token = ""
    while True:
        request = pb.ListSessionsRequest(page_size=3, page_token=token, labels={"test": label})
        answer = await service.client.ListSessions(request)
        assert len(answer.sessions) <= 3
        found += [session.session_id for session in answer.sessions]
        token = answer.next_page_token
        if not token:
            break
    assert sorted(found) == sorted(made) and found == sorted(found, reverse=True)
    other = await service.other.ListSessions(pb.ListSessionsRequest(labels={"test": label}))
    assert list(other.sessions) == []


async def test_a_page_of_sessions_is_bounded_in_bytes(service: Service) -> None:
    """Sessions with long system prompts come in pages that every gRPC client takes."""
    label = ids.mint("x")
    config = SessionConfig(labels={"test": label}, system="x" * 900_000)
    made = [await service.create(config=config) for _ in range(5)]
    found: list[str] = []
    token = ""
    while True:
        request = pb.ListSessionsRequest(page_token=token, labels={"test": label})
        answer = await service.client.ListSessions(request)
        assert answer.ByteSize() < 3_500_000
        found += [session.session_id for session in answer.sessions]
        token = answer.next_page_token
        if not token:
            break
    assert found == sorted(made, reverse=True)


async def test_filters_are_joined_by_and(service: Service) -> None:
    """Status, labels, harness and time each narrow the list down."""
    label = ids.mint("x")
    idle = await service.create(config=SessionConfig(labels={"test": label, "n": "1"}))
    busy = await service.create(message(), config=SessionConfig(labels={"test": label}, harness="claude_code"))
    moment = (await service.log(busy))[0].emit_time

    async def listed(**fields: Any) -> list[str]:
        labels = {"test": label, **fields.pop("labels", {})}
        answer = await service.client.ListSessions(pb.ListSessionsRequest(labels=labels, **fields))
        return [session.session_id for session in answer.sessions]

    assert await listed() == [busy, idle]
    assert await listed(statuses=[pb.SESSION_STATUS_IDLE]) == [idle]
    assert await listed(statuses=[pb.SESSION_STATUS_IDLE, pb.SESSION_STATUS_RUNNING]) == [busy, idle]
    assert await listed(harness="claude_code") == [busy]
    assert await listed(harness="messages") == [idle]
    assert await listed(labels={"n": "1"}) == [idle]
    assert await listed(labels={"n": "2"}) == []
    assert await listed(created_after=moment) == [busy]
    assert await listed(created_before=moment) == [idle]
    assert await listed(created_before=moment, harness="claude_code") == []


@pytest.mark.parametrize("request_", [{"page_size": -1}, {"page_token": "../../x"}, {"page_token": "x" * 5_000}])
async def test_nonsense_pages(service: Service, request_: dict[str, Any]) -> None:
    """A page that is none is an error."""
    error = await refusal(service.client.ListSessions(pb.ListSessionsRequest(**request_)))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "ARGUMENT_INVALID")


HOSTILE = [
    "",
    "*",
    ">",
    "a.b",
    "sess_*",
    "sess_" + "A" * 26,
    "sess_" + "a" * 25,
    "x" * 5_000,
    "sess_" + "a" * 26 + "\n",
]


@pytest.mark.parametrize("session_id", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
async def test_hostile_ids_reach_nothing(service: Service, session_id: str) -> None:
    """Every method that takes a session's id refuses what has not its form; the service goes on."""
    for stub, method, request in _methods(service, session_id):
        error = await refusal(getattr(stub, method)(request))
        assert (error.code, error.reason) == ("INVALID_ARGUMENT", "ID_INVALID"), method
    await service.create()


async def test_sessions_that_are_not_there(service: Service) -> None:
    """Every method says NOT_FOUND for an id that nothing stands behind, and leaves nothing behind."""
    session_id = ids.mint("sess")
    for stub, method, request in _methods(service, session_id):
        if method == "ClaimWork":
            continue  # what a harness works on may have gone meanwhile
        error = await refusal(getattr(stub, method)(request))
        assert (error.code, error.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND"), method


def _methods(service: Service, session_id: str) -> list[tuple[Any, str, Any]]:
    async def previews() -> Any:
        yield pb.PublishPreviewsRequest(session_id=session_id, epoch=1)

    client, harness = service.client, service.harness
    return [
        (client, "GetSession", pb.GetSessionRequest(session_id=session_id)),
        (client, "UpdateSession", pb.UpdateSessionRequest(session_id=session_id)),
        (client, "EndSession", pb.EndSessionRequest(session_id=session_id)),
        (client, "EmitEvent", pb.EmitEventRequest(session_id=session_id, event=message())),
        (client, "EmitEvents", pb.EmitEventsRequest(session_id=session_id, events=[message()])),
        (client, "VerifySession", pb.VerifySessionRequest(session_id=session_id)),
        (client, "GetEvents", pb.GetEventsRequest(session_id=session_id)),
        (client, "WatchEvents", pb.WatchEventsRequest(session_id=session_id)),
        (harness, "PublishPreviews", previews()),
        (harness, "ClaimWork", pb.ClaimWorkRequest(capacity=1, working_session_ids=[session_id])),
    ]


async def test_json_numbers_in_labels_do_not_matter(service: Service) -> None:
    """Labels of any text are found again as they are."""
    odd = {"ключ": 'va"l\\ue', "k.v": "*", "empty": ""}
    session = await service.create(config=SessionConfig(labels=odd))
    found = await service.client.ListSessions(pb.ListSessionsRequest(labels=odd))
    assert session in [each.session_id for each in found.sessions]
    assert json.loads(json.dumps(dict(found.sessions[0].config.labels))) == odd
