"""The search tools: glob and grep. Bounded in entries, time and output; links to directories are not followed.

grep asks ripgrep where the sandbox has it, and else walks by itself: the same lines, in the same order and form.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from . import ripgrep
from .files import Answer, ToolFailed, absolute, checked, failures

MAX_ENTRIES = 50_000
MAX_RESULTS = 200
MAX_GREP_BYTES = 100 << 10
MAX_LINE_CHARACTERS = 2_000
_GREP_CPU_SECONDS = 25  # below what a file tool may have, so that it can still say what happened
_SKIPPED = frozenset({".git", "node_modules"})
_NO_MATCH = "no matches"
_MAGIC = re.compile(r"[*?\[{]")
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r"\t ",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9A-Fa-f",
}


def glob(workspace: str, given: dict[str, Any]) -> Answer:
    """Lists the files and directories under a directory that a pattern matches, newest first."""
    pattern = given["pattern"]
    if pattern.startswith("/"):
        raise ToolFailed("glob: absolute pattern not permitted; pass a relative pattern (and optionally path)")
    if ".." in pattern.split("/") or "\0" in pattern:
        raise ToolFailed("glob: '..' is not permitted in the pattern")
    root = absolute(workspace, given.get("path") or workspace)
    if not os.path.isdir(root):
        raise ToolFailed(f"glob: {given.get('path')}: not a directory")
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    while len(names) > 1 and not _MAGIC.search(names[0]):  # so that a big neighbour is not walked through
        root = os.path.join(root, names.pop(0))
    matches = _compiled("/".join(names)).fullmatch
    entries = Walk(root, frozenset(), None if "**" in pattern or "{" in pattern else len(names))
    found = [(_changed(entry), entry.path) for entry in entries if matches(os.path.relpath(entry.path, root))]
    found.sort(key=lambda item: (-item[0], item[1]))
    lines = [path for _, path in found[:MAX_RESULTS]] or [_NO_MATCH]
    if len(found) > MAX_RESULTS:
        lines.append(f"[{len(found) - MAX_RESULTS} more match; the {MAX_RESULTS} newest are listed]")
    if not entries.complete:
        lines.append(f"[stopped after {MAX_ENTRIES} entries; look in a smaller directory]")
    return Answer("\n".join(lines))


def grep(workspace: str, given: dict[str, Any]) -> Answer:
    """Lists the lines that a regular expression matches as `path:number:line`, in the order of their paths."""
    root = absolute(workspace, given.get("path") or workspace)
    with failures("grep", given.get("path") or root):
        if not os.path.isdir(root):
            os.close(checked(root, os.O_RDONLY))
    with _limited():
        program = ripgrep.find()
        if program is not None:
            try:
                return Answer(_told(ripgrep.search(program, given["pattern"], root)))
            except ripgrep.Refused as refusal:  # it may be what Python takes: a look-around, a back-reference
                try:
                    re.compile(given["pattern"])
                except re.error:
                    raise ToolFailed(f"grep: invalid regex: {refusal}") from None
        return _by_walking(given["pattern"], root)


@contextmanager
def _limited() -> Iterator[None]:
    """Ends what takes too much time of the processor: Python's regular expressions go back and forth."""

    def end(*_: object) -> None:
        raise ToolFailed(f"grep: timed out after {_GREP_CPU_SECONDS} s; look in a smaller directory")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, _GREP_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _by_walking(pattern: str, root: str) -> Answer:
    try:
        search = re.compile(_with_posix_classes(pattern)).search
    except re.error as error:
        raise ToolFailed(f"grep: invalid regex: {error}") from None
    entries = Walk(root, _SKIPPED, None)
    paths = (entry.path for entry in entries if entry.is_file(follow_symlinks=False)) if os.path.isdir(root) else [root]
    text = _told(
        (path, number, line) for path in paths for number, line in enumerate(_lines_of(path), 1) if search(line)
    )
    return Answer(text if entries.complete else f"{text}\n[stopped after {MAX_ENTRIES} entries; look in a smaller one]")


def _told(matches: Iterable[tuple[str, int, str]]) -> str:
    lines: list[str] = []
    size = 0
    for path, number, line in matches:
        more = len(line) - MAX_LINE_CHARACTERS
        cut = f"{line[:MAX_LINE_CHARACTERS]} [... {more} more characters]" if more > 0 else line
        lines.append(f"{path}:{number}:{cut}")
        size += len(lines[-1].encode("utf-8", "replace")) + 1
        if size > MAX_GREP_BYTES:
            lines[-1] = f"[output truncated at {MAX_GREP_BYTES} bytes; more lines match]"
            break
    return "\n".join(lines) or _NO_MATCH


def _with_posix_classes(pattern: str) -> str:
    """Writes `[[:alpha:]]` so that Python understands it, which it does not by itself, and does not say either."""
    return re.sub(r"\[:(\w+):\]", lambda found: _POSIX.get(found.group(1), found.group(0)), pattern)


def _lines_of(path: str) -> list[str]:
    """Reads a file's lines without their ends."""
    data = ripgrep.text_of(path)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [ripgrep.line_of(line) for line in lines]


def _changed(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0  # gone meanwhile


class Walk:
    """What is under a directory, each directory before what is in it, by name. `complete` tells whether it was all."""

    def __init__(self, root: str, skip: frozenset[str], depth: int | None) -> None:
        """Goes `depth` levels deep, all if None, and not into directories of these names."""
        self.complete = True
        self._root, self._skip, self._depth = root, skip, depth

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        """Yields entries. Stops behind `MAX_ENTRIES`."""
        seen = 0
        open_now = [iter(_scan(self._root))]
        while open_now:
            entry = next(open_now[-1], None)
            if entry is None:
                open_now.pop()
                continue
            seen += 1
            if seen > MAX_ENTRIES:
                self.complete = False
                return
            yield entry
            deeper = self._depth is None or len(open_now) < self._depth
            if deeper and entry.is_dir(follow_symlinks=False) and entry.name not in self._skip:
                open_now.append(iter(_scan(entry.path)))


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as scan:
            return sorted(scan, key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return []  # gone meanwhile, or not ours to read


def _compiled(pattern: str) -> re.Pattern[str]:
    """Translates a glob: `*` and `?` within a name, `**` over directories, `[...]`, `{a,b}`."""
    out: list[str] = []
    depth = 0
    index = 0
    while index < len(pattern):
        rest = pattern[index:]
        bracket = re.match(r"\[([!^]?)(\]?[^\]]*)\]", rest)
        if rest.startswith("**/"):
            out.append("(?:[^/]+/)*")
            index += 3
        elif rest.startswith("**"):
            out.append(".*")
            index += 2
        elif bracket:
            inner = bracket.group(2).replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[{'^' if bracket.group(1) else ''}{inner}]")
            index += bracket.end()
        else:
            simple = {"*": "[^/]*", "?": "[^/]", "{": "(?:", **({"}": ")", ",": "|"} if depth else {})}
            out.append(simple.get(rest[0], re.escape(rest[0])))
            depth += (rest[0] == "{") - (rest[0] == "}" and depth > 0)
            index += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error:
        raise ToolFailed(f"glob: the pattern {pattern!r} is no glob") from None
