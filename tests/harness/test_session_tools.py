"""The tools with which a model starts other sessions, writes to them, waits for them and ends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handmesh.sandbox.v1.sandbox_pb2 import BlobSource, GitRepository, Resource
from handmesh.session.v1.config_pb2 import (
    Budgets,
    ChildLimits,
    CustomTool,
    HandSpec,
    McpServer,
    MemoryAccess,
    SessionConfig,
    ToolPolicy,
)
from handmesh.session.v1.session_pb2 import Session, SessionStatus
from services.harness.adapters.configs import config_of
from services.harness.core import ToolResult
from services.harness.mesh.calls import checked
from services.harness.mesh.sessions import HERE_SECONDS, MAX_REPLY, NAMES, RECHECK_SECONDS, SessionTools, child_of
from services.harness.mesh.tool import Asked, NotYet
from services.harness.ports import Standing
from services.kit.errors import Gone, Refused
from services.session.children_rules import Used, bounded
from tests.support.harness_ports import SESSION, MemoryLog

CHILD = "sess_" + "c" * 26
RUNNING, IDLE = SessionStatus.SESSION_STATUS_RUNNING, SessionStatus.SESSION_STATUS_IDLE
LIMITS = ChildLimits(max_depth=2, max_children=3, budgets=Budgets(max_turns=5))
FULL = SessionConfig(
    harness="messages",
    model="m",
    system="s",
    hands={
        "main": HandSpec(
            environment="e", resources=[Resource(git_repository=GitRepository(url="https://g.example/a/b"))]
        ),
        "box": HandSpec(environment="f"),
        "shared": HandSpec(standing_hand="x"),
    },
    mcp_servers=[McpServer(name="n", url="https://m.example", allowed_tools=["a"])],
    vault_ids=["vault_" + "0" * 26],
    custom_tools=[CustomTool(name="ask", input_schema_json='{"type":"object"}')],
    tool_policies=[ToolPolicy(pattern="bash", action=2)],
    memory_stores=[MemoryAccess(memory_store_id="mem_" + "0" * 26, name="notes")],
    mesh_tools=[*NAMES, "session_events"],
    child_limits=LIMITS,
    labels={"team": "a"},
)


class Village:
    """Other sessions, in memory (see `Others`)."""

    def __init__(self, config: SessionConfig = FULL) -> None:
        self.sessions = {SESSION: Session(session_id=SESSION, config=config)}
        self.sent: list[tuple[str, str, str, str]] = []
        self.waited: list[float] = []
        self.reply = ""
        self.problem: Exception | None = None

    def add(self, session_id: str = CHILD, status: Any = IDLE, parent: str = SESSION) -> Session:
        config = SessionConfig(title="t", parent_session_id=parent)
        made = self.sessions[session_id] = Session(session_id=session_id, config=config, status=status)
        return made

    async def get(self, session_id: str) -> Session:
        if session_id not in self.sessions:
            raise Gone("SESSION_NOT_FOUND", f"no such session: {session_id}")
        return self.sessions[session_id]

    async def at_rest(self, session_id: str, seconds: float) -> Session:
        self.waited.append(seconds)
        return await self.get(session_id)

    async def last_reply(self, session_id: str) -> str:
        return self.reply

    async def started(self, session_id: str) -> list[str]:
        return [each for each in self.sessions if each != SESSION] + ["sess_" + "g" * 26]

    async def start(self, grant: str, call: str, config: SessionConfig, content: str) -> Session:
        if self.problem is not None:
            raise self.problem
        self.sent.append((grant, "start", call, content))
        made = self.add()
        made.config.CopyFrom(config)
        return made

    async def send(self, grant: str, session_id: str, call: str, content: str) -> None:
        self.sent.append((grant, session_id, call, content))

    async def end(self, grant: str, session_id: str, reason: str) -> Session:
        self.sent.append((grant, session_id, "end", reason))
        return await self.get(session_id)


async def use(
    village: Village, name: str, since: float = 1_000.0, now: float = 1_000.0, may_rest: bool = True, **given: Any
) -> ToolResult:
    """Runs a tool as a call of the model does."""
    tools, config = SessionTools(village, lambda: now), config_of(village.sessions[SESSION].config)
    spec = next(spec for spec in tools.offered(config) if spec.name == name)
    value, wrong = checked(spec, json.dumps(given))
    assert not wrong
    asked = Asked(MemoryLog(), config, Standing(3, "grant"), name, value, "call", since, may_rest)
    return await tools.execute(asked)


def test_they_are_offered_where_they_are_asked_for() -> None:
    """By name, in one order, and only with limits; the one to write with also without."""
    tools = SessionTools(Village(), lambda: 0.0)

    def offered(config: SessionConfig) -> list[str]:
        return [spec.name for spec in tools.offered(config_of(config))]

    assert offered(FULL) == list(NAMES)
    assert offered(SessionConfig(mesh_tools=list(reversed(NAMES)))) == ["send_message"]
    assert offered(SessionConfig(child_limits=LIMITS)) == []
    assert offered(SessionConfig(child_limits=LIMITS, mesh_tools=["wait_for_session"])) == ["wait_for_session"]


async def test_a_child_is_started_under_the_grant() -> None:
    """The call's id makes it one; what it is told is a text, and what comes back is its id."""
    village = Village()
    result = await use(village, "start_session", title="t", message="do it")
    assert json.loads(result.output) == {"session": CHILD, "title": "t"}
    assert village.sent == [("grant", "start", "call", '[{"type": "text", "text": "do it"}]')]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"hands": []},
        {"hands": ["box"]},
        {"harness": "echo", "model": "n", "system": ""},
        {"hands": ["main", "box"]},
    ],
)
@pytest.mark.parametrize(
    "parent",
    [
        FULL,
        SessionConfig(child_limits=ChildLimits()),
        SessionConfig(child_limits=ChildLimits(max_depth=8), no_hands=True),
        SessionConfig(child_limits=LIMITS, hands={"shared": HandSpec(standing_hand="x", read_only=True)}),
    ],
)
def test_what_is_asked_for_is_what_a_parent_may_give(parent: SessionConfig, given: dict[str, Any]) -> None:
    """The session service refuses no child of any such parent: two rules that know nothing of each other agree."""
    known = set(parent.hands) or (set() if parent.no_hands else {"main"})
    if not known >= set(given.get("hands", ())):
        return
    child = child_of(parent, {"title": "t", **given})
    made = bounded(child, parent, SESSION, Used())
    assert (made.title, made.custom_tools, list(made.tool_policies)) == ("t", [], list(parent.tool_policies))
    assert not any(spec.standing_hand for spec in made.hands.values())
    assert max(0, made.child_limits.max_depth) < max(1, parent.child_limits.max_depth)


