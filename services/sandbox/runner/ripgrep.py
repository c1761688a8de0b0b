"""ripgrep, where a sandbox has it: made to say what our own search says, only sooner.

One thing stays different: a byte that is no UTF-8 is matched by nothing here, and there by what matches U+FFFD.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

from .files import ToolFailed, checked

MAX_FILE_BYTES = 16 << 20  # of a file that is searched
_MAX_COMPLAINT_BYTES = 16 << 10
_OPTIONS = (
    "--json",
    "--no-config",
    "--no-messages",
    "--no-mmap",  # or a binary file is not always known as one
    "--hidden",
    "--no-ignore",
    "--crlf",
    "--encoding=none",
    "--sort=path",
    "--glob=!.git",
    "--glob=!node_modules",
    f"--max-filesize={MAX_FILE_BYTES}",
)


class Refused(Exception):
    """ripgrep does not take the pattern. Its text says why."""


def find() -> str | None:
    """Returns the first ripgrep on PATH."""
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder, "rg")
        if os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def search(program: str, pattern: str, root: str) -> Iterator[tuple[str, int, str]]:
    """Yields path, line number and line of each match, by path. Binary files have none. Raises Refused."""
    import subprocess  # here, for the runner itself does without

    with subprocess.Popen(
        [program, *_OPTIONS, "-e", pattern, "--", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            yield from _matches(process.stdout)
            complaint = process.stderr.read(_MAX_COMPLAINT_BYTES).decode("utf-8", "replace").strip()
        finally:
            process.kill()  # it has ended, or nobody wants the rest
    if process.returncode < 0:
        raise ToolFailed(f"grep: ripgrep was killed by signal {-process.returncode}; look in a smaller directory")
    if complaint:
        raise Refused(complaint)


def _matches(lines: Any) -> Iterator[tuple[str, int, str]]:
    """Reads what `--json` prints."""
    wanted = False
    for said in map(json.loads, lines):
        data = said["data"]
        if said["type"] == "begin":
            wanted = bool(text_of(os.fsdecode(_bytes(data["path"]))))
        elif said["type"] == "match" and wanted:
            yield os.fsdecode(_bytes(data["path"])), data["line_number"], line_of(_bytes(data["lines"]))


def _bytes(value: dict[str, str]) -> bytes:
    return value["text"].encode("utf-8") if "text" in value else base64.b64decode(value["bytes"])


def text_of(path: str) -> bytes:
    """Reads a text file; what is binary, too large, or may not be read, is empty."""
    try:
        with os.fdopen(checked(path, os.O_RDONLY), "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return b""
    return b"" if len(data) > MAX_FILE_BYTES or b"\0" in data else data


def line_of(data: bytes) -> str:
    """Decodes a line and takes off its end, of either kind."""
    line = data.decode("utf-8", "replace")
    line = line[:-1] if line.endswith("\n") else line
    return line[:-1] if line.endswith("\r") else line
