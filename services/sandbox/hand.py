"""The `Hand` port: what a backend must be able to do, and what it promises.

A backend is a folder under `hands/` with `make(HandSettings) -> Hand` and `KEYS`, the keys of a recipe that it alone
understands, in its `__init__.py`; nothing else names it.
Errors are `ServiceError`s. A failing tool is a value, never an error. Longer than a module should be: whoever makes a
backend reads this and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol

from services.sandbox.tools import Tool

WORKSPACE = "/workspace"
MAX_ARCHIVE_BYTES = 1 << 20
MAX_EXPANDED_BYTES = 64 << 20  # of an archive
MAX_ENTRIES = 10_000  # of an archive
MAX_PACKED_ENTRIES = 200_000
NO_NETWORK = "none"
FILES, CHECKPOINTS, REPOSITORIES, DOORS, POOLS = "files", "checkpoints", "repositories", "doors", "pools"
ENV = "env"  # the recipe's variables for tools
CUSTODY = (
    "custody"  # what runs in it runs by the service's own hand: it ends with it, and so do its processes and state
)
CAPABILITIES = frozenset({FILES, CHECKPOINTS, REPOSITORIES, DOORS, POOLS, ENV, CUSTODY})  # beside tools


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. Bytes and seconds."""

    memory_bytes: int = 1 << 30
    cpus: float = 2.0
    processes: int = 256
    disk_bytes: int = 1 << 30  # of the workspace
    open_files: int = 1024
    seconds: float = 600.0  # of one execution, at most
    output_text_bytes: int = 100 << 10  # in a result; the middle of what is longer is left out
    output_file_bytes: int = 64 << 20  # kept of one execution, for followers and for `read`
    output_total_bytes: int = 1 << 30  # an execution that prints more is killed


@dataclass(frozen=True)
class Network:
    """What tools may reach through the egress door. Nothing when all is unset: then there is no such door."""

    allow: tuple[str, ...] = ()  # names and `*.name`, each with `:port` or without, which means 80 and 443
    allow_package_managers: bool = False
    allow_mcp_servers: bool = False

    def __bool__(self) -> bool:
        return bool(self.allow) or self.allow_package_managers or self.allow_mcp_servers


@dataclass(frozen=True)
class Recipe:
    """How to make a sandbox, as the operator configured it under a name."""

    name: str
    backend: str
    description: str = ""
    image: str = ""  # of a backend that has images
    rootfs: str = ""  # a directory for the root view of a backend that has none; empty means the host's /usr
    runtime: str = ""  # of a backend that has several
    packages: tuple[str, ...] = ()  # of the image's distribution; installed once, before any sandbox is made
    setup: tuple[str, ...] = ()  # commands of bash, likewise, after the packages
    network: Network = Network()
    env: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()  # names; empty means all
    limits: Limits = Limits()
    pool: int = 0  # how many free sandboxes to keep ready
    worker: str = ""  # of a backend whose hands dial out: the hand's name
    labels: Mapping[str, str] = field(default_factory=dict)  # likewise: what its workers must say of themselves
    tenant: str = ""  # likewise: whose hand it is


@dataclass(frozen=True)
class Owner:
    """A session that had a sandbox, as its owner of that generation."""

    generation: int
    session_id: str


@dataclass(frozen=True)
class Reader:
    """A session that may use the tools that change nothing, and the hand's name in it.

    `number` is of the sandbox's shares. `leaving` means that it is being taken back.
    """

    session_id: str
    hand: str
    number: int
    leaving: bool = False
    told: bool = False  # whether its log says so


@dataclass(frozen=True)
class Move:
    """A sandbox's way from one owner to another, as far as it is.

    LEAVING: nothing starts any more for the old owner; it may still be undone. DECIDED: nothing runs; it will be done,
    and the old owner's log may say so. OWNED: the labels name the new owner, and `from_session_id` the old one.
    `tenant` is whose the hand is: a session that is deleted on the way cannot say so any more.
    """

    to_session_id: str  # empty for nobody
    to_hand: str
    until: float  # Unix seconds: what still runs then is cancelled
    stage: Literal["LEAVING", "DECIDED", "OWNED"] = "LEAVING"
    from_session_id: str = ""
    tenant: str = ""


