"""One session, from its first message to the end of its turn, whatever dies meanwhile; and what is wrong then."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from handmesh.client import HandmeshError, Session
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1 import config_pb2, session_pb2
from handmesh.session.v1 import event_pb2 as pb
from services.kit.ids import mint
from services.session.verify import Violation
from tests.crash import memory
from tests.crash.crew import Crew
from tests.support.checker import World, check

TURN_SECONDS = 60.0
INSIST_SECONDS = 60.0
_AGAIN = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED")

T = TypeVar("T")


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks until there is an answer: what a client does that wants it."""
    async with asyncio.timeout(INSIST_SECONDS):
        while True:
            try:
                return await ask()
            except HandmeshError as problem:
                if problem.code not in _AGAIN:
                    raise
            await asyncio.sleep(0.05)


def config_of(crew: Crew, kind: str, harness: str = "") -> config_pb2.SessionConfig:
    """Returns what a session of this kind is made with. `harness` is its type, if not the default one."""
    config = _config_of(crew, kind)
    config.harness = harness or config.harness
    return config


def _config_of(crew: Crew, kind: str) -> config_pb2.SessionConfig:
    match kind:
        case "asked":
            ask = config_pb2.TOOL_POLICY_ACTION_ASK
            return config_pb2.SessionConfig(tool_policies=[config_pb2.ToolPolicy(pattern="bash", action=ask)])
        case "yours":
            schema = '{"type": "object", "properties": {}}'
            tool = config_pb2.CustomTool(name="colour", description="Your colour.", input_schema_json=schema)
            return config_pb2.SessionConfig(custom_tools=[tool])
        case "long":  # in each request but the first there is too much
            return config_pb2.SessionConfig(context_policy_json='{"compaction": {"at": 2}}')
        case "shop":
            server = config_pb2.McpServer(name="shop", url=crew.shop.url)
            return config_pb2.SessionConfig(no_hands=True, mcp_servers=[server], vault_ids=[crew.shop.vault_id])
        case "family":
            tools, limits = ["start_session", "wait_for_session"], config_pb2.ChildLimits(max_children=1)
            return config_pb2.SessionConfig(mesh_tools=tools, child_limits=limits)
        case "memory":
            store = config_pb2.MemoryAccess(memory_store_id=crew.memory_store_id, name="notes")
            return config_pb2.SessionConfig(no_hands=True, memory_stores=[store])
        case "echo" | "review":
            return config_pb2.SessionConfig(harness=kind)
    return config_pb2.SessionConfig()


