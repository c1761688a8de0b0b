"""Whether and when a failed call of the model is made again."""

from __future__ import annotations

from services.harness.core import Retry
from services.harness.turn.failure import MAX_RETRIES, Exhausted, Later, after_failure


def test_delays_double_up_to_a_limit_and_jitter_only_shortens() -> None:
    """0.5 s, 1 s, 2 s ...; with the least jitter half of that."""
    assert after_failure(None, True, None, now=100.0, jitter=1.0) == Later(1, 100.5)
    assert after_failure(Retry(9, 1, 0.0), True, None, now=100.0, jitter=1.0) == Later(2, 101.0)
    assert after_failure(Retry(9, 1, 0.0), True, None, now=100.0, jitter=0.0) == Later(2, 100.5)


def test_what_the_api_asks_for_is_honoured() -> None:
    """`retry-after` counts when it is longer than our own delay."""
    assert after_failure(None, True, 7.0, now=0.0, jitter=0.0) == Later(1, 7.0)


def test_the_budget_of_retries_ends() -> None:
    """After MAX_RETRIES in a row, or for what will not change, there is no other try."""
    assert after_failure(Retry(9, MAX_RETRIES, 0.0), True, None, now=0.0, jitter=0.0) == Exhausted()
    assert after_failure(None, False, None, now=0.0, jitter=0.0) == Exhausted()
