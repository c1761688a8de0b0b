"""Whether and when a failed call of the model is made again."""

from __future__ import annotations

from dataclasses import dataclass

from services.harness.core import Retry

MAX_RETRIES = 6  # in a row, within one turn
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 60.0
MAX_ASKED_SECONDS = 3_600.0  # of what the API asks to wait


@dataclass(frozen=True)
class Later:
    """Ask again at `at` (Unix time, seconds)."""

    attempt: int
    at: float


@dataclass(frozen=True)
class Exhausted:
    """Do not ask again in this turn."""


def after_failure(
    last: Retry | None, retryable: bool, retry_after: float | None, now: float, jitter: float
) -> Later | Exhausted:
    """Decides after a failure. Delays double, with a jitter in [0, 1); what the API asks for counts if it is longer.

    What it asks for is never cut short, only spread: everybody who was told the same does not come at once.
    """
    attempt = (last.attempt if last else 0) + 1
    if not retryable or attempt > MAX_RETRIES:
        return Exhausted()
    delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (attempt - 1)) * (0.5 + jitter / 2)
    asked = min(retry_after or 0.0, MAX_ASKED_SECONDS)
    return Later(attempt, now + (delay if asked < delay else asked + FIRST_DELAY_SECONDS * jitter))
