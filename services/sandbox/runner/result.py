"""Makes the result of an execution from what is known of its end. Pure."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, NamedTuple

from .output import clean

LOST = b'{"result": {"text": "the result of this execution was lost", "outcome": "UNKNOWN", "seconds": 0.0}}\n'


class Ending(NamedTuple):
    """What is known of an execution that has ended."""

    command: bool  # a bash command, and no file tool
    text: str  # what it printed
    status: int | None  # of its first process, as of waitpid; None when that one would not die
    stopped: str | None  # why it was killed: TIMEOUT, INTERRUPTED, FLOOD
    out_of_memory: bool  # the kernel killed some process of the sandbox meanwhile
    side: bytes | None  # the answer of a file tool, the state of a shell; None when too large
    timeout: float
    seconds: float
    truncated: bool = False
    spill_path: str = ""
    memory_bytes: int = 0
    output_total_bytes: int = 0
    state_limit: int = 0


def compose(end: Ending) -> dict[str, Any]:
    """Returns the result: text for the model, outcome, exit code or signal, content blocks, where the rest is."""
    text, blocks = (end.text.rstrip("\n"), None) if end.command else _answered(end)
    exit_code, number = _split(end.status)
    outcome, note = _judged(end, exit_code, number)
    if end.command and end.side is None:
        note += f"{'; ' if note else ''}variables and functions over {end.state_limit} bytes were not kept"
    text = text or "(no output)"
    result: dict[str, Any] = {"text": f"{text}\n[{note}]" if note else text, "outcome": outcome, "seconds": end.seconds}
    if blocks is not None:
        result["content"] = json.dumps(blocks)
    if end.command and end.stopped is None and end.status is not None:
        result.update({"exit_code": exit_code} if number is None else {"signal": number})
    if end.truncated:
        result.update({"truncated": True, "spill_path": end.spill_path})
    return result


def _judged(end: Ending, exit_code: int | None, number: int | None) -> tuple[str, str]:
    """Returns the outcome, and a note for the model on how it came about."""
    if end.stopped == "TIMEOUT":
        return "TIMEOUT", f"timed out after {end.timeout:g} s; all its processes were killed"
    if end.stopped == "INTERRUPTED":
        return "INTERRUPTED", "interrupted; all its processes were killed"
    if end.stopped == "FLOOD":
        return "TOOL_ERROR", f"killed: it wrote more than {end.output_total_bytes} bytes of output"
    limit = f": the sandbox may use {end.memory_bytes >> 20} MiB" if end.memory_bytes else ""
    if end.out_of_memory:
        note = f"out of memory{limit}; the kernel killed a process"
        return ("OK", note) if end.status == 0 else ("OUT_OF_MEMORY", note)
    if number is not None:
        return "TOOL_ERROR", f"killed by signal {number}{_name(number)}"
    if exit_code:
        return "TOOL_ERROR", f"exit code: {exit_code}" if end.command else ""
    return "OK", ""


def _answered(end: Ending) -> tuple[str, object | None]:
    try:
        answer = json.loads(end.side or b"")
        return clean(answer["text"]), answer.get("blocks")
    except ValueError:  # it was killed before it answered
        return end.text, None


def _split(status: int | None) -> tuple[int | None, int | None]:
    """Splits a status into exit code and signal."""
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return ""