@dataclass
class Story:
    """A session, what its client was told, and what it saw."""

    crew: Crew
    kind: str
    session: Session
    acknowledged: dict[str, int] = field(default_factory=dict)
    watched: list[pb.Event] = field(default_factory=list)
    previews: list[session_pb2.Preview] = field(default_factory=list)
    seconds: float = 0.0  # the longest silence

    @classmethod
    async def begin(cls, crew: Crew, kind: str, *, at_once: bool = False, harness: str = "") -> Story:
        """Makes a session. With `at_once` its message comes with it, else `tell` sends it."""
        request = session_pb2.CreateSessionRequest(request_id=mint("req"), config=config_of(crew, kind, harness))
        if at_once:
            request.initial_events.append(_message(f"first-{request.request_id}", f"{kind} {request.request_id}"))
            await _prepare(crew, kind, f"{kind} {request.request_id}")
        stub, link = crew.client.session_stub, crew.client.session_link
        answer = await insist(lambda: link.call(stub.CreateSession, request))
        story = cls(crew, kind, crew.client.session(answer.session.session_id))
        if at_once:
            story.acknowledged[request.initial_events[0].event_id] = 2
        else:
            await _prepare(crew, kind, f"{kind} {story.session.id}")
        return story

    async def emit(self, event: pb.Event) -> None:
        """Emits an event until it is acknowledged, and remembers that it was."""
        self.acknowledged[event.event_id] = await insist(lambda: self.session.emit(event))

    async def tell(self) -> None:
        """Sends the message, answers what is asked, and returns when the turn has ended."""
        if not self.acknowledged:
            await self.emit(_message(f"message-{self.session.id}", f"{self.kind} {self.session.id}"))
        await self.follow()

    async def follow(self) -> None:
        """Watches and answers until the turn has ended."""
        async with asyncio.timeout(TURN_SECONDS):
            last = time.monotonic()
            async for seen in self.session.watch(len(self.watched) + 1, previews=True):
                if isinstance(seen, session_pb2.Preview):
                    self.previews.append(seen)
                    continue
                self.watched.append(seen)
                self.seconds, last = max(self.seconds, time.monotonic() - last), time.monotonic()
                await self._answer(seen)
                if seen.HasField("turn_ended"):
                    return

    async def _answer(self, event: pb.Event) -> None:
        if event.HasField("tool_confirmation_requested"):
            asked = event.tool_confirmation_requested
            said = pb.ToolConfirmed(tool_use_id=asked.tool_use_id, allowed=True, call_hash=asked.call_hash)
            await self.emit(pb.Event(event_id=f"yes-{asked.tool_use_id}", tool_confirmed=said))
        if event.HasField("custom_tool_requested"):
            call = event.custom_tool_requested.tool_use_id
            result = ToolResult(output="blue", outcome=ToolOutcome.TOOL_OUTCOME_OK)
            given = pb.CustomToolAnswered(tool_use_id=call, result=result)
            await self.emit(pb.Event(event_id=f"mine-{call}", custom_tool_answered=given))

    async def children(self) -> list[Story]:
        """Returns the stories of the sessions that this one has started: two parallel calls each."""
        started = [event.child_started for event in await self.log() if event.HasField("child_started")]
        return [Story(self.crew, "both", self.crew.client.session(it.child_session_id)) for it in started]

    def owner(self) -> int:
        """Returns the process id of the harness that has the session, or had it last."""
        woke = [event.harness_woke for event in self.watched if event.HasField("harness_woke")]
        return int(woke[-1].instance.rpartition(":")[2]) if woke else 0

    async def log(self) -> list[pb.Event]:
        """Returns the whole log as it is now."""

        async def read() -> list[pb.Event]:
            return [event async for event in self.session.events()]

        return await insist(read)

    async def violations(self, settled: bool = True) -> list[Violation]:
        """Looks at the log and the world, and asks the checker, and the service's own one."""
        log = await self.log()
        sandboxes = [it.sandbox_id for it in await insist(lambda: self.crew.client.sandboxes(self.session.id))]
        executions = {sandbox: await self._executions(sandbox) for sandbox in sandboxes}
        world = World(
            settled=settled,
            executions=executions,
            effects=await self._effects(log, sandboxes),
            watched=[self.watched],
            previews=self.previews,
            sandboxes=frozenset(sandboxes),
            seconds=self.seconds,
        )
        client = self.crew.client
        request = session_pb2.VerifySessionRequest(session_id=self.session.id)
        own = await insist(lambda: client.session_link.call(client.session_stub.VerifySession, request))
        theirs = [Violation(it.invariant, it.position, it.message) for it in own.violations]
        return [*check(log, self.acknowledged, world), *theirs]

    async def _executions(self, sandbox_id: str) -> dict[str, bool]:
        found = await insist(lambda: self.crew.client.executions(sandbox_id))
        return {it.execution_id: it.running for it in found}

    async def running(self) -> bool:
        """Tells whether a command of the session runs at this moment, as its sandbox says."""
        sandboxes = await insist(lambda: self.crew.client.sandboxes(self.session.id))
        return any([any((await self._executions(it.sandbox_id)).values()) for it in sandboxes])

    async def _effects(self, log: list[pb.Event], sandboxes: list[str]) -> dict[str, int]:
        """Counts what each call did: lines in the workspaces that are still there, or notes in the shop."""
        lines = Counter[str]()
        for sandbox in sandboxes:
            lines.update(await self._lines(sandbox))
        gone = {
            event.tool_started.tool_use_id
            for event in log
            if event.HasField("tool_started") and event.tool_started.sandbox_id not in ("", *sandboxes)
        }
        notes = await asyncio.to_thread(_notes, self.crew.shop.calls_url) if self.kind == "shop" else Counter[str]()
        found = {}
        for call in calls_of(log):
            if call["id"] in gone:
                continue
            if call["name"].endswith("bash"):
                found[call["id"]] = lines[call["input"]["command"].split()[1]]
            elif call["name"].endswith("add_note"):
                found[call["id"]] = notes[call["input"]["text"]]
            elif call["name"] == "memory":
                found[call["id"]] = await self._changes(call["input"])
        return found

    async def _changes(self, given: dict[str, Any]) -> int:
        """Counts how often a call of the memory tool has changed its file."""
        path, store = given["path"].removeprefix("/memories/notes/"), self.crew.memory_store_id
        versions = await insist(lambda: memory.versions(self.crew.client, store, path))
        return versions - (1 if given["command"] == "insert" else 0)

    async def _lines(self, sandbox_id: str) -> list[str]:
        client = self.crew.client
        request = sandbox_pb2.ExecuteRequest(
            sandbox_id=sandbox_id, name="bash", input='{"command": "cat runs 2>/dev/null || true"}'
        )
        answer = await insist(lambda: client.sandbox_link.call(client.sandbox_stub.Execute, request))
        return list(answer.result.output.split())


async def _prepare(crew: Crew, kind: str, text: str) -> None:
    """Makes what a session finds when it is told this."""
    if kind == "memory":
        await insist(lambda: memory.write(crew.client, crew.memory_store_id, f"{text}/old"))


def calls_of(log: list[pb.Event]) -> list[dict[str, Any]]:
    """Returns the tool calls of all replies."""
    return [
        block
        for event in log
        if event.HasField("model_replied")
        for block in json.loads(event.model_replied.content_json)
        if block["type"] == "tool_use"
    ]


def outcomes(log: list[pb.Event]) -> list[str]:
    """Returns how the calls ended, in order."""
    found = [event.tool_finished.result.outcome for event in log if event.HasField("tool_finished")]
    return [ToolOutcome.Name(it).removeprefix("TOOL_OUTCOME_") for it in found]


def count(log: list[pb.Event], kind: str) -> int:
    """Counts the events of a kind."""
    return sum(event.HasField(kind) for event in log)  # type: ignore[arg-type]


def _message(event_id: str, text: str) -> pb.Event:
    content = json.dumps([{"type": "text", "text": text}])
    return pb.Event(event_id=event_id, message_received=pb.MessageReceived(content_json=content))


def _notes(url: str) -> Counter[str]:
    with urllib.request.urlopen(url) as answer:
        calls = json.load(answer)["calls"]
    return Counter(call["arguments"]["text"] for call in calls if call["tool"] == "add_note")
