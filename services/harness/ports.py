"""What a harness is given: a session's log, a model, hands and servers; and what a harness type is.

Longer than a module should be: a short port for each part of the mesh.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from handmesh.session.v1.event_pb2 import Event, TokenUsage
from handmesh.session.v1.session_pb2 import Preview
from services.harness.condition import Condition
from services.harness.core import BlobRef, Fact, ToolResult, ToolSpec
from services.harness.prices import BUILT_IN, Prices

if TYPE_CHECKING:
    from services.harness.mesh.tool import MeshTools


@dataclass(frozen=True)
class Page:
    """Facts in order of position, and the position of the log's last event when they were read."""

    facts: Sequence[Fact]
    last_position: int


@dataclass(frozen=True)
class Appended:
    """Where events are in the log, and since when (Unix time, nanoseconds).

    `grant` comes with an accepted `HarnessWoke` only.
    """

    first_position: int
    grant: str = ""
    time: int = 0


class Previews(Protocol):
    """Shows watchers what is about to become an event. Never fails, may drop."""

    def show(self, preview: Preview) -> None:
        """Takes one piece; returns at once."""

    def drop(self) -> None:
        """Drops what is not on its way: the event itself comes now, and says all of it."""

    async def flush(self) -> None:
        """Sends what is left without waiting for more. On return it is on its way."""

    async def close(self) -> None:
        """Sends what is left, for at most a second."""


@dataclass(frozen=True)
class Slice:
    """Events in the order asked for. `next` is where to go on, 0 when the slice is complete; `head` the log's end."""

    events: Sequence[Event]
    next: int
    head: int


class SessionLog(Protocol):
    """One session's log."""

    session_id: str
    newest: Sequence[Fact]  # the log's last events as they were when the session was offered; may be empty

    def follow(self, start_position: int) -> AsyncIterator[Page]:
        """Yields the log from a position on, then what is appended, without a gap or a repeat, over reconnects.

        The first page comes at once, even when it is empty. Raises Gone when there is no such session.
        """

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        """Appends events in one step. Idempotent by their ids.

        Raises Conflict (`POSITION_CONFLICT`, `EPOCH_STALE`), Refused (`TOOL_CALL_SETTLED`, ...), Invalid and
        Unavailable.
        """

    async def put_blob(self, data: bytes, media_type: str) -> BlobRef:
        """Keeps something big beside the log. Idempotent by content.

        Raises Full (`BLOB_QUOTA`), Refused (`SESSION_ENDED`), Invalid and Unavailable.
        """

    async def get_blob(self, blob_id: str, max_bytes: int) -> bytes | None:
        """Returns what a blob holds; None when it has more than `max_bytes`.

        Raises Gone (`BLOB_NOT_FOUND`), Invalid (`ID_INVALID`) and Unavailable.
        """

    async def read(
        self, start: int, end: int, kinds: Sequence[str] = (), *, descending: bool = False, most: int = 0
    ) -> Slice:
        """Reads events of [start, end), 0 for an end meaning the log's. Without kinds all of them; `most` 0 means 100.

        Going back one starts at `end`, and goes on with the slice's `next` as the end. Raises Invalid and Unavailable.
        """

    def previews(self, epoch: int) -> Previews:
        """Opens a way to show previews."""

    async def watched(self, epoch: int) -> bool:
        """Tells whether anybody is shown previews. No when that cannot be found out."""


@dataclass(frozen=True)
class Answer:
    """What the model said. `content` is JSON text of its content blocks; a call's input in it is as it was sent.

    `stop_details` is JSON text, or empty.
    """

    content: str = field(repr=False)
    stop_reason: str
    usage: TokenUsage
    message_id: str
    model: str
    stop_sequence: str = ""
    stop_details: str = ""
    edits: str = ""  # JSON text: what the API says that it has cut from the context


class ModelFailure(Exception):
    """The model did not answer. `reason` is an ErrorReason; `retry_after` is what the API asks for, in seconds.

    `http_status` is the API's, 0 when no connection to it could be made; None for a failure of another kind.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        retryable: bool,
        retry_after: float | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(f"{message} [{reason}]")
        self.reason = reason
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.http_status = http_status


class Model(Protocol):
    """The model's API."""

    async def newest(self) -> str:
        """Names the newest model that the client library knows. Loads that library, which may take a second."""

    async def ask(self, body: bytes, show: Callable[[int, str, str], None], betas: Sequence[str] = ()) -> Answer:
        """Sends a request's body and streams the answer: `show(block_index, kind, piece)` for each piece of a block.

        `betas` are features of the API that the request needs, as its header names them.

        `kind` is a field of `Preview.delta`: `text`, `thinking` or `tool_input`. Raises ModelFailure. To cancel the
        call is to stop the stream.
        """


@dataclass(frozen=True)
class Toolbox:
    """The tools that a hand will have, and its environment: its name, and what the operator says of it."""

    tools: Sequence[ToolSpec]
    environment: str = ""
    description: str = ""


