"""The facts that deciding needs: what a log says, without protobuf. `adapters/codec.py` makes them from events.

Every fact has the position of its event and the time at which the log took it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from services.harness.config import MESH as MESH
from services.harness.config import Config as Config
from services.harness.config import Policy as Policy
from services.harness.config import PolicyAction as PolicyAction
from services.harness.config import ToolSpec as ToolSpec
from services.harness.usage import NO_USAGE, Usage

Outcome = Literal["OK", "TOOL_ERROR", "TIMEOUT", "OUT_OF_MEMORY", "INTERRUPTED", "DENIED", "GONE", "UNKNOWN"]
EndReason = Literal["DONE", "INTERRUPTED", "LIMIT", "FAILED", "REFUSED"]


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


# --- what happened ---
@dataclass(frozen=True, slots=True)
class Happened:
    """Where in the log, and when (Unix time, seconds; 0 where nobody knows)."""

    position: int
    time: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Started(Happened):
    """The session began."""

    config: Config


@dataclass(frozen=True, slots=True)
class Configured(Happened):
    """The configuration changed."""

    config: Config


@dataclass(frozen=True, slots=True)
class Message(Happened):
    """Someone wrote. `content` is JSON text of content blocks; `traceparent` the work that it came from, if known."""

    content: str
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Interrupt(Happened):
    """Someone asked to stop."""


@dataclass(frozen=True, slots=True)
class Woke(Happened):
    """A harness took the session up; its position is the epoch."""


@dataclass(frozen=True, slots=True)
class Offered(Happened):
    """A hand's tools were looked up. `failed` means that they could not be."""

    hand: str
    tools: tuple[ToolSpec, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Replied(Happened):
    """The model answered, having read up to `read`. `content` is JSON text of content blocks.

    The cost in `usage` is what the log says; `priced` tells whether it says anything.
    """

    content: str
    stop_reason: str
    read: int
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = NO_USAGE
    priced: bool = True


@dataclass(frozen=True, slots=True)
class Compacted(Happened):
    """The conversation before position `end` has a summary: `content` is JSON text of content blocks.

    Everything that was said before `end`, and each reply that had read no further, is in it.
    """

    end: int
    content: str
    usage: Usage = NO_USAGE
    priced: bool = True


@dataclass(frozen=True, slots=True)
class CallStarted(Happened):
    """A call was about to be sent to a hand, under an epoch."""

    id: str
    epoch: int
    hand: str
    sandbox_id: str = ""


@dataclass(frozen=True, slots=True)
class CallFinished(Happened):
    """A call was settled."""

    id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ConfirmationAsked(Happened):
    """A person is to decide about a call, which `call_hash` stands for."""

    id: str
    call_hash: str = ""


@dataclass(frozen=True, slots=True)
class Confirmed(Happened):
    """A person decided about the call that `call_hash` stands for."""

    id: str
    allowed: bool
    message: str = ""
    call_hash: str = ""


@dataclass(frozen=True, slots=True)
class CustomAsked(Happened):
    """A client is to run a call, before `due` (Unix time, seconds) if there is such a time."""

    id: str
    due: float | None = None


@dataclass(frozen=True, slots=True)
class CustomAnswered(Happened):
    """A client has run a call."""

    id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Provisioned(Happened):
    """A sandbox was made for a hand; `generation` counts the hand's sandboxes."""

    hand: str
    sandbox_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Attached(Happened):
    """A hand joined the session. `read_only` means that another session owns it."""

    hand: str
    sandbox_id: str
    from_session_id: str = ""
    read_only: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Transferred(Happened):
    """A hand goes to another session."""

    hand: str
    sandbox_id: str
    to_session_id: str


@dataclass(frozen=True, slots=True)
class Detached(Happened):
    """A hand's sandbox is gone, or was taken from the session: `taken` is what people are told of that."""

    hand: str
    sandbox_id: str
    taken: str = ""


@dataclass(frozen=True, slots=True)
class Retry(Happened):
    """A failed call of the model will be made again at `at` (Unix time, seconds)."""

    attempt: int
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rendered(Happened):
    """Content that the API does not take was made fit: `content` (JSON text of blocks) stands for it from here on."""

    source_sha256: str
    content: str


@dataclass(frozen=True, slots=True)
class DoorRefused(Happened):
    """A hand asked for something through one of its doors, and may not have it. `reason` is an ErrorReason."""

    door: str
    target: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended(Happened):
    """A turn ended, having dealt with everything up to `read`."""

    reason: EndReason
    read: int


@dataclass(frozen=True, slots=True)
class Paused(Happened):
    """A budget, named by its field, was used up."""

    budget: str


@dataclass(frozen=True, slots=True)
class SessionOver(Happened):
    """The session ended for good."""


@dataclass(frozen=True, slots=True)
class Other(Happened):
    """Something that deciding may skip."""


@dataclass(frozen=True, slots=True)
class Unknown(Happened):
    """Something that this harness does not know and may not skip."""

    kind: str = ""


OfCall = CallStarted | CallFinished | ConfirmationAsked | Confirmed | CustomAsked | CustomAnswered
Step = (
    Offered
    | Replied
    | Compacted
    | CallStarted
    | CallFinished
    | ConfirmationAsked
    | CustomAsked
    | Provisioned
    | Retry
    | Rendered
    | Ended
)
Around = Started | Configured | Message | Interrupt | Woke | Paused | SessionOver | Other | Unknown
HandNews = Attached | Transferred | Detached
Said = Message | Replied | CallFinished | DoorRefused | HandNews | Compacted  # what a request to the model is made of
Fact = OfCall | Step | Around | Said
