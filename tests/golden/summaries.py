"""Scenarios of a conversation that gets too long."""

from __future__ import annotations

from dataclasses import replace

from handmesh.session.v1.config_pb2 import Budgets, SessionConfig
from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.ports import ModelFailure
from tests.golden.recording import BASH, Recording, Scenario
from tests.support.harness_ports import said

FULL = '{"compaction": {"at": 2}}'  # there is too much in every request but the first


def _log(policy: str = FULL, budgets: Budgets | None = None) -> Recording:
    return Recording(SessionConfig(context_policy_json=policy, budgets=budgets))


async def a_summary_before_a_turn() -> Recording:
    log = _log()
    await log.run(said())
    await log.say("next", said("the summary"), said())
    return log


async def a_summary_within_a_turn() -> Recording:
    log = _log()
    await log.run(said(t1=BASH), said("the summary"), said())
    return log


async def a_summary_that_a_crash_follows() -> Recording:
    log = _log()
    await log.run(said())
    await log.say("next")
    await log.killed(5, said("the summary"))
    await log.run(said())
    return log


async def a_summary_that_uses_up_a_budget() -> Recording:
    log = _log(budgets=Budgets(max_tokens=1_000))
    await log.run(said())
    used = replace(said("the summary"), usage=TokenUsage(input_tokens=2_000))
    await log.say("next", used)
    return log


async def a_full_window() -> Recording:
    log = _log("")
    await log.run(said())
    await log.say("next", ModelFailure("CONTEXT_FULL", "too long", retryable=False), said("the summary"), said())
    return log


async def an_answer_that_breaks_off_at_the_windows_end() -> Recording:
    log = _log("")
    await log.run(said(t1=BASH), said("tw", "model_context_window_exceeded"), said("the summary"), said())
    return log


async def a_wrong_policy() -> Recording:
    log = _log('{"compaction": "maybe"}')
    await log.run()
    return log


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        a_summary_before_a_turn,
        a_summary_within_a_turn,
        a_summary_that_a_crash_follows,
        a_summary_that_uses_up_a_budget,
        a_full_window,
        an_answer_that_breaks_off_at_the_windows_end,
        a_wrong_policy,
    )
}
