"""Spans of a turn: the turn itself, what the model is asked, and what tools are called with. Never what is said.

A turn is part of the work that its first message came from, whichever harness goes on with it: the log has the message.
Names and attributes are those of OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from services.harness.core import ToolResult
from services.harness.ports import Answer, ModelFailure
from services.harness.turn.core import RunCall
from services.harness.turn.reading import asked
from services.harness.turn.state import State
from services.kit import tracing


class TurnSpan:
    """The span of the turn that a run works on. Begun and ended in the run's own task, so that all it does is in it."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._epoch = 0
        self._span = tracing.NOTHING
        self._settled: int | None = None  # which turn it is: what turns before it had read

    def follow(self, state: State) -> None:
        """Makes what follows part of the open turn, if there is one, and of no other."""
        settled = state.settled if state.turn_open else None
        if settled == self._settled:
            return
        self.end()
        self._settled = settled
        if settled is None:
            return
        tracing.continue_from(asked(state)[0].traceparent)
        harness = tracing.word(state.config.harness)
        self._span = tracing.span(
            f"invoke_agent {harness}",
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": harness,
                "gen_ai.conversation.id": self._session_id,
                "handmesh.session.id": self._session_id,
            },
        )
        if isinstance(self._span, tracing.Live):
            tracing.continue_from(self._span.traceparent)

    def took_up(self, epoch: int) -> None:
        """Says under which epoch the turn is worked on."""
        self._epoch = epoch

    def end(self) -> None:
        """Ends the turn's part that is done here."""
        if self._epoch:
            self._span.set({"handmesh.epoch": self._epoch})
        self._span.end()
        self._span, self._settled = tracing.NOTHING, None
        tracing.continue_from("")


async def chat(model: str, answer: Awaitable[Answer]) -> Answer:
    """Waits for a model's answer, and says what was asked and how much it was."""
    model = tracing.word(model)
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": model,
        "handmesh.session.id": tracing.session_id(),
    }
    with tracing.span(f"chat {model}", about, kind=tracing.CLIENT) as span:
        try:
            said = await answer
        except ModelFailure as failure:
            span.fail(failure.reason)
            raise
        usage = said.usage
        span.set(
            {
                "gen_ai.response.model": tracing.word(said.model),
                "gen_ai.response.id": tracing.word(said.message_id),
                "gen_ai.response.finish_reasons": [tracing.word(said.stop_reason)],
                "gen_ai.usage.input_tokens": (
                    usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
                ),
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_input_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_input_tokens,
            }
        )
    return said


class ToolSpan:
    """The span of a call, which its result goes to."""

    def __init__(self, span: tracing.Span) -> None:
        self._span = span

    def came(self, result: ToolResult) -> None:
        """Says how the call ended, not what it said."""
        self._span.set({"handmesh.outcome": result.outcome})
        if result.outcome != "OK":
            self._span.fail(result.outcome)


@contextmanager
def tool(run: RunCall) -> Iterator[ToolSpan]:
    """Is the span of a call of a tool."""
    name = tracing.word(run.call.name)
    about = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": tracing.word(run.call.id),
        "handmesh.session.id": tracing.session_id(),
        "handmesh.execution.id": tracing.word(run.call.id),
    }
    if run.sandbox_id:
        about["handmesh.sandbox.id"] = run.sandbox_id
    with tracing.span(f"execute_tool {name}", about) as span:
        yield ToolSpan(span)
