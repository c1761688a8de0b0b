"""Each budget: reached, paused, raised or interrupted."""

from __future__ import annotations

import functools

from handmesh.session.v1.config_pb2 import Budgets, SessionConfig
from services.harness.ports import Answer
from tests.golden.answers import CALL, answer, text
from tests.golden.recording import BASH, Recording, Scenario
from tests.support.harness_ports import said

PRICED = "claude-sonnet-4-5"


async def _raised(**limit: int) -> Recording:
    """A turn of two calls and a second turn, under a budget that is raised whenever it is reached."""
    (name,) = limit
    log = Recording(SessionConfig(model=PRICED, budgets=Budgets(**limit)))
    first = [answer(CALL, stop="tool_use"), answer({**CALL, "id": "t2"}, stop="tool_use"), answer(text("done"))]
    await _raising(log, name, limit[name], first)
    await log.say("again")
    spent = log.only("config_changed")
    await _raising(log, name, getattr(spent[-1].config.budgets, name) if spent else limit[name], [answer(text("done"))])
    return log


async def _raising(log: Recording, name: str, limit: int, answers: list[Answer]) -> None:
    before = log.kinds().count("model_replied")
    await log.run(*answers)
    while log.kinds()[-1] == "budget_reached":
        limit += limit
        await log.configure(SessionConfig(model=PRICED, budgets=Budgets(**{name: limit})))
        await log.run(*answers[log.kinds().count("model_replied") - before :])


async def wall_time() -> Recording:
    config = SessionConfig()
    config.budgets.max_wall_time.FromSeconds(4)
    log = Recording(config)
    await log.run(said(t1=BASH), said())
    config.budgets.max_wall_time.FromSeconds(400)
    await log.configure(config)
    await log.run(said(), said())
    return log


async def a_pause_that_is_interrupted() -> Recording:
    log = Recording(SessionConfig(budgets=Budgets(max_tool_calls=1)))
    await log.run(said(t1=BASH, t2=BASH))
    await log.interrupt()
    await log.run()
    await log.say("rather this", said())
    return log


async def a_pause_raised_too_little() -> Recording:
    log = Recording(SessionConfig(budgets=Budgets(max_tokens=2)))
    await log.run(said(t1=BASH), said(t2=BASH), said())
    await log.configure(SessionConfig(system="Be brief.", budgets=Budgets(max_tokens=2)))
    await log.run(said())
    await log.say("hurry")
    await log.configure(SessionConfig(system="Be brief.", budgets=Budgets(max_tokens=200)))
    await log.run(said())
    return log


async def no_price() -> Recording:
    config = SessionConfig(model="claude-nobody-1", budgets=Budgets(max_cost_micros=10_000))
    log = Recording(config)
    await log.run(said())
    config.model = PRICED
    await log.configure(config)
    await log.say("next", answer(text("done")))
    return log


SCENARIOS: dict[str, Scenario] = {
    "budget_turns": functools.partial(_raised, max_turns=1),
    "budget_tokens": functools.partial(_raised, max_tokens=12_000),
    "budget_cost": functools.partial(_raised, max_cost_micros=10_000),
    "budget_tool_calls": functools.partial(_raised, max_tool_calls=1),
    "budget_model_calls": functools.partial(_raised, max_model_calls_per_turn=1),
    "budget_wall_time": wall_time,
    "no_price": no_price,
    "a_pause_that_is_interrupted": a_pause_that_is_interrupted,
    "a_pause_raised_too_little": a_pause_raised_too_little,
}
