"""How the `claude_code` type answers: with what Claude Code says, whose process runs as long as a turn does.

The process stays while its calls run, and goes on with their results. Whenever anything else was said, or it is gone,
another one is started from the log. So the log is the only thing that a session has.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.adapters import codec
from services.harness.answer import Show
from services.harness.blocks import Block, text_block
from services.harness.core import ToolSpec
from services.harness.journal import Journal
from services.harness.loops.claude_code import command
from services.harness.loops.claude_code.conversation import (
    Blobs,
    can_give,
    conversation,
    only_results_since,
    result_blocks,
    said,
)
from services.harness.loops.claude_code.failures import Summarised, ended
from services.harness.loops.claude_code.home import Home
from services.harness.loops.claude_code.slots import Slots
from services.harness.loops.claude_code.transcript import beginning
from services.harness.mesh.calls import MeshCalls
from services.harness.ports import Answer, ModelFailure, Ports
from services.harness.turn import lately
from services.harness.turn.policies import routes_of
from services.harness.turn.replies import Replies
from services.harness.turn.state import State
from services.harness.turn.traits import Traits
from services.kit import failpoints
from services.kit.serving import read_secret

if TYPE_CHECKING:
    from services.harness.loops.claude_code.running import Running

TRAITS = Traits("claude_code")
NO_KEY = (
    "this harness has no key for the model's API: set ANTHROPIC_API_KEY for `handmesh up`, or HANDMESH_MODEL_KEY_FILE "
    "for the harness"
)


class Place:
    """Where Claude Code is, and what all sessions of this harness share of it."""

    def __init__(self, binary: Path, key_file: Path | None, base_url: str | None, processes: int) -> None:
        self.binary = binary
        self.base_url = base_url
        self.slots = Slots(processes)
        self._key_file = key_file

    def key(self) -> str:
        """Reads the model's key. Raises ModelFailure when there is none."""
        key = read_secret(self._key_file) if self._key_file and self._key_file.exists() else ""
        if not key:
            raise ModelFailure("MODEL_KEY_MISSING", NO_KEY, retryable=False)
        return key


