"""A script: what to answer when. Read from YAML, checked whole, kept as frozen values.

    script        conversations, tried in order, then `default`
    conversation  chosen by the latest user text; its steps are the replies to it, in order
    step          one turn, or several `cases`, of which the first that fits and is not used up is played
    turn          blocks to say, a stop reason, a pace, a fault

docs/scripted-model.md describes every key for those who write scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handmesh.scripted_model.errors import ApiError

DEFAULT_CHUNK = 24  # characters in one delta


@dataclass(frozen=True)
class When:
    """A condition; every part that is given must hold. Texts are compared without regard to case."""

    user: str | None = None
    user_matches: re.Pattern[str] | None = None
    system: str | None = None
    tool_offered: str | None = None
    tool_result: str | None = None
    tool_result_of: str | None = None
    tool_result_is_error: bool | None = None
    messages: int | None = None


@dataclass(frozen=True)
class SayText:
    """A text block; {last_tool_result} and {last_user_text} are filled in."""

    text: str


@dataclass(frozen=True)
class SayThinking:
    """A thinking block, signed when it is said."""

    text: str


@dataclass(frozen=True)
class SayToolUse:
    """A tool call. `suffix` means the offered tool with this name or with a name that ends in `__` and this one."""

    name: str
    suffix: bool
    input: Mapping[str, Any]
    input_json: str | None = None


@dataclass(frozen=True)
class SayVerbatim:
    """Any other block, as it stands."""

    block: Mapping[str, Any]


Say = SayText | SayThinking | SayToolUse | SayVerbatim


@dataclass(frozen=True)
class HttpError:
    """The request is refused with an HTTP error instead of a reply."""

    error: ApiError


@dataclass(frozen=True)
class Cut:
    """The connection is dropped after so many events, or after so many bytes of the body."""

    events: int | None
    bytes: int | None


@dataclass(frozen=True)
class Silence:
    """Nothing comes any more after so many events; the connection stays open until the client leaves."""

    events: int


@dataclass(frozen=True)
class ErrorFrame:
    """The stream ends in an `error` event after so many others."""

    events: int
    error: ApiError


Fault = HttpError | Cut | Silence | ErrorFrame


@dataclass(frozen=True)
class Pace:
    """How fast a turn is said: milliseconds before it starts, characters in a delta, milliseconds between deltas."""

    delay_ms: float = 0
    chunk: int = DEFAULT_CHUNK
    chunk_delay_ms: float = 0


@dataclass(frozen=True)
class Turn:
    """One reply of the model. `key` names its place in the script, for counting and for error messages."""

    key: str
    when: When | None
    times: int | None
    say: tuple[Say, ...]
    stop_reason: str | None
    stop_sequence: str | None
    stop_details: Mapping[str, Any] | None
    usage: Mapping[str, int]
    pace: Pace
    fault: Fault | None
    applied_edits: tuple[Mapping[str, Any], ...] = ()
    compacted: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Step:
    """The reply at one point of a conversation: its cases, first fit first."""

    cases: tuple[Turn, ...]


@dataclass(frozen=True)
class Conversation:
    """The replies to one kind of user text. `repeat`: the last step also answers all that comes after it."""

    name: str
    when: When | None
    steps: tuple[Step, ...]
    repeat: bool = False


@dataclass(frozen=True)
class Script:
    """All conversations; `default` answers what none of them does."""

    conversations: tuple[Conversation, ...]
    default: Conversation | None


class ScriptError(ValueError):
    """A script that cannot be played: `problems` has a line for each mistake, with its place and what belongs there."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{name}: {problem}" for problem in problems))
        self.name = name
        self.problems = tuple(problems)
