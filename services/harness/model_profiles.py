"""What is special about each model: the only place that names one. Pure.

Prices, windows and betas are those of the model's maker in November 2026; an operator has other prices in a file
(`prices`). An answer's cost is written into the log when it comes, so a later price changes no session that was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.harness.usage import Usage

TOKENS_PRICED = 1_000_000  # the number of tokens that a price is for


@dataclass(frozen=True, slots=True)
class Price:
    """Millionths of a US dollar for a million tokens of each class; cache writes that live for five minutes."""

    input: int
    output: int
    cache_creation: int
    cache_read: int

    def of(self, usage: Usage) -> int:
        """Returns the cost of tokens, in millionths of a US dollar, rounded up."""
        cost = (
            usage.input * self.input
            + usage.output * self.output
            + usage.cache_creation * self.cache_creation
            + usage.cache_read * self.cache_read
        )
        return -(-cost // TOKENS_PRICED)


CLEAR_TOOL_USES = "clear_tool_uses_20250919"
CLEAR_THINKING = "clear_thinking_20251015"
COMPACT = "compact_20260112"
BETAS = {
    CLEAR_TOOL_USES: "context-management-2025-06-27",
    CLEAR_THINKING: "context-management-2025-06-27",
    COMPACT: "compact-2026-01-12",
}
"""What the API can do to a context by itself, and the beta that a request for it needs in its header."""


@dataclass(frozen=True, slots=True)
class Context:
    """How a model deals with its context window.

    `window` is in tokens. When `compact_at` of it is full, the conversation is summarised. `needs_reset`: the model
    grows anxious near its limit and hurries to an end, also behind a summary; it does better when it begins afresh,
    and earlier. `edits` of `BETAS` that the API makes for it; it clears thinking only where a model always thinks.
    `system_messages`: a system prompt that changes may be said behind what was said before.
    """

    window: int = 200_000
    compact_at: float = 0.75
    needs_reset: bool = False
    edits: frozenset[str] = frozenset()
    system_messages: bool = False


SMALL = Context(edits=frozenset({CLEAR_TOOL_USES}))  # before 4.6; also what is taken for a model that nobody described
ANXIOUS = replace(SMALL, compact_at=0.6, needs_reset=True)
BIG = Context(1_000_000, edits=frozenset({CLEAR_TOOL_USES, COMPACT}))
NEW = replace(BIG, system_messages=True)  # since 4.8
THINKING = replace(NEW, edits=frozenset(BETAS))


@dataclass(frozen=True, slots=True)
class Profile:
    """One model. `long_price` holds for each request whose prompt has over `long_prompt` tokens, 0 for none."""

    price: Price
    context: Context = SMALL
    long_prompt: int = 0
    long_price: Price | None = None


def dollars(input: float, output: float, cache_creation: float, cache_read: float) -> Price:
    """Makes a price from US dollars for a million tokens."""
    return Price(*(round(dollars * 1_000_000) for dollars in (input, output, cache_creation, cache_read)))


MODEL_PROFILES: dict[str, Profile] = {
    "claude-fable-5-2": Profile(dollars(8, 40, 10, 0.20), THINKING),
    "claude-fable-5-1": Profile(dollars(10, 50, 12.50, 0.25), THINKING),
    "claude-mythos-5-1": Profile(dollars(10, 50, 12.50, 0.25), THINKING),
    "claude-fable-5": Profile(dollars(10, 50, 12.50, 1.00), THINKING),
    "claude-mythos-5": Profile(dollars(10, 50, 12.50, 1.00), THINKING),
    "claude-opus-5-5": Profile(dollars(4, 20, 5, 0.20), THINKING),
    "claude-opus-5": Profile(dollars(5, 25, 6.25, 0.50), NEW),
    "claude-opus-4-5": Profile(dollars(5, 25, 6.25, 0.50), SMALL),
    "claude-opus-4-6": Profile(dollars(5, 25, 6.25, 0.50), BIG),
    "claude-opus-4-7": Profile(dollars(5, 25, 6.25, 0.50), BIG),
    "claude-opus-4-8": Profile(dollars(5, 25, 6.25, 0.50), NEW),
    "claude-sonnet-5-5": Profile(dollars(2, 10, 2.50, 0.10), THINKING),
    "claude-sonnet-5": Profile(dollars(2, 10, 2.50, 0.20), NEW),
    "claude-sonnet-4-5": Profile(dollars(3, 15, 3.75, 0.30), ANXIOUS),
    "claude-sonnet-4-6": Profile(dollars(3, 15, 3.75, 0.30), BIG),
    "claude-haiku-5-5": Profile(dollars(0.10, 0.50, 0.125, 0.01), NEW, 100_000, dollars(0.50, 2.50, 0.625, 0.05)),
    "claude-haiku-4-5": Profile(dollars(1, 5, 1.25, 0.10), ANXIOUS),
}
DEAREST = Price(
    *(
        max(getattr(profile.price, tokens) for profile in MODEL_PROFILES.values())
        for tokens in ("input", "output", "cache_creation", "cache_read")
    )
)
