"""What a runner is told when it starts."""

from __future__ import annotations

import json
from typing import NamedTuple

PROTOCOL = 1
MAX_REQUEST_BYTES = 8 << 20
CHUNK_BYTES = 32 << 10  # of UTF-8 in one `chunk`
OUTPUTS = "outputs"  # the folder of the workspace for what is made for people; it is there from the start


class Config(NamedTuple):
    """Where a runner works and what it enforces. Sizes are bytes.

    A NamedTuple, here and in the runner's other modules: dataclasses would cost each sandbox 1.5 MB and 5 ms.
    """

    workspace: str
    records: str
    socket: str | None = None  # a path to listen on,
    socket_fd: int | None = None  # or a listening socket that was inherited
    claim_seconds: float = 60.0  # without any caller for so long at the start, the runner ends itself
    anchor: str | None = None  # a folder of the service's; when it is removed, so is the reason for this sandbox
    tool_uid: int | None = None  # tools run as this user; needs CAP_SETUID, _SETGID, _SETPCAP, _KILL
    env: dict[str, str] = {}
    oom_files: tuple[str, ...] = ()  # files with an `oom_kill N` line
    memory_bytes: int = 0  # what the sandbox may use, for the text of an error
    output_text_bytes: int = 100 << 10
    output_file_bytes: int = 64 << 20
    output_total_bytes: int = 1 << 30  # a tool that prints more is killed
    records_bytes: int = 256 << 20  # of output kept of executions that have ended
    rlimits: dict[str, int] = {}  # name without RLIMIT_, lower case -> value

    @staticmethod
    def parse(text: str) -> Config:
        """Reads the JSON form. Raises TypeError for an unknown or a missing key."""
        values = json.loads(text)
        return Config(**{**values, "oom_files": tuple(values.get("oom_files", ()))})
