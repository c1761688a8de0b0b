"""The context's speed and its cache: how fast a long session is taken up, and how much of its prompts is cached.

`wake`: a session of 5,000 events with three summaries, read, folded and viewed by a harness that has never seen it.
`cache`: a session of 40 turns in front of the scripted model, which accounts for the cache as the API does. What could
have been read is computed from the requests, which are made again from the log: each request could begin with all of
the one before, unless a summary has taken its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.brain.progress import telling, told
from bench.figure import Figure
from handmesh.client.client import Client, connect
from handmesh.client.session import Session
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.scripted_model.breakpoints import segments
from handmesh.scripted_model.usage import MIN_CACHED_TOKENS, count_tokens
from handmesh.session.v1 import event_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.harness.adapters.codec import fact_of
from services.harness.adapters.session import RemoteLog
from services.harness.core import Fact
from services.harness.loops.messages import compaction, tokens
from services.harness.loops.messages.policy import policy_of
from services.harness.loops.messages.request import written
from services.harness.loops.messages.view import view
from services.harness.model_profiles import MODEL_PROFILES, SMALL
from services.harness.turn.state import State, fold, fold_all
from services.kit import channels
from services.kit.ids import mint

EVENTS = 5_000
COMPACTIONS = 3
WAKES = {"ci": 15, "full": 100}
WAKE_MS = 150.0
TURNS = 40
CHANGED_AT = 20  # the turn before which the system prompt changes
SHARE = 0.97
RESULT = "a line of what a command has said\n" * 52  # so that three windows are filled, and a part of another one
BACKGROUND = "What the session is about, at some length. " * 150
MODEL = "claude-opus-4-8"
TURN_SECONDS = 60.0
SCRIPT = """
default:
  repeat: true
  steps:
    - say:
        - thinking: Both at once.
        - text: I do both at once.
        - tool_use: {tool: bash, input: {command: seq 300}}
        - tool_use: {tool: bash, input: {command: seq 20}}
    - say:
        - text: And once more.
        - tool_use: {tool: bash, input: {command: seq 30}}
    - say: [{text: It is done.}]
"""


async def measure(size: str, only: str) -> AsyncIterator[Any]:
    """Yields the figures of both parts, on one mesh."""
    async with _started() as (mesh, client):
        if "wake".startswith(only):
            async for figure in _wake(mesh, client, WAKES[size]):
                yield figure
        if "cache".startswith(only):
            async for figure in _cache(client):
                yield figure


@asynccontextmanager
async def _started() -> AsyncIterator[tuple[Mesh, Client]]:
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        script = Path(folder) / "script.yaml"
        script.write_text(SCRIPT)
        settings = MeshSettings(
            Path(folder) / "mesh", Scripted(script), os.environ, Ports.free(), capacity=4, log_level="warning"
        )
        async with await Mesh.start(settings) as mesh, connect(data_directory=settings.data_directory) as client:
            yield mesh, client


# --- a long session ---
@dataclass
class Writer:
    """Writes a session's log as a harness would, with what the model's API would count."""

    log: RemoteLog
    session: Session
    state: State
    prompt: int = 0  # tokens of the next request

    async def say(self, *events: pb.Event) -> None:
        """Appends as the harness."""
        appended = await self.log.emit(events, self.state.epoch, None)
        self._take(events, appended.first_position)

    async def hear(self, text: str) -> None:
        """Appends a client's message."""
        event = pb.Event(event_id=mint("m"), message_received=pb.MessageReceived(content_json=_text(text)))
        position = await self.session.emit(event)
        self._take((event,), position)

    def _take(self, events: tuple[pb.Event, ...], position: int) -> None:
        for place, event in enumerate(events, position):
            mine = pb.Event()
            mine.CopyFrom(event)
            mine.position, mine.epoch = place, self.state.epoch
            fact = fact_of(mine)
            self.state = fold(self.state, fact)
            self.prompt += tokens.of_facts([fact]) if mine.WhichOneof("kind") in _TOLD else 0

    def reply(self, number: str, call: bool) -> pb.Event:
        """Makes an answer to everything that is there."""
        content: list[dict[str, Any]] = [{"type": "text", "text": f"Step {number}."}]
        if call:
            content.append({"type": "tool_use", "id": f"call_{number}", "name": "bash", "input": {"command": "ls"}})
        replied = pb.ModelReplied(
            content_json=json.dumps(content),
            stop_reason="tool_use" if call else "end_turn",
            usage=pb.TokenUsage(cache_read_input_tokens=self.prompt, output_tokens=20),
            read_position=self.state.head,
        )
        return pb.Event(event_id=f"reply-{number}", model_replied=replied)


_TOLD = ("message_received", "model_replied", "tool_finished")


def _text(text: str) -> str:
    return json.dumps([{"type": "text", "text": text}])