@dataclass(frozen=True)
class Labels:
    """Whose a sandbox is. The hand keeps them with the sandbox and gives them back after any restart."""

    sandbox_id: str
    environment: str
    create_time: float  # Unix seconds
    session_id: str = ""
    hand: str = ""
    request_id: str = ""
    generation: int = 1
    pool: str = ""  # of a free one that waits for an owner: a digest of what it was made by
    tenant: str = ""  # of the client that made it for itself, or for whom it stands; else a session's is its session's
    standing: str = ""  # its name as a standing hand; empty for one that ends with its session
    description: str = ""  # what it is for, for models
    move: Move | None = None  # on its way to another owner
    readers: tuple[Reader, ...] = ()
    shares: int = 0  # counts how often it was shared
    past: tuple[Owner, ...] = ()  # the owners before this one, the newest last


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox that there is."""

    labels: Labels
    backend: str
    tools: tuple[str, ...]  # of its recipe, at the time when it was made
    seconds: float  # likewise: the most that an execution may take
    unenforced_limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """A file to put into a sandbox."""

    path: str  # absolute
    content: bytes
    mode: int = 0o644
    offset: int = 0  # the content goes behind so many bytes, all that the file has; 0: it takes the file's place


@dataclass(frozen=True)
class Archive:
    """A tar, tar.gz or zip to unpack into a directory. What it may hold is said in `runner/archives.py`."""

    path: str  # absolute
    content: bytes


@dataclass(frozen=True)
class Streamed:
    """A file whose content comes piece by piece. It is there when all of it has come, or not at all."""

    path: str  # absolute
    opened: Callable[[], AsyncGenerator[bytes, None]]
    mode: int = 0o644


@dataclass(frozen=True)
class Packed:
    """A workspace as `Hand.pack` gave it."""

    opened: Callable[[], AsyncGenerator[bytes, None]]
    limit_bytes: int  # when it is unpacked


Content = File | Archive | Streamed | Packed


@dataclass(frozen=True)
class FileInfo:
    """A regular file of a sandbox. `stamp` is another one whenever the file has changed; nothing else is in it."""

    path: str  # absolute
    size: int
    modify_time_ns: int  # Unix time
    stamp: str


@dataclass(frozen=True)
class Order:
    """A tool to run, checked. `digest` is the same for the same tool and input."""

    execution_id: str
    name: str
    input: Mapping[str, Any]
    digest: str
    seconds: float
    epoch: int = 0
    generation: int = 0  # of the sandbox, as the caller knows it; 0 is not fenced


class Outcome(Enum):
    """How an execution ended. The names are those of the contract's `ToolOutcome`."""

    OK = "OK"
    TOOL_ERROR = "TOOL_ERROR"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INTERRUPTED = "INTERRUPTED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Chunk:
    """More output: whole characters, at most 32 KiB of UTF-8. The next chunk starts at `next_offset` bytes."""

    text: str
    next_offset: int


@dataclass(frozen=True)
class Result:
    """What a tool said. Text is never empty; head and tail are kept of one that is too long, and the cut is marked."""

    text: str
    outcome: Outcome
    seconds: float = 0.0
    content_json: str = ""  # an array of content blocks of the model's API, when there is more than text
    exit_code: int | None = None
    signal: int | None = None
    truncated: bool = False
    spill_path: str = ""  # where the whole output lies in the sandbox, when it was truncated


@dataclass(frozen=True)
class ExecutionInfo:
    """An execution that a sandbox remembers. `outcome` is None while it runs."""

    execution_id: str
    name: str
    start_time: float  # Unix seconds
    outcome: Outcome | None
    generation: int = 0  # that it was started under


@dataclass(frozen=True)
class Doors:
    """The doors of a sandbox that are open: the loopback port of each, by name, and where `Trust` is written."""

    ports: Mapping[str, int]
    folder: str
    outfitted: bool = True  # whether tools have been given variables since the sandbox has its owner


@dataclass(frozen=True)
class Trust:
    """Authorities for tools to trust, as PEM. `system` are taken where the sandbox has none of its own."""

    system: str
    own: str = ""


