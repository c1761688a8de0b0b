"""The model behind the server: takes a request's headers and body, returns what to send. No sockets, no clock.

It keeps two things, both bounded: how often turns with `times` were played, and which prompt prefixes are cached.
Neither belongs to a conversation, so any number of conversations run at once, and a restart loses nothing but these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handmesh.scripted_model.errors import ApiError, invalid
from handmesh.scripted_model.player import Mismatch, choose, render
from handmesh.scripted_model.script import HttpError, Script, Turn
from handmesh.scripted_model.stream import Answer
from handmesh.scripted_model.usage import MIN_CACHED_TOKENS, PrefixCache, count_tokens
from handmesh.scripted_model.validation import (
    check_count_request,
    check_headers,
    check_message_request,
    parse_body,
)
from handmesh.scripted_model.view import view


@dataclass(frozen=True)
class Reply:
    """An answer, the turn it came from (for its pace and fault), and whether it is to be streamed."""

    answer: Answer
    turn: Turn
    stream: bool


@dataclass(frozen=True)
class Outcome:
    """What comes of one request: its body (None if that is no JSON object), the place in the script, the result."""

    body: dict[str, Any] | None
    turn_key: str | None
    result: Reply | ApiError


class Playback:
    """Answers message requests from a script. `api_key` None accepts any key that is not empty."""

    def __init__(
        self, script: Script, *, api_key: str | None = None, min_cached_tokens: int = MIN_CACHED_TOKENS
    ) -> None:
        self._script = script
        self._api_key = api_key
        self._used: dict[str, int] = {}
        self._cache = PrefixCache(minimum=min_cached_tokens)

    def check_headers(self, headers: Mapping[str, str]) -> ApiError | None:
        """Returns why the headers (names in lower case) are refused, or None."""
        return check_headers(headers, self._api_key)

    def create(self, headers: Mapping[str, str], body: bytes, now: float) -> Outcome:
        """Answers POST /v1/messages; `now` is in seconds of a clock that only goes forward."""
        request = parse_body(body)
        if isinstance(request, ApiError):
            return Outcome(None, None, request)
        refused = check_message_request(request, headers)
        if refused is not None:
            return Outcome(request, None, refused)
        seen = view(request)
        turn = choose(self._script, seen, self._used)
        if isinstance(turn, Mismatch):
            return Outcome(request, None, _unscripted(turn))
        if turn.times is not None:
            self._used[turn.key] = self._used.get(turn.key, 0) + 1
        if isinstance(turn.fault, HttpError):
            return Outcome(request, turn.key, turn.fault.error)
        answer = render(turn, seen, self._cache.account(request, now))
        if isinstance(answer, Mismatch):
            return Outcome(request, turn.key, _unscripted(answer))
        return Outcome(request, turn.key, Reply(answer, turn, request.get("stream", False)))

    def count(self, headers: Mapping[str, str], body: bytes) -> int | ApiError:
        """Answers POST /v1/messages/count_tokens with the tokens of the prompt."""
        request = parse_body(body)
        if isinstance(request, ApiError):
            return request
        return check_count_request(request, headers) or count_tokens(request)


def _unscripted(mismatch: Mismatch) -> ApiError:
    """Returns a 400: clients do not retry it, so a hole in a script is seen at once."""
    return invalid(f"scripted model: {mismatch.reason}")
