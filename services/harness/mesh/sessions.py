"""The tools with which a session starts others, writes to them, waits for them and ends them.

What it may is decided by the session service, from the log of the session that asks; this says it in a model's words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from handmesh.session.v1.config_pb2 import ChildLimits, SessionConfig
from handmesh.session.v1.event_pb2 import TurnEndReason
from handmesh.session.v1.session_pb2 import Session, SessionStatus
from services.harness.blocks import text_of
from services.harness.core import Config, ToolResult, ToolSpec
from services.harness.mesh.tool import Asked, NotYet
from services.kit.errors import Denied, Gone, Invalid, Refused

WAIT_SECONDS = 300  # when the model names no time
MAX_WAIT_SECONDS = 24 * 60 * 60
HERE_SECONDS = 10.0  # of a wait that are spent with the session in memory
RECHECK_SECONDS = 60.0  # until a child is looked at though nothing was said of it; later, as long as it has waited
MAX_REPLY = 64 * 1024  # characters of a child's answer
MAX_LISTED = 50  # children, the newest ones
PARENT = "parent"  # what a session calls the one that started it
OF_CHILDREN = ("start_session", "wait_for_session", "end_session", "list_sessions")
WRITING = "send_message"
NAMES = (*OF_CHILDREN, WRITING)

AT_WORK = (SessionStatus.SESSION_STATUS_RUNNING, SessionStatus.SESSION_STATUS_RETRYING)
_STRING: dict[str, Any] = {"type": "string", "minLength": 1}
_SESSION = {**_STRING, "description": "The session's id, as start_session said it."}


class Others(Protocol):
    """Other sessions, as a session may reach them. `grant` says whose; errors are ServiceErrors."""

    async def get(self, session_id: str) -> Session:
        """Returns a session."""

    async def at_rest(self, session_id: str, seconds: float) -> Session:
        """Waits until a session is not at work, at most so long, and returns it."""

    async def last_reply(self, session_id: str) -> str:
        """Returns the content of the model's last answer in a session, JSON text of blocks; empty before any."""

    async def started(self, session_id: str) -> list[str]:
        """Returns the ids of the sessions that one has started, newest first."""

    async def start(self, grant: str, call: str, config: SessionConfig, content: str) -> Session:
        """Starts a child with a first message, JSON text of blocks. Idempotent by the call's id."""

    async def send(self, grant: str, session_id: str, call: str, content: str) -> None:
        """Writes to a child or the parent. Idempotent by the call's id."""

    async def end(self, grant: str, session_id: str, reason: str) -> Session:
        """Ends a child. Idempotent."""


