"""The rules of the sandbox service: what may run, for how long, under which epoch, and what may be put where. Pure."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from services.kit.errors import Conflict, Invalid
from services.sandbox.hand import MAX_ARCHIVE_BYTES, WORKSPACE, Archive, Content, File, Order, Packed
from services.sandbox.tools import DEFAULT_COMMAND_SECONDS, TOOLS, Tool

MAX_FILE_BYTES = 1 << 20
MAX_VIEW_BYTES = 32 << 20  # of a log's view, which comes piece by piece
MAX_PATH_BYTES = 4096  # of a file that is read
MAX_SESSIONS_FENCED = 10_000
_MOUNT_PATH = re.compile(re.escape(WORKSPACE) + r"(/[A-Za-z0-9._-]{1,64}){1,8}")
_RUNNERS = {tool.name: tool for tool in TOOLS}
_VALIDATORS = {tool.name: Draft202012Validator(tool.input_schema) for tool in TOOLS}


def order(
    tools: Sequence[Tool], name: str, input_json: str, execution_id: str, wanted: float | None, most: float, epoch: int
) -> Order:
    """Checks a call against a sandbox's tools and limits, and makes an order of it.

    Of a hand's own tools only the form of the input is checked: to go by a stranger's schema may take for ever.

    `wanted` and `most` are seconds. Raises Invalid (`TOOL_UNKNOWN`, `TOOL_INPUT_INVALID`, `ARGUMENT_INVALID`).
    """
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        known = ", ".join(tool.name for tool in tools)
        raise Invalid("TOOL_UNKNOWN", f"there is no tool {_shown(name)}; there are: {known}", name=_shown(name))
    if wanted is not None and wanted <= 0:
        raise Invalid("ARGUMENT_INVALID", "timeout must be longer than 0 s", field="timeout")
    given = _parsed(tool, input_json)
    seconds = min(most, _own_seconds(tool, given), most if wanted is None else wanted)
    return Order(execution_id, name, given, digest(name, given), seconds, epoch)


def _parsed(tool: Tool, input_json: str) -> dict[str, Any]:
    """Returns the input, which must be a JSON object that the tool's schema takes."""
    try:
        given = json.loads(input_json or "{}")
        json.dumps(given, ensure_ascii=False).encode()
    except RecursionError:
        raise _refused(tool, "it is nested too deeply") from None
    except UnicodeEncodeError:
        raise _refused(tool, "it has a lone surrogate, which is no character") from None
    except ValueError:
        raise _refused(tool, "it is no JSON") from None
    if tool is not _RUNNERS.get(tool.name):
        return _formed(tool, given)
    if isinstance(given, dict):  # models spell what they leave out as null
        given = {
            key: value for key, value in given.items() if value is not None or key in tool.input_schema["required"]
        }
    error = best_match(_VALIDATORS[tool.name].iter_errors(given))
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path)
        raise _refused(tool, f"{where + ': ' if where else ''}{_shown(error.message)}")
    if tool.name == "bash" and "command" not in given and not given.get("restart"):
        raise _refused(tool, "'command' is a required property unless 'restart' is true")
    if any("\0" in value for key, value in given.items() if key in ("command", "file_path", "path")):
        raise _refused(tool, "it has a NUL byte where none can be")
    return dict(given)


def _formed(tool: Tool, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _refused(tool, "it is no JSON object")
    return given


def _own_seconds(tool: Tool, given: dict[str, Any]) -> float:
    """Returns how long the tool itself wants to be let run."""
    if tool is not _RUNNERS.get(tool.name):
        return math.inf
    if tool.name != "bash":
        return DEFAULT_COMMAND_SECONDS
    return float(given.get("timeout_ms", 0)) / 1000.0 or DEFAULT_COMMAND_SECONDS


def _refused(tool: Tool, why: str) -> Invalid:
    return Invalid("TOOL_INPUT_INVALID", f"{tool.name} does not take this input: {why}", name=tool.name)


def _shown(text: str) -> str:
    """Shortens what a stranger wrote, for an error's message."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= 200 else text[:200] + "..."


def digest(name: str, given: dict[str, Any]) -> str:
    """Returns the same for the same tool and input, however the input was spelled as JSON."""
    return hashlib.sha256(json.dumps([name, given], sort_keys=True).encode()).hexdigest()


def check_contents(contents: Sequence[Content]) -> None:
    """Raises Invalid (`RESOURCE_INVALID`) unless each has a path of its own under the workspace, and fits."""
    placed = [it for it in contents if not isinstance(it, Packed)]
    for it in placed:
        check_mount_path(it.path)
        size, most = 0, 0
        if isinstance(it, File):
            size, most = len(it.content), MAX_FILE_BYTES
            if not 0 <= it.offset <= MAX_VIEW_BYTES - size:
                what = f"{_shown(it.path)} would go on at {it.offset}; a file has at most {MAX_VIEW_BYTES} bytes"
                raise Invalid("RESOURCE_INVALID", what, mount_path=_shown(it.path))
        elif isinstance(it, Archive):
            size, most = len(it.content), MAX_ARCHIVE_BYTES
        if size > most:
            what = f"{_shown(it.path)} has {size} bytes; the limit is {most}"
            raise Invalid("RESOURCE_INVALID", what, mount_path=_shown(it.path))
    check_apart([it.path for it in placed])


def check_mount_path(path: str) -> None:
    """Raises Invalid (`RESOURCE_INVALID`) unless a path is below the workspace."""
    if not _MOUNT_PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        what = f"mount_path must be {WORKSPACE}/ and up to 8 names of A-Z a-z 0-9 . _ -, not {_shown(path)!r}"
        raise Invalid("RESOURCE_INVALID", what, mount_path=_shown(path))


def check_apart(paths: Sequence[str]) -> None:
    """Raises Invalid (`RESOURCE_INVALID`) when a path is, or is below, another one."""
    for path, after in itertools.pairwise(sorted(path + "/" for path in paths)):
        if after.startswith(path):
            raise Invalid("RESOURCE_INVALID", f"two resources want {path[:-1]}", mount_path=path[:-1])


def read_path(path: str) -> str:
    """Returns the path of what is to be listed or read. Raises Invalid (`ARGUMENT_INVALID`)."""
    if path and (not path.startswith("/") or "\0" in path or len(path.encode()) > MAX_PATH_BYTES):
        what = f"path must be absolute, with at most {MAX_PATH_BYTES} bytes, not {_shown(path)!r}"
        raise Invalid("ARGUMENT_INVALID", what, field="path")
    return path or WORKSPACE


class Epochs:
    """The highest epoch seen of each session, for the sessions seen last. Hands keep their own for good."""

    def __init__(self) -> None:
        """Starts with none seen."""
        self._seen: OrderedDict[str, int] = OrderedDict()

    def admit(self, session_id: str, epoch: int) -> None:
        """Takes note of an epoch. Raises Conflict (`EPOCH_STALE`) for a lower one. 0 is not fenced."""
        if not session_id or epoch == 0:
            return
        highest = self._seen.get(session_id, 0)
        if epoch < highest:
            raise Conflict("EPOCH_STALE", "a newer harness owns the session", epoch=highest)
        self._seen[session_id] = epoch
        self._seen.move_to_end(session_id)
        if len(self._seen) > MAX_SESSIONS_FENCED:
            self._seen.popitem(last=False)
