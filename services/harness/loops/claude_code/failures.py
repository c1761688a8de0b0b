"""What it means that Claude Code has no answer, or a summary instead of one. Pure."""

from __future__ import annotations

from services.harness.ports import ModelFailure

MESSAGE_CHARACTERS = 300  # of what is said about a request that the API refuses
_RETRYABLE = {408: "MODEL_UNAVAILABLE", 409: "MODEL_UNAVAILABLE", 429: "MODEL_RATE_LIMITED", 529: "MODEL_OVERLOADED"}


def failure_of(status: int | None, why: str | None, said: str | None) -> ModelFailure:
    """Returns the failure for a result without an answer: the API's status, if it gave one, why Claude Code has
    stopped, and what it says of it."""
    told = (said or "Claude Code gave no answer")[:MESSAGE_CHARACTERS]
    if why == "prompt_too_long" or status == 413:
        return ModelFailure("CONTEXT_FULL", told, retryable=False)
    if status is None:
        return ModelFailure("MODEL_UNAVAILABLE", told, retryable=True)
    if status in _RETRYABLE or status >= 500:
        reason = _RETRYABLE.get(status, "MODEL_UNAVAILABLE")
        return ModelFailure(reason, f"the model's API answered {status}", retryable=True, http_status=status)
    if status in (401, 403):
        told = f"the model's API refuses the key ({status})"
        return ModelFailure("MODEL_KEY_REFUSED", told, retryable=False, http_status=status)
    return ModelFailure("MODEL_REQUEST_REFUSED", told, retryable=False, http_status=status)


def ended() -> ModelFailure:
    """Says that the process is gone."""
    return ModelFailure("MODEL_UNAVAILABLE", "Claude Code has ended before it answered", retryable=True)


def broken() -> ModelFailure:
    """Says that an answer is not whole."""
    return ModelFailure("MODEL_STREAM_BROKEN", "the model's answer broke off", retryable=True)


class Summarised(Exception):
    """Claude Code has put a summary in the place of all that it was told, of which it had counted so many tokens."""

    def __init__(self, summary: str, tokens: int) -> None:
        super().__init__("Claude Code has made a summary")
        self.summary = summary
        self.tokens = tokens