@dataclass(frozen=True)
class Visit:
    """A tool's connection to a door, outside the sandbox. What the tool says can be read, what it shall read written.

    When one side has said all, the other can go on: `write_eof` and the end of `reader` mean that and no more.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(frozen=True)
class Bounds:
    """How long is waited for hands that dial out. Seconds."""

    lease: float = 10.0  # either side may be silent so long
    offline: float = 30.0  # a call waits so long for any worker to connect
    queue: float = 600.0  # and so long for one that has room
    reattach: float = 600.0  # a worker whose link is cut is waited for
    late: float = 30.0  # an execution may take past its limit, before its worker is taken to be stuck


@dataclass(frozen=True)
class HandSettings:
    """What a backend is told when it is made. `state_dir` is its own."""

    state_dir: Path
    allow_unisolated: bool = False
    docker_host: str | None = None
    bounds: Bounds = Bounds()


class Hand(Protocol):
    """Makes sandboxes and runs tools in them.

    A sandbox and its executions outlive this object and the service: a new Hand over the same state goes on with
    them. Every method may be called at any time, also side by side. A sandbox that is not there, or has died, is
    `Gone` (`SANDBOX_GONE`); one that does not answer is `Unavailable` (`BACKEND_UNAVAILABLE`).

    `capabilities` says which of CAPABILITIES its sandboxes have. Methods that need another one raise Refused
    (`CAPABILITY_MISSING`); files to `provision` or `put` need `files`, `plant` needs `repositories`.
    """

    capabilities: frozenset[str]

    def tools(self, recipe: Recipe) -> tuple[Tool, ...]:
        """Returns the tools that a recipe's sandboxes have, in the order to offer them.

        Raises Unavailable (`HAND_OFFLINE`) while nobody can tell.
        """
        ...

    def tools_in(self, info: SandboxInfo) -> tuple[Tool, ...]:
        """Returns the tools of a sandbox that there is. Raises as `tools` does."""
        ...

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """Returns the limits that this machine cannot enforce, in words for people; empty when there is none.

        Raises Refused (`ISOLATION_UNAVAILABLE`) or Unavailable (`BACKEND_UNAVAILABLE`), each with what to do, when
        the recipe cannot be followed here and now. Makes nothing.
        """
        ...

    async def prepare(self, recipe: Recipe) -> None:
        """Makes what all sandboxes of the recipe have in common, when it is not there yet. May take many minutes.

        `provision` does it too; who has called this before saves it the time. Calls at the same time, also of other
        services, make it once. Raises as `check` does. What a cancelled call has begun goes on by itself.
        """
        ...

    async def provision(self, recipe: Recipe, labels: Labels, files: Sequence[Content] = ()) -> SandboxInfo:
        """Makes a sandbox with files in it, and returns when it can execute.

        Idempotent by `labels.request_id` unless that is empty: a second call, also one at the same time, also after a
        restart, gets the first one's sandbox and its labels. For another environment or session it raises Exists
        (`REQUEST_ID_REUSED`). What cannot be finished leaves nothing behind. Raises as `check` does, Full (`FULL`),
        and Invalid (`RESOURCE_INVALID`) for a file that cannot be put.
        """
        ...

    async def claim(self, sandbox_id: str, labels: Labels, files: Sequence[Content] = ()) -> SandboxInfo:
        """Gives a free sandbox, one that was made with `labels.pool`, to an owner, and puts files into it.

        It gets the labels, but keeps its id. The change of owner is one step in what the hand keeps: whatever ends
        the service, the sandbox is free or has this owner. Of many claims at once one gets it. The others raise Gone
        (`SANDBOX_GONE`), as for a sandbox that is not there, is not free, or does not answer within a second.

        Idempotent by `labels.request_id`, together with `provision` and as that is: a request that has a sandbox gets
        that one, and this one stays free. What cannot be finished leaves nothing behind: for a file that cannot be put
        (`RESOURCE_INVALID`) the sandbox is destroyed.
        """
        ...

    async def relabel(self, sandbox_id: str, before: Labels, after: Labels) -> SandboxInfo:
        """Changes whose a sandbox is if its labels are `before`: compare and set, one step in what the hand keeps.

        Whatever ends the service, the sandbox has the old labels or the new ones. Of many at once one does it; the
        others raise Conflict (`GENERATION_CONFLICT`). The sandbox is found by the new labels' `request_id` from then
        on, and not by the old one's. Its id does not change.
        """
        ...

    async def fence(self, sandbox_id: str, generation: int) -> None:
        """From now on nothing starts under a lower generation. What has started goes on. Idempotent.

        The sandbox keeps this. Epochs are compared within a generation: a new one begins with none seen. With `custody`
        the variables that tools were given by `outfit` and the shell's state are forgotten.
        """
        ...

    async def put(self, sandbox_id: str, files: Sequence[Content]) -> None:
        """Writes files, and makes their directories. Raises Invalid (`RESOURCE_INVALID`).

        An archive is refused before anything of it is written. Content that comes in pieces is never held as a whole.
        What its `opened` raises is raised.
        """
        ...

    async def files(self, sandbox_id: str, path: str) -> tuple[tuple[FileInfo, ...], bool]:
        """Lists the regular files below an absolute path, or the one that it is, in the order of their paths.

        At most 1,000; the flag says whether there are more. Links are neither listed nor followed below the path.
        Raises Gone (`FILE_NOT_FOUND`).
        """
        ...

    def read_file(self, sandbox_id: str, path: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yields a regular file from an offset on, in pieces of at most 64 KiB: what the tools can read, and no more.

        Raises Gone (`FILE_NOT_FOUND`).
        """
        ...

    def pack(self, sandbox_id: str, leave_out: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
        """Yields the workspace for `Packed`: files, directories, modes, times, symbolic and hard links.

        `leave_out` are absolute paths of what stays out of it. Raises Invalid (`RESOURCE_INVALID`) for what cannot be
        read, and for a file that changes its size meanwhile.
        """
        ...

    async def plant(self, sandbox_id: str, path: str, tree: Path) -> None:
        """Puts a directory of this machine at a path below the workspace, as the tools' own: what they write is theirs.

        The directory itself is never written to, whatever the tools do; it must stay as it is while the sandbox lives.
        Idempotent. Raises Invalid (`RESOURCE_INVALID`) when something else is at the path.
        """
        ...

    async def open_doors(self, sandbox_id: str, names: Sequence[str]) -> Doors:
        """Opens doors, `git` and `egress` or one of them, and returns those that are open. Idempotent.

        An open door is a port of the sandbox's own loopback; it stays open while the sandbox lives. Nothing else of
        the sandbox is reached by it. Raises Refused (`ISOLATION_UNAVAILABLE`) where a sandbox has no network of its
        own, unless no name is given.
        """
        ...

    async def outfit(
        self, sandbox_id: str, env: Mapping[str, str], trust: Trust | None = None, generation: int = 0
    ) -> None:
        """Gives tools that start from now on more variables, and writes authorities into the folder of `Doors`.

        As `ca.pem` (all), `own.pem` and `ca.jks` (all, as Java reads them). Raises Conflict (`GENERATION_CONFLICT`) for
        a generation that is lower than the sandbox's.
        """
        ...

    async def visit(self, sandbox_id: str, door: str) -> Visit:
        """Waits for a tool that connects to an open door. Each is given to one caller, in the order in which they came.

        Without a caller a tool waits for 20 s and is then told 503. Beyond 64 connections at once tools wait to be let
        in. The caller closes the writer. Raises Invalid (`ARGUMENT_INVALID`) for a door that is not open.
        """
        ...

    async def start(self, sandbox_id: str, order: Order) -> bool:
        """Starts an execution, whatever becomes of the caller. False when its id is known: it starts once.

        Raises Exists (`EXECUTION_ID_REUSED`) for a known id with another digest, Conflict when a higher epoch was seen
        (`EPOCH_STALE`) or the id is new and its generation is lower than the sandbox's (`GENERATION_CONFLICT`), Full
        (`FULL`) when there is no room for another process, Gone (`EXECUTION_UNKNOWN`) when it has ended and its result
        is not kept any more.
        """
        ...

    async def run(self, sandbox_id: str, order: Order) -> Result:
        """Starts an execution unless its id is known, and returns its result. Raises as `start` and `follow` do.

        It is `start` and then `follow`, but asks once. A caller that goes away ends nothing.
        """
        ...

    def follow(self, sandbox_id: str, execution_id: str, offset: int | None = None) -> AsyncIterator[Chunk | Result]:
        """Yields output from an offset in bytes on, as it is written, then the result. Without offset: the result.

        Any number may follow, also after the end. Who stops following ends nothing. Raises Gone
        (`EXECUTION_UNKNOWN`), also when its result is not kept any more.
        """
        ...

    async def cancel(self, sandbox_id: str, execution_id: str, epoch: int = 0, generation: int = 0) -> None:
        """Kills an execution with all its processes. One that is not known never starts. Idempotent.

        Raises Conflict (`EPOCH_STALE`). The epoch is one of that generation: 0 means the sandbox's.
        """
        ...

    async def executions(self, sandbox_id: str) -> tuple[ExecutionInfo, ...]:
        """Lists the executions that a sandbox remembers, oldest first."""
        ...

    async def release(self, sandbox_id: str) -> None:
        """Destroys a sandbox and all that is in it: no process, no file, no container stays. Idempotent."""
        ...

    async def find(self, sandbox_id: str) -> SandboxInfo | None:
        """Returns a sandbox that this hand or an earlier one over this state has made, if it was not released."""
        ...

    async def list(self) -> tuple[SandboxInfo, ...]:
        """Lists the sandboxes that live, oldest first, free ones and those of an earlier Hand over this state too."""
        ...

    async def tidy(self) -> None:
        """Removes what is left of sandboxes that have died or were never finished."""
        ...

    async def close(self) -> None:
        """Lets go of connections. Sandboxes stay."""
        ...