def test_a_child_has_no_blobs_of_its_parents() -> None:
    """A blob is its session's alone: a hand that wants another's would never come."""
    parent = SessionConfig()
    parent.CopyFrom(FULL)
    parent.hands["main"].resources.append(Resource(mount_path="/workspace/x", blob=BlobSource(blob_id="blob_x")))
    assert child_of(parent, {"title": "t"}).hands["main"] == FULL.hands["main"]


def test_a_child_is_like_its_parent_but_for_what_is_said() -> None:
    """Model, prompt, hands with what is put into them, servers, vaults, memories and labels; one level less."""
    child = child_of(FULL, {"title": "t", "model": "n"})
    assert (child.model, child.system, child.labels) == ("n", "s", {"team": "a"})
    assert set(child.hands) == {"main", "box"} and child.hands["main"] == FULL.hands["main"]
    assert (child.mcp_servers, child.vault_ids) == (FULL.mcp_servers, FULL.vault_ids)
    assert child.child_limits == ChildLimits(max_depth=1, max_children=3, budgets=LIMITS.budgets)
    leaf = child_of(child, {"title": "t", "hands": []})
    assert leaf.no_hands and not leaf.hands and not leaf.HasField("child_limits")
    assert list(leaf.mesh_tools) == ["send_message", "session_events"]