class ClaudeCode:
    """One run's Claude Code (see `Answering`)."""

    told: lately.Told | None = None  # nothing is remembered from one run to the next

    def __init__(
        self, place: Place, journal: Journal, ports: Ports, state: Callable[[], State], _told: lately.Told | None
    ) -> None:
        self._place = place
        self._journal = journal
        self._ports = ports
        self._state = state
        self._mesh = MeshCalls(ports.mesh)
        self._replies = Replies(journal, ports, state, TRAITS)
        self._process: _Process | None = None
        self._loading: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Loads the SDK, and what knows the newest model if the session names none."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_load), name="load the SDK")
        if not self._state().config.model:
            self._replies.prepare()

    async def answer(self) -> None:
        """Has Claude Code answer, and says what it did, or that it did not."""
        model = self._state().config.model
        if not model:
            self._replies.prepare()
            model = await self._replies.newest()
        state = self._state()
        if not await self._replies.afford(model):
            return
        blobs = await self._journal.shelf.opened(said(state), state.renditions.values())
        try:
            answer = await self._replies.shown(partial(self._answered, state, model, blobs), state.head)
        except ModelFailure as failure:
            await self.rest()
            await self._replies.missed(failure, state, failure.retryable)
            return
        except Summarised as made:
            await self.rest()
            await self._summarised(made, state, model)
            return
        if not _waits(answer, {spec.name for spec in _tools(state, self._mesh)}):
            await self.rest()
        await self._replies.say(answer, state.head)

    async def _summarised(self, made: Summarised, state: State, model: str) -> None:
        """Says what Claude Code has put in the place of all that was said, if nothing else was said meanwhile.

        What that answer of the model's has cost Claude Code does not say: its input is what was summarised.
        """
        await self._journal.owned()
        content = json.dumps([text_block(made.summary)], ensure_ascii=False)
        answer = Answer(content, "end_turn", TokenUsage(input_tokens=made.tokens), "", model)
        cost = self._ports.prices.cost_micros(model, codec.usage_of(answer.usage))
        epoch, head = self._journal.epoch, state.head
        if await self._journal.propose(codec.compacted(epoch, head, head + 1, content, "compaction", answer, "", cost)):
            self._replies.count(answer, cost)

    async def rest(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def close(self) -> None:
        """Stops the loading, and ends the process."""
        await self.rest()
        await self._replies.close()
        if self._loading is not None:
            await asyncio.wait({self._loading})  # a thread goes to its end

    async def _answered(self, state: State, model: str, blobs: Blobs, show: Show) -> Answer:
        results = _results(state, blobs)
        process = self._process
        if process is None or results is None or not process.waits_for(results, _tools(state, self._mesh)):
            await self.rest()
            self._process = process = _Process(self._place, _tools(state, self._mesh))
            await process.begin(state, model, blobs, self._journal.log.session_id)
        else:
            process.give(results)
        failpoints.hit("harness.model_asked", ended)
        return await process.answer(show)


class _Process:
    """One process with its directory and its slot."""

    def __init__(self, place: Place, tools: list[ToolSpec]) -> None:
        self._place = place
        self._tools = tools
        self._making: asyncio.Task[tuple[Running, list[Block]]] | None = None
        self._running: Running | None = None
        self._home: Home | None = None
        self._calls: frozenset[str] = frozenset()

    async def begin(self, state: State, model: str, blobs: Blobs, session_id: str) -> None:
        """Starts it with all that the log says. Raises ModelFailure."""
        key = self._place.key()
        await self._place.slots.take(self)
        making = self._making = asyncio.create_task(asyncio.to_thread(self._made, key, state, model, blobs, session_id))
        await asyncio.wait({making})  # not cut off: what it makes is to be removed
        self._running, prompt = making.result()
        await self._running.begin(prompt)

    def _made(self, key: str, state: State, model: str, blobs: Blobs, session_id: str) -> tuple[Running, list[Block]]:
        """Writes its files. In a thread: it loads the SDK."""
        from services.harness.loops.claude_code.process import Process, project_of
        from services.harness.loops.claude_code.running import Running

        home = self._home = Home()
        home.work.mkdir()
        begun = beginning(session_id, conversation(state, blobs), str(home.work), model)
        system = state.config.system
        if system.strip():
            home.write(command.system_file(home.path), system)
        if begun.transcript:
            home.write(command.transcript_file(home.path, project_of(home.work), begun.session), begun.transcript)
        argv = command.arguments(
            self._place.binary, home.path, model, bool(system.strip()), begun.session, bool(begun.transcript)
        )
        environment = command.environment(
            home.path, key, self._place.base_url, state.config.max_output_tokens, not begun.prompt
        )
        return Running(Process(argv, environment, home.work), self._tools), begun.prompt

    def waits_for(self, results: Mapping[str, object], tools: Sequence[ToolSpec]) -> bool:
        """Tells whether these are the results that it waits for, and the tools that it knows of."""
        return bool(self._calls) and self._calls == results.keys() and self._tools == tools

    def give(self, results: Mapping[str, tuple[Sequence[Block], bool]]) -> None:
        """Gives it the results of its calls."""
        assert self._running is not None
        self._place.slots.works(self)
        self._running.give(results)

    async def answer(self, show: Show) -> Answer:
        """Waits for its next answer. Raises ModelFailure and Summarised."""
        assert self._running is not None
        assert self._home is not None
        try:
            answer = await self._running.answer(show)
        except Summarised as made:
            ours = str(self._home.path)  # it refers to its transcript there, which nobody can read
            told = [line for line in made.summary.splitlines() if ours not in line]
            raise Summarised("\n".join(told), made.tokens) from None
        self._calls = frozenset(call.id for call in codec.calls_of(answer.content, answer.stop_reason))
        self._place.slots.waits(self)
        return answer

    def give_way(self) -> None:
        """Kills it at once: its place is wanted, and it only waits for its calls."""
        self._calls = frozenset()
        if self._running is not None:
            self._running.kill()

    async def end(self) -> None:
        """Kills it, and removes what it leaves."""
        try:
            if self._running is not None:
                await self._running.end()
        finally:
            if self._making is not None:
                await asyncio.wait({self._making})
            if self._home is not None:
                await asyncio.to_thread(self._home.remove)
            self._place.slots.leave(self)


def _load() -> None:
    import services.harness.loops.claude_code.running  # noqa: F401


def _tools(state: State, mesh: MeshCalls) -> list[ToolSpec]:
    """Returns the tools that Claude Code is told of."""
    specs = [spec for _, _, spec in routes_of(state).values()] + list(state.config.custom_tools)
    return mesh.described(specs, state.config)


def _waits(answer: Answer, known: Collection[str]) -> bool:
    """Tells whether Claude Code waits for all calls of its answer.

    What it answers itself, and goes on from, is not waited for: an unknown tool, or an input that is no JSON object.
    """
    if answer.stop_reason != "tool_use":
        return False
    calls = codec.calls_of(answer.content, answer.stop_reason)
    return bool(calls) and all(call.name in known and not call.cut for call in calls)


def _results(state: State, blobs: Blobs) -> dict[str, tuple[list[Block], bool]] | None:
    """Returns the results of the last reply's calls, if they are all that was said since, and can be given as such."""
    if not only_results_since(state):
        return None
    results: dict[str, tuple[list[Block], bool]] = {}
    for id, call in state.calls.items():
        if call.result is None:
            return None
        blocks, is_error = result_blocks(call.result, blobs, state.renditions), call.result.outcome != "OK"
        if not can_give(blocks, is_error):
            return None
        results[id] = blocks, is_error
    return results
