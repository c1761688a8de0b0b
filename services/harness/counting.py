"""What the harness counts: the model's answers, and the tools'."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.answer import Show
from services.harness.model_profiles import MODEL_PROFILES
from services.harness.ports import Answer, ModelFailure
from services.harness.prices import Prices
from services.kit.metrics import SLOW, Counter, Gauge, Histogram, Label

MODEL = Label("model", MODEL_PROFILES)
_TOKENS = ("input", "output", "cache_read", "cache_write")
_FAILURES = (
    "CONTEXT_FULL",
    "MODEL_KEY_MISSING",
    "MODEL_KEY_REFUSED",
    "MODEL_OVERLOADED",
    "MODEL_RATE_LIMITED",
    "MODEL_REQUEST_REFUSED",
    "MODEL_SILENT",
    "MODEL_STREAM_BROKEN",
    "MODEL_UNAVAILABLE",
)
# The hands' and the mesh's own tools by name; every other one is a tenant's or an MCP server's, and its name is theirs.
_TOOLS = ("bash", "read", "write", "edit", "glob", "grep", "mesh", "mcp", "hand")
_OUTCOMES = ("ok", "tool_error", "timeout", "out_of_memory", "interrupted", "denied", "gone", "unknown")
_HANDS_OWN = frozenset(_TOOLS[:6])

ANSWERS = Counter(
    "handmesh_model_answers_total",
    "Answers of the model, by model. One that is not in the table of prices is `other`.",
    MODEL,
)
TOKENS = Counter(
    "handmesh_model_tokens_total",
    "Tokens as the model's API counts them, by model and class.",
    MODEL,
    Label("kind", _TOKENS),
)
COST = Counter("handmesh_model_cost_dollars_total", "What the answers cost, as far as prices are known.", MODEL)
FIRST_TOKEN = Histogram(
    "handmesh_model_first_token_seconds", "From the question to the first piece of the answer.", MODEL, buckets=SLOW
)
ANSWER_SECONDS = Histogram(
    "handmesh_model_answer_seconds", "From the question to the whole answer.", MODEL, buckets=SLOW
)
FAILURES = Counter(
    "handmesh_model_failures_total", "Questions that the model did not answer, by why.", Label("reason", _FAILURES)
)
RETRIES = Counter(
    "handmesh_model_retries_total",
    "Failures after which the model is asked again later, by why.",
    Label("reason", _FAILURES),
)
TOOLS = Counter(
    "handmesh_tools_total",
    "Tool calls that ended, by tool and outcome. `mcp` are all tools of MCP servers, `mesh` those of the mesh, `hand` "
    "those of hands that have other tools than the usual six.",
    Label("tool", _TOOLS),
    Label("outcome", _OUTCOMES),
)
TOOL_SECONDS = Histogram(
    "handmesh_tool_seconds", "How long this harness waited for tool calls.", Label("tool", _TOOLS), buckets=SLOW
)
RUNS = Gauge("handmesh_runs", "Sessions that this harness is at work on, or keeps for a moment.")
CAPACITY = Gauge("handmesh_runs_capacity", "Most sessions that this harness works on at once.")
DRAINING = Gauge("handmesh_draining", "1 while this harness takes no new sessions.")


def allow_models(prices: Prices) -> None:
    """Tells models apart that the operator's file names."""
    MODEL.allow(prices.profiles)


def model_of(prices: Prices, model: str) -> str:
    """Returns a model's name as it is counted: a dated one is its model's."""
    return model if model in prices.profiles else model.rpartition("-")[0]


async def asked(ask: Callable[[Show], Awaitable[Answer]], show: Show, model: Callable[[Answer], str]) -> Answer:
    """Asks the model, and counts how long it takes. `model` names who has answered."""
    began, first = time.perf_counter(), 0.0

    def shown(block: int, kind: str, piece: str) -> None:
        nonlocal first
        first = first or time.perf_counter()
        show(block, kind, piece)

    try:
        answer = await ask(shown)
    except ModelFailure as failure:
        FAILURES.add(failure.reason)
        raise
    name = model(answer)
    if first:
        FIRST_TOKEN.observe(first - began, name)
    ANSWER_SECONDS.observe(time.perf_counter() - began, name)
    return answer


def answered(model: str, usage: TokenUsage, cost_micros: int | None) -> None:
    """Counts an answer, and what it has used."""
    ANSWERS.add(model)
    counted = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
    )
    for kind, count in zip(_TOKENS, counted, strict=True):
        TOKENS.add(model, kind, by=count)
    COST.add(model, by=(cost_micros or 0) / 1e6)


def kind_of(tool: str, of_mesh: bool, of_sandbox: bool) -> str:
    """Returns as what a tool is counted. `tool` is its name where it runs."""
    if of_mesh:
        return "mesh"
    if not of_sandbox:
        return "mcp"
    return tool if tool in _HANDS_OWN else "hand"


def finished(kind: str, outcome: str, seconds: float) -> None:
    """Counts a tool call."""
    TOOLS.add(kind, outcome.lower())
    TOOL_SECONDS.observe(seconds, kind)


def watch(runs: Callable[[], Iterable[object]], capacity: int, draining: Callable[[], bool]) -> None:
    """Lets it be counted what is at work."""
    RUNS.watch(lambda: len(list(runs())))
    CAPACITY.watch(lambda: capacity)
    DRAINING.watch(draining)