@dataclass(frozen=True)
class Sandbox:
    """A sandbox that was made for a hand."""

    sandbox_id: str
    environment: str
    unenforced_limits: tuple[str, ...] = ()
    attached: bool = False  # a standing hand: that it came, the sandbox service says in the log


@dataclass(frozen=True)
class Standing:
    """What a harness acts under: its epoch of the session, and the grant that came with it."""

    epoch: int
    grant: str = field(default="", repr=False)


class Hands(Protocol):
    """Sandboxes. `spec` is a serialized HandSpec; errors are ServiceErrors, Conflict (`EPOCH_STALE`) among them."""

    async def tools(self, spec: bytes, under: Standing, sandbox_id: str = "") -> Toolbox:
        """Lists the tools that the hand will have, or those of a sandbox that there is. Provisions nothing."""

    async def provision(self, session_id: str, hand: str, spec: bytes, generation: int, under: Standing) -> Sandbox:
        """Makes the hand's sandbox. Idempotent by session, hand and generation. A standing hand is attached instead."""

    async def execute(self, sandbox_id: str, tool: str, input: str, execution_id: str, under: Standing) -> ToolResult:
        """Runs a tool once, however often it is called with the id, and waits for its result."""

    def follow(self, sandbox_id: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        """Yields what an execution says from an offset on, and the offset behind it, until it has ended.

        Whoever stops following ends nothing.
        """

    async def cancel(self, sandbox_id: str, execution_id: str, under: Standing) -> None:
        """Kills an execution, or makes sure that it never starts."""

    async def extend(self, sandbox_id: str, path: str, piece: bytes, offset: int, under: Standing) -> None:
        """Puts a piece of at most 1 MiB behind so many bytes of a file that tools may read; 0 replaces the file.

        Raises Invalid (`RESOURCE_INVALID`) when that is not all that the file has.
        """

    async def end_of(self, sandbox_id: str, path: str, most: int) -> tuple[int, bytes]:
        """Returns how many bytes a file has, and the last of them; of a file that is not there, none."""


class Servers(Protocol):
    """MCP servers behind the vault proxy. `grant` says whose; errors are ServiceErrors."""

    async def tools(self, grant: str) -> tuple[list[ToolSpec], list[tuple[str, str, str, str]]]:
        """Lists the tools of all servers, and what is missing: server, tool (empty: all), reason and message."""

    async def execute(
        self, grant: str, tool: str, input: str, execution_id: str, attach_only: bool, offered: int
    ) -> ToolResult:
        """Runs a tool and waits. With `attach_only` it only waits for what runs or has run already. `offered` is the
        position of the server's tools in the log, with which what it lists now is compared."""

    def follow(self, grant: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        """Yields what the server says of an execution's progress, as `Hands.follow` does."""

    async def cancel(self, grant: str, execution_id: str) -> None:
        """Asks the server to stop an execution, or makes sure that it never starts."""


class Pictures(Protocol):
    """Makes images smaller."""

    async def shrink(self, data: bytes) -> tuple[bytes, str] | None:
        """Returns a smaller image and its media type, such that the model's API takes it; None when it cannot be done.

        Whatever the data are, it comes to an end and raises nothing.
        """


@dataclass(frozen=True)
class Ports:
    """Everything that a harness type reaches the world through."""

    model: Model
    hands: Hands
    servers: Servers
    now: Callable[[], float]
    jitter: Callable[[], float]
    prices: Prices = BUILT_IN
    pictures: Pictures | None = None  # without any, the model is told of an image that is too big
    mesh: Sequence[MeshTools] = ()  # the mesh's own tools; of two with one name the first counts


ASKING = "model"  # the step in which the model is asked
LINGERING = "lingering"  # the step in which the next message is waited for


class Progress(Protocol):
    """Where a run tells how far it is. `condition` is what holds it up, for those who look."""

    condition: Condition

    def took_up(self, epoch: int) -> None:
        """The session is this harness's from now on."""

    def step(self, name: str) -> None:
        """What the run does now. `ASKING` is what a harness that goes away lets end if it can: it is paid for."""

    def calls(self, calls: Sequence[tuple[str, str, str]]) -> None:
        """Which tool calls are at work now: the model's id, the tool as the model knows it, and who has it."""

    def linger(self) -> float:
        """How many seconds the session may be kept now that it needs nobody; 0 when others need the room."""


class NotAvailable(Exception):
    """A harness type cannot be had on this machine. The text says what is missing, and how to get it."""


class HarnessType(Protocol):
    """A kind of brain. Holds nothing of a session that its log does not hold, and little of that between two runs."""

    description: str

    async def run(self, log: SessionLog, ports: Ports, instance: str, progress: Progress) -> float | None:
        """Takes the session up and works until there is nothing to do or another harness owns it.

        Returns when the session is to be taken up again though nothing has happened (Unix time, seconds); None when
        only something that happens calls for a harness. Nothing of the session is held until then.

        Returns without a word to `progress.took_up` when there was nothing to do. Raises Conflict when another
        harness was faster, Gone when there is no such session.
        """