async def test_what_the_model_does_wrong_is_a_value() -> None:
    """A hand that is not there, a limit, a session of somebody else's."""
    village = Village()
    result = await use(village, "start_session", title="t", message="m", hands=["nowhere"])
    assert (result.outcome, village.sent) == ("TOOL_ERROR", [])
    village.problem = Refused("CHILD_LIMIT", "3 sessions in all", limit="max_children")
    assert await use(village, "start_session", title="t", message="m") == ToolResult("3 sessions in all", "TOOL_ERROR")
    village.add(parent="sess_" + "9" * 26)
    assert (await use(village, "wait_for_session", session=CHILD)).outcome == "TOOL_ERROR"
    assert (await use(village, "wait_for_session", session="sess_x")).outcome == "TOOL_ERROR"
    assert (await use(village, "send_message", session="parent", text="x")).outcome == "TOOL_ERROR"
    assert (village.sent, village.waited) == ([], [])


async def test_a_wait_brings_the_answer() -> None:
    """Text, status and what was used; a long answer is cut, and that is said."""
    village = Village()
    village.add().usage.input_tokens = 7
    village.reply = '[{"type":"thinking","thinking":"x"},{"type":"text","text":"a"},{"type":"text","text":"b"}]'
    told = json.loads((await use(village, "wait_for_session", session=CHILD)).output)
    assert (told["reply"], told["status"], told["tokens"]) == ("a\n\nb", "idle", 7) and "note" not in told
    village.reply = json.dumps([{"type": "text", "text": "x" * (MAX_REPLY + 1)}])
    told = json.loads((await use(village, "wait_for_session", session=CHILD)).output)
    assert len(told["reply"]) == MAX_REPLY and str(MAX_REPLY + 1) in told["note"]


async def test_a_long_wait_rests() -> None:
    """After a moment, until a look that is further away the longer it has waited, and never beyond the call's own time,
    which counts from when it was first asked."""
    village = Village()
    village.add(status=RUNNING)
    for since, now, until in ((1_000, 1_000, 1_000 + RECHECK_SECONDS), (1_000, 1_200, 1_300), (1_000, 1_100, 1_200)):
        with pytest.raises(NotYet) as waits:
            await use(village, "wait_for_session", since=since, now=now, session=CHILD)
        assert waits.value.until == until
    assert village.waited == [HERE_SECONDS] * 3
    told = json.loads((await use(village, "wait_for_session", since=1_000, now=1_300, session=CHILD)).output)
    assert told["status"] == "running" and "still at work" in told["note"] and "reply" not in told
    await use(village, "wait_for_session", may_rest=False, session=CHILD, seconds=40)
    assert village.waited[-2:] == [0.0, 40.0]


async def test_messages_say_who_wrote() -> None:
    """To a child by its id, to the parent by `parent`; once for each call."""
    village = Village()
    village.add()
    await use(village, "send_message", session=CHILD, text="go on")
    village.sessions[SESSION].config.parent_session_id = "sess_" + "p" * 26
    await use(village, "send_message", session="parent", text="done")
    texts = [json.loads(content) for *_, content in village.sent]
    assert [it[1:3] for it in village.sent] == [(CHILD, "call"), ("sess_" + "p" * 26, "call")]
    assert texts[0] == [{"type": "text", "text": f"From the session {SESSION}:"}, {"type": "text", "text": "go on"}]


async def test_children_are_listed_and_ended() -> None:
    """Newest first as the log has them; one that was deleted is said to be, and nothing is said of another's.

    A log that was imported names as children whatever its author likes.
    """
    village = Village()
    village.add()
    village.add("sess_" + "f" * 26, parent="sess_" + "p" * 26)
    told = json.loads((await use(village, "list_sessions")).output)["sessions"]
    assert [(it["session"], it["status"]) for it in told] == [
        (CHILD, "idle"),
        ("sess_" + "f" * 26, "deleted"),
        ("sess_" + "g" * 26, "deleted"),
    ]
    assert told[1].keys() == {"session", "status"}
    await use(village, "end_session", session=CHILD, reason="enough")
    assert village.sent == [("grant", CHILD, "end", "enough")]
