"""What sessions and turns use and cost, and what they may: as people read and write it. Pure.

turns=20  tokens=500000  cost=2.50  time=3600  tool-calls=100  model-calls=50
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from handmesh.cli.arguments import UsageError
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2

MICROS = 1_000_000
MILLISECONDS = 1_000
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?")


@dataclass(frozen=True)
class Budget:
    """A budget as people know it. `unit` is how many of the field's unit are one of what people write."""

    field: str
    word: str  # what is counted
    unit: int = 1


BUDGETS = {
    "turns": Budget("max_turns", "turns"),
    "tokens": Budget("max_tokens", "tokens"),
    "cost": Budget("max_cost_micros", "US dollars", MICROS),
    "time": Budget("max_wall_time", "seconds of work", MILLISECONDS),
    "tool-calls": Budget("max_tool_calls", "tool calls"),
    "model-calls": Budget("max_model_calls_per_turn", "calls of the model in this turn"),
}


def tokens_of(usage: event_pb2.TokenUsage) -> int:
    """Returns the tokens of all four classes together."""
    read = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    return int(read + usage.output_tokens)


def dollars(micros: int) -> str:
    """Returns an amount in US dollars, to a hundredth of a cent."""
    return f"${micros / MICROS:,.4f}"


def spent(usage: event_pb2.TokenUsage, cost_micros: int) -> str:
    """Returns what was used and what it cost; no cost when no price is known, and nothing for nothing."""
    tokens = tokens_of(usage)
    if not tokens:
        return ""
    cost = dollars(cost_micros) if cost_micros else "no known price"
    return f"{tokens:,} tokens, {cost}"


def name_of(field: str) -> str:
    """Returns a budget's name for people; the contract's for one that this version does not know."""
    return next((name for name, budget in BUDGETS.items() if budget.field == field), field)


def reached(event: event_pb2.BudgetReached) -> str:
    """Says which budget was reached, with its limit and what was used."""
    budget = next((each for each in BUDGETS.values() if each.field == event.budget), Budget("", event.budget))
    used, limit = _amount(event.used, budget.unit), _amount(event.limit, budget.unit)
    return f"{used} of {limit} {budget.word} are used"


def way_on(session_id: str, paused_budget: str) -> str:
    """Says how a session that is paused at a budget goes on."""
    return f"to go on: handmesh raise {session_id} {name_of(paused_budget)}=MORE"


def limit_of(budgets: config_pb2.Budgets, name: str) -> str:
    """Returns a session's limit as people write it; `none` when there is none."""
    budget = BUDGETS[name]
    value = budgets.max_wall_time.ToMilliseconds() if name == "time" else getattr(budgets, budget.field)
    return _amount(value, budget.unit).replace(",", "") if value else "none"


def budgets_of(values: Sequence[str], before: config_pb2.Budgets | None = None) -> config_pb2.Budgets:
    """Reads NAME=VALUE budgets onto those that there are; `none` takes one away. Raises UsageError."""
    budgets = config_pb2.Budgets()
    budgets.MergeFrom(before or config_pb2.Budgets())
    for value in values:
        name, _, amount = value.partition("=")
        if name not in BUDGETS or not (amount == "none" or _NUMBER.fullmatch(amount)):
            raise UsageError(f"{value!r}: expected NAME=NUMBER or NAME=none, the name one of {', '.join(BUDGETS)}")
        budget = BUDGETS[name]
        units = 0 if amount == "none" else round(float(amount) * budget.unit)
        if amount != "none" and (units < 1 or (budget.unit == 1 and "." in amount)):
            raise UsageError(f"{value!r}: expected a {'whole ' if budget.unit == 1 else ''}number above 0, or none")
        if name == "time":
            budgets.ClearField("max_wall_time")
            if units:
                budgets.max_wall_time.FromMilliseconds(units)
        else:
            setattr(budgets, budget.field, units)
    return budgets


def status_of(session: session_pb2.Session, word: str) -> str:
    """Returns a session's status, with the budget for which it is paused."""
    return f"{word}: {name_of(session.paused_budget)}" if session.paused_budget else word


def _amount(value: int, unit: int) -> str:
    if unit == 1 or value % unit == 0:
        return f"{value // unit:,}"
    return f"{value / unit:,.6f}".rstrip("0")
