"""Which budget stands in the way of a step, from what was used. Pure."""

from __future__ import annotations

from services.harness.turn.state import State
from services.harness.usage import Reached


def before_any_step(state: State, now: float) -> Reached | None:
    """Looks at the time that harnesses have worked, this one since it woke included."""
    end, limit = runs_out(state), state.config.budgets.max_wall_time
    if end is None or now < end:
        return None
    return Reached("max_wall_time", round(limit * 1_000), round((limit + now - end) * 1_000))


def before_asking(state: State) -> Reached | None:
    """Looks at what asking the model uses."""
    budgets, used = state.config.budgets, state.used
    usage = used.in_all
    if budgets.max_turns and not used.model_calls and used.turns >= budgets.max_turns:
        return Reached("max_turns", budgets.max_turns, used.turns)
    for budget, limit, count in (
        ("max_tokens", budgets.max_tokens, usage.tokens),
        ("max_cost_micros", budgets.max_cost_micros, usage.cost_micros),
        ("max_model_calls_per_turn", budgets.max_model_calls_per_turn, used.model_calls),
    ):
        if limit and count >= limit:
            return Reached(budget, limit, count)
    return None


def before_calling(state: State) -> Reached | None:
    """Looks at the number of tool calls."""
    limit, count = state.config.budgets.max_tool_calls, state.used.tool_calls
    return Reached("max_tool_calls", limit, count) if limit and count >= limit else None


def runs_out(state: State) -> float | None:
    """Says when the time is used up (Unix time, seconds), if the harness that has the session goes on working."""
    limit, used = state.config.budgets.max_wall_time, state.used
    return used.busy_since + limit - used.worked if limit and used.busy_since else None
