"""What a session uses, and what it may use. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens in the four classes that are priced, and their cost in millionths of a US dollar."""

    input: int = 0
    output: int = 0
    cache_creation: int = 0
    cache_read: int = 0
    cost_micros: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_creation + other.cache_creation,
            self.cache_read + other.cache_read,
            self.cost_micros + other.cost_micros,
        )

    @property
    def prompt(self) -> int:
        """Tokens that were read in, whichever way."""
        return self.input + self.cache_creation + self.cache_read

    @property
    def tokens(self) -> int:
        """Tokens of all classes together."""
        return self.prompt + self.output


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits on a session (see the proto's `Budgets`); 0 means none. Time in seconds."""

    max_turns: int = 0
    max_tokens: int = 0
    max_cost_micros: int = 0
    max_wall_time: float = 0.0
    max_tool_calls: int = 0
    max_model_calls_per_turn: int = 0


NO_BUDGETS = Budgets()


@dataclass(frozen=True, slots=True)
class Reached:
    """A budget, by its field of the proto's `Budgets`, that is used up; in its unit, time in milliseconds."""

    budget: str
    limit: int
    used: int