class SessionTools:
    """`start_session`, `send_message`, `wait_for_session`, `end_session` and `list_sessions` (see `MeshTools`).

    `now` is Unix time in seconds.
    """

    def __init__(self, others: Others, now: Callable[[], float]) -> None:
        self._others = others
        self._now = now

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        """Returns those that the configuration names; without limits for children only the one to write with."""
        names = [name for name in NAMES if name in config.mesh_tools and (config.child_limits or name == WRITING)]
        return [_SPECS[name] for name in names]

    async def execute(self, asked: Asked) -> ToolResult:
        """Runs one (see `MeshTools.execute`)."""
        tools = {
            "start_session": self._start,
            "send_message": self._send,
            "wait_for_session": self._wait,
            "end_session": self._end,
            "list_sessions": self._list,
        }
        try:
            return ToolResult(json.dumps(await tools[asked.name](asked), ensure_ascii=False), "OK")
        except (Denied, Gone, Invalid, Refused) as problem:
            return ToolResult(problem.message, "TOOL_ERROR")

    async def _start(self, asked: Asked) -> Mapping[str, Any]:
        mine = await self._others.get(asked.log.session_id)
        config = child_of(mine.config, asked.input)
        content = _content(asked.input["message"])
        made = await self._others.start(asked.under.grant, asked.execution_id, config, content)
        return {"session": made.session_id, "title": made.config.title}

    async def _send(self, asked: Asked) -> Mapping[str, Any]:
        mine, its = asked.log.session_id, asked.input["session"]
        if its == PARENT:
            its = (await self._others.get(mine)).config.parent_session_id
            if not its:
                raise Refused("SESSION_NOT_FOUND", "no other session started this one: it has no parent")
        content = _content(f"From the session {mine}:", asked.input["text"])
        await self._others.send(asked.under.grant, its, asked.execution_id, content)
        return {"session": its, "sent": True}

    async def _wait(self, asked: Asked) -> Mapping[str, Any]:
        session_id, began = asked.input["session"], asked.since or self._now()
        await self._child(asked, session_id)
        deadline = began + asked.input.get("seconds", WAIT_SECONDS)
        left = max(0.0, deadline - self._now())
        found = await self._others.at_rest(session_id, min(left, HERE_SECONDS) if asked.may_rest else left)
        now = self._now()
        if found.status in AT_WORK and asked.may_rest and now < deadline:
            raise NotYet(min(deadline, now + max(RECHECK_SECONDS, now - began)))
        told = _told(found)
        if found.status in AT_WORK:
            return {**told, "note": "It is still at work. Wait again, or do something else meanwhile."}
        reply = text_of(await self._others.last_reply(session_id))
        cut = (
            {"note": f"The answer has {len(reply)} characters; these are the first."} if len(reply) > MAX_REPLY else {}
        )
        return {**told, "reply": reply[:MAX_REPLY], **cut}

    async def _end(self, asked: Asked) -> Mapping[str, Any]:
        reason = asked.input.get("reason", "")
        return _told(await self._others.end(asked.under.grant, asked.input["session"], reason))

    async def _list(self, asked: Asked) -> Mapping[str, Any]:
        ids = await self._others.started(asked.log.session_id)
        found = []
        for session_id in ids[:MAX_LISTED]:
            try:
                found.append(_told(await self._child(asked, session_id)))
            except Gone:  # or a log that was imported, or forked, names one that is no child of this session
                found.append({"session": session_id, "status": "deleted"})
        return {"sessions": found, **({"older": len(ids) - MAX_LISTED} if len(ids) > MAX_LISTED else {})}

    async def _child(self, asked: Asked, session_id: str) -> Session:
        """Returns a child. Raises Gone for a session that this one has not started."""
        found = await self._others.get(session_id)
        if found.config.parent_session_id != asked.log.session_id:
            raise Gone("SESSION_NOT_FOUND", f"no such session of this one's: {session_id}")
        return found


def child_of(mine: SessionConfig, given: Mapping[str, Any]) -> SessionConfig:
    """Returns what to ask for: a session like this one but for what the model says, with hands of its own, without the
    client's tools, which nobody would answer, and one level less."""
    child = SessionConfig()
    child.CopyFrom(mine)
    for field in (
        "tool_policies",
        "custom_tools",
        "budgets",
        "child_limits",
        "agent",
        "parent_session_id",
        "mesh_tools",
    ):
        child.ClearField(field)  # policies and budgets come from the session service
    child.title = given["title"]
    for field in ("harness", "model", "system"):
        if field in given:
            setattr(child, field, given[field])
    if child.harness != mine.harness:
        child.ClearField("context_policy_json")
    _choose_hands(child, given.get("hands"))
    limits = mine.child_limits
    deeper = limits.max_depth > 1
    if deeper:
        budgets = limits.budgets
        child.child_limits.CopyFrom(
            ChildLimits(max_depth=limits.max_depth - 1, max_children=limits.max_children, budgets=budgets)
        )
    child.mesh_tools.extend(name for name in mine.mesh_tools if deeper or name not in OF_CHILDREN)
    return child