async def _write(log: RemoteLog, session: Session) -> None:
    """Writes turns of a call each until there are enough events, with a summary whenever one is due."""
    writer = Writer(log, session, fold_all([fact_of(event) async for event in session.events()]))
    woke = pb.Event(event_id=mint("woke"), harness_woke=pb.HarnessWoke(harness="by_hand", instance="bench"))
    taken = await log.emit([woke], 0, writer.state.head)
    writer._take((woke,), taken.first_position)
    policy = policy_of("", SMALL)
    for turn in telling("turns of the long session", range(EVENTS)):
        if writer.state.head >= EVENTS:
            return
        await writer.hear(f"message {turn}")
        if compaction.due(writer.state, policy):
            end = compaction.end_of(writer.state)
            content = compaction.content_of("What was done. " * 300, writer.state, end, policy)
            summary = pb.ContextCompacted(from_position=1, to_position=end, content_json=content, policy="compaction")
            writer.prompt = tokens.of_text(content)
            await writer.say(pb.Event(event_id=f"compacted-{turn}", context_compacted=summary))
        call = f"call_{turn}.1"
        started = pb.ToolStarted(tool_use_id=call, name="bash", hand="main")
        await writer.say(writer.reply(f"{turn}.1", call=True), pb.Event(event_id=mint("s"), tool_started=started))
        finished = pb.ToolFinished(tool_use_id=call)
        finished.result.output = RESULT
        await writer.say(pb.Event(event_id=f"finished-{call}", tool_finished=finished))
        last = writer.reply(f"{turn}.2", call=False)
        ended = pb.TurnEnded(reason=pb.TURN_END_REASON_DONE, read_position=writer.state.head)
        await writer.say(last, pb.Event(event_id=f"ended-{turn}", turn_ended=ended))


async def _wake(mesh: Mesh, client: Client, wakes: int) -> AsyncIterator[Any]:
    session = await client.create_session(SessionConfig(harness="by_hand", model=MODEL, system=BACKGROUND))
    parts: dict[str, list[float]] = {"read": [], "fold": [], "view": []}
    policy = policy_of("", SMALL)
    async with channels.connect(mesh.settings.ports.mesh("session"), mesh.files.tls / "harness") as channel:
        stub = SessionServiceStub(channel)
        await _write(RemoteLog(stub, session.id), session)
        for _ in telling("wakes", range(wakes)):
            begun = time.perf_counter()
            facts = await _read(RemoteLog(stub, session.id))
            read = time.perf_counter()
            state = fold_all(facts)
            folded = time.perf_counter()
            request = written(view(state, MODEL, policy=policy))
            for name, start, end in (
                ("read", begun, read),
                ("fold", read, folded),
                ("view", folded, time.perf_counter()),
            ):
                parts[name].append((end - start) * 1_000)
    summaries = sum(event.HasField("context_compacted") for event in [it async for it in session.events()])
    assert summaries == COMPACTIONS, f"the log has {summaries} summaries"
    whole = tuple(map(sum, zip(*parts.values(), strict=True)))
    shown = {"events": state.head, "summaries": summaries, **{f"{name}_ms": _middle(parts[name]) for name in parts}}
    yield Figure("wake of a session of 5,000 events and 3 summaries, to its request", "ms", whole, WAKE_MS, more=shown)
    size = tokens.of_text(request.body.decode())
    counted = {"as_the_scripted_model_counts": count_tokens(json.loads(request.body))}
    yield Figure("its request, by our own estimate", "tokens", (float(size),), float(SMALL.window), more=counted)


async def _read(log: RemoteLog) -> list[Fact]:
    facts: list[Fact] = []
    async for page in log.follow(1):
        facts += page.facts
        if facts and facts[-1].position >= page.last_position:
            break
    return facts


def _middle(samples: list[float]) -> float:
    return round(sorted(samples)[len(samples) // 2], 1)


# --- what is cached ---
async def _cache(client: Client) -> AsyncIterator[Any]:
    told("context: a session of 40 turns")
    session = await client.create_session(SessionConfig(model=MODEL, system=BACKGROUND))
    for turn in range(TURNS):
        if turn == CHANGED_AT:
            config = SessionConfig(model=MODEL, system="Be brief. " + BACKGROUND)
            await session.update(config)
        await session.send(f"turn {turn}")
        await _until_ended(session, turn + 1)
    events = [event async for event in session.events()]
    for sandbox in await client.sandboxes(session.id):
        await client.release(sandbox.sandbox_id)
    bodies = _requests(events)
    replies = [event.model_replied for event in events if event.HasField("model_replied")]
    read = sum(it.usage.cache_read_input_tokens for it in replies)
    prompts = [count_tokens(body) for body in bodies]
    possible = sum(prompt for prompt in prompts[:-1] if prompt >= MIN_CACHED_TOKENS)  # each begins with the one before
    shown = {
        "requests": len(bodies),
        "of_the_whole_prompts": round(read / sum(prompts), 4),
        "begin_with_the_one_before": sum(_begins_alike(before, after) for before, after in pairwise(bodies)),
        "hashes_say_so": _unbroken(replies),
        "markers_at_most": max(json.dumps(body).count('"cache_control"') for body in bodies),
    }
    yield Figure("cached share of what could be", "of 1", (read / possible,), SHARE, least=True, more=shown)


async def _until_ended(session: Session, turns: int) -> None:
    async with asyncio.timeout(TURN_SECONDS):
        ended = 0
        async for event in session.watch():
            ended += event.HasField("turn_ended")
            if ended >= turns:
                return


def _requests(events: list[pb.Event]) -> list[dict[str, Any]]:
    """Makes each reply's request again from the log; the log's hash says that it is the one that was sent."""
    state, bodies = State(), []
    states: dict[int, State] = {}
    for event in events:
        if event.HasField("model_replied"):
            replied = event.model_replied
            before = states[replied.read_position]
            body = written(view(before, MODEL, policy=policy_of("", MODEL_PROFILES[MODEL].context))).body
            assert hashlib.sha256(body).hexdigest() == replied.request_hash, "the log does not give what was sent"
            bodies.append(json.loads(body))
        state = fold(state, fact_of(event))
        states[event.position] = state
    return bodies


def _begins_alike(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Tells whether a request begins with all of the one before, block by block."""
    one, other = ([segment.value for segment in segments(body)] for body in (before, after))
    return other[: len(one)] == one


def _unbroken(replies: list[pb.ModelReplied]) -> int:
    return sum(after.prefix_hash == before.prompt_hash for before, after in pairwise(replies))
