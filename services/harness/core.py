"""The facts that deciding needs: what a log says, without protobuf.

Every fact has the position of its event. `services/harness/adapters/codec.py` makes facts from events and events
from what a harness decides to emit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["OK", "TOOL_ERROR", "TIMEOUT", "OUT_OF_MEMORY", "INTERRUPTED", "DENIED", "GONE", "UNKNOWN"]
EndReason = Literal["DONE", "INTERRUPTED", "LIMIT", "FAILED", "REFUSED"]
PolicyAction = Literal["ALLOW", "ASK", "DENY"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it. `schema` is JSON text."""

    name: str
    description: str
    schema: str
    idempotent: bool = False
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool said, or why it did not run. `content` is JSON text of content blocks, or empty."""

    output: str
    outcome: Outcome = "OK"
    content: str = ""
    truncated: bool = False
    exit_code: int | None = None
    signal: int | None = None
    spill_path: str = ""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Something big that is kept beside the log. `size` is in bytes, `sha256` in hex."""

    blob_id: str
    media_type: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model. `input` is JSON text; `cut` means that the answer broke off inside it."""

    id: str
    name: str
    input: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What is done with calls of the tools that a pattern matches."""

    pattern: str
    action: PolicyAction


@dataclass(frozen=True, slots=True)
class Config:
    """What a session is, as far as a harness type cares.

    `hand_specs` are the hands' specifications in the order of `hands`, for the adapter that provisions them.
    """

    harness: str = "messages"
    model: str = ""
    system: str = ""
    hands: tuple[str, ...] = ("main",)
    hand_specs: tuple[bytes, ...] = ()
    servers: tuple[str, ...] = ()
    custom_tools: tuple[ToolSpec, ...] = ()
    policies: tuple[Policy, ...] = ()
    max_output_tokens: int = 0
    max_model_calls: int = 0


# --- what happened ---
@dataclass(frozen=True, slots=True)
class Started:
    """The session began."""

    position: int
    config: Config


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration changed."""

    position: int
    config: Config


@dataclass(frozen=True, slots=True)
class Message:
    """Someone wrote. `content` is JSON text of content blocks."""

    position: int
    content: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Someone asked to stop."""

    position: int


@dataclass(frozen=True, slots=True)
class Woke:
    """A harness took the session up; its position is the epoch."""

    position: int


@dataclass(frozen=True, slots=True)
class Offered:
    """A hand's tools were looked up. `failed` means that they could not be."""

    position: int
    hand: str
    tools: tuple[ToolSpec, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Replied:
    """The model answered, having read up to `read`. `content` is JSON text of content blocks."""

    position: int
    content: str
    stop_reason: str
    read: int
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call was about to be sent to a hand, under an epoch."""

    position: int
    id: str
    epoch: int
    hand: str
    sandbox_id: str = ""


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call was settled."""

    position: int
    id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ConfirmationAsked:
    """A person is to decide about a call."""

    position: int
    id: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A person decided about a call."""

    position: int
    id: str
    allowed: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class CustomAsked:
    """A client is to run a call."""

    position: int
    id: str


@dataclass(frozen=True, slots=True)
class CustomAnswered:
    """A client has run a call."""

    position: int
    id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Provisioned:
    """A sandbox was made for a hand; `generation` counts the hand's sandboxes."""

    position: int
    hand: str
    sandbox_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Detached:
    """A hand's sandbox is gone."""

    position: int
    hand: str
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class Retry:
    """A failed call of the model will be made again at `at` (Unix time, seconds)."""

    position: int
    attempt: int
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Content that the API does not take was made fit: `content` (JSON text of blocks) stands for it from here on."""

    position: int
    source_sha256: str
    content: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn ended, having dealt with everything up to `read`."""

    position: int
    reason: EndReason
    read: int


@dataclass(frozen=True, slots=True)
class SessionOver:
    """The session ended for good."""

    position: int


@dataclass(frozen=True, slots=True)
class Other:
    """Something that deciding may skip."""

    position: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that this harness does not know and may not skip."""

    position: int
    kind: str = field(default="")


Fact = (
    Started
    | Configured
    | Message
    | Interrupt
    | Woke
    | Offered
    | Replied
    | CallStarted
    | CallFinished
    | ConfirmationAsked
    | Confirmed
    | CustomAsked
    | CustomAnswered
    | Provisioned
    | Detached
    | Retry
    | Rendered
    | Ended
    | SessionOver
    | Other
    | Unknown
)