def _choose_hands(child: SessionConfig, names: Sequence[str] | None) -> None:
    """Leaves the hands that were named, by default all but those that stand outside: those have one owner."""
    standing = [name for name, spec in child.hands.items() if spec.standing_hand]
    had = bool(child.hands)
    if names is None:
        unwanted = standing
    else:
        known = set(child.hands) or (set() if child.no_hands else {"main"})
        if not known >= set(names):
            told = ", ".join(sorted(known)) or "none"
            raise Invalid("CONFIG_INVALID", f"this session's hands are: {told}", field="hands")
        unwanted = [name for name in child.hands if name not in names]
    for name in unwanted:
        del child.hands[name]
    for spec in child.hands.values():
        mine = [resource for resource in spec.resources if resource.WhichOneof("source") != "blob"]
        del spec.resources[:]  # a blob is this session's alone: a hand that wants it would never come
        spec.resources.extend(mine)
    if not child.hands and (had or names == []):
        child.no_hands = True


def _content(*texts: str) -> str:
    return json.dumps([{"type": "text", "text": text} for text in texts], ensure_ascii=False)


def _told(session: Session) -> dict[str, Any]:
    """Says what the model needs to know of a session."""
    usage = session.usage
    told: dict[str, Any] = {
        "session": session.session_id,
        "title": session.config.title,
        "status": _word(SessionStatus, session.status, "SESSION_STATUS_"),
        "turns": session.turns,
        "tokens": usage.input_tokens
        + usage.output_tokens
        + usage.cache_creation_input_tokens
        + usage.cache_read_input_tokens,
        "cost_micros": session.cost_micros,
    }
    if session.last_turn_end:
        told["last_turn"] = _word(TurnEndReason, session.last_turn_end, "TURN_END_REASON_")
    if session.paused_budget:
        told["paused_at"] = session.paused_budget
    return told


def _word(enum: Any, value: int, prefix: str) -> str:
    return str(enum.Name(value)).removeprefix(prefix).lower() if value in enum.values() else str(value)


def _spec(name: str, description: str, required: Sequence[str], read_only: bool = False, **fields: Any) -> ToolSpec:
    schema = {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}
    return ToolSpec(name, description, json.dumps(schema), idempotent=True, read_only=read_only)


_SPECS = {
    spec.name: spec
    for spec in (
        _spec(
            "start_session",
            "Starts another session: an agent of its own that works beside this one, with hands of its own that share "
            "nothing with this one's. Its first message says all that it needs to know: it sees nothing of this "
            "conversation. Returns its id at once; wait_for_session brings its answer. How many may be started, how "
            "deep, and what they may use is limited.",
            ("title", "message"),
            title={**_STRING, "maxLength": 200, "description": "A few words for people who look at the list."},
            message={**_STRING, "maxLength": 200_000, "description": "What it is to do."},
            harness={**_STRING, "description": "The harness type. Default: this session's."},
            model={**_STRING, "description": "The model's name. Default: this session's."},
            system={"type": "string", "description": "Its system prompt. Default: this session's."},
            hands={
                "type": "array",
                "items": _STRING,
                "description": "Names of this session's hands of which it gets new ones of the same kind. "
                "Default: all. An empty list: none.",
            },
        ),
        _spec(
            "wait_for_session",
            "Waits until a session that this one started is done with its turn, and returns its last answer, what it "
            "does and what it has used. Returns earlier when the time is over, and at once when it is at rest.",
            ("session",),
            read_only=True,
            session=_SESSION,
            seconds={
                "type": "number",
                "minimum": 0,
                "maximum": MAX_WAIT_SECONDS,
                "description": f"How long to wait at most. Default: {WAIT_SECONDS}.",
            },
        ),
        _spec(
            "end_session",
            "Ends a session that this one started, for good, with all that it has started itself. Its log stays.",
            ("session",),
            session=_SESSION,
            reason={"type": "string", "maxLength": 1_000, "description": "Why, for people to read."},
        ),
        _spec("list_sessions", "Lists the sessions that this one started, newest first.", (), read_only=True),
        _spec(
            WRITING,
            "Writes to a session that this one started, or to the one that started this one: `parent`. A session that "
            "is at rest begins a turn with it. Nothing is returned but that it was sent.",
            ("session", "text"),
            session={**_STRING, "description": "The session's id, or `parent`."},
            text={**_STRING, "maxLength": 200_000, "description": "What to say."},
        ),
    )
}
