"""The search tools: glob and grep. Bounded in entries and output; links to directories are not followed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from .files import Answer, ToolFailed, _absolute

MAX_ENTRIES = 50_000
MAX_RESULTS = 200
MAX_GREP_BYTES = 100 << 10
MAX_LINE_CHARACTERS = 2_000
_MAX_FILE_BYTES = 16 << 20
_SKIPPED = frozenset({".git", "node_modules"})


def glob(workspace: str, given: dict[str, Any]) -> Answer:
    """Lists the files under a directory that a pattern matches, newest first."""
    pattern = given["pattern"]
    if pattern.startswith("/") or ".." in pattern.split("/") or "\0" in pattern:
        raise ToolFailed("the pattern must be relative and without `..`; say where to look by `path`")
    root = _directory(workspace, given)
    matches = _compiled(pattern).fullmatch
    found: list[tuple[float, str]] = []
    entries, complete = _walk(root, skip=frozenset())
    for entry in entries:
        if matches(os.path.relpath(entry.path, root)):
            found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    found.sort(key=lambda item: (-item[0], item[1]))
    lines = [path for _, path in found[:MAX_RESULTS]]
    if len(found) > MAX_RESULTS:
        lines.append(f"[{len(found) - MAX_RESULTS} more files match; the {MAX_RESULTS} newest are listed]")
    if not complete:
        lines.append(f"[stopped after {MAX_ENTRIES} entries; look in a smaller directory]")
    return Answer("\n".join(lines) or "(no files match)")


def grep(workspace: str, given: dict[str, Any]) -> Answer:
    """Lists the lines that a regular expression matches as `path:number:line`."""
    root = _absolute(workspace, given["path"]) if given.get("path") else workspace
    if not os.path.exists(root):
        raise ToolFailed(f"{root} does not exist")
    tool = _ripgrep()
    text = _by_ripgrep(tool, given["pattern"], root) if tool else _by_walking(given["pattern"], root)
    return Answer(text or "(no matches)")


def _ripgrep() -> str | None:
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder, "rg")
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _by_ripgrep(tool: str, pattern: str, root: str) -> str:
    import subprocess  # here, for the runner itself does without

    argv = [tool, "--no-config", "--line-number", "--no-heading", "--with-filename", "--color=never", "--hidden"]
    argv += [
        "--no-ignore",
        "--no-messages",
        "--glob=!.git",
        "--glob=!node_modules",
        f"--max-columns={MAX_LINE_CHARACTERS}",
    ]
    with subprocess.Popen(
        [*argv, "-e", pattern, "--", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        data = process.stdout.read(MAX_GREP_BYTES + 1)
        process.stdout.close()  # with more to say, ripgrep ends itself now
        complaint = process.stderr.read(MAX_GREP_BYTES)
    if process.returncode == 2 and not data:
        raise ToolFailed(complaint.decode("utf-8", "replace").strip())
    return _cut(data.decode("utf-8", "replace").splitlines())


def _by_walking(pattern: str, root: str) -> str:
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise ToolFailed(f"the pattern is no regular expression: {error}") from None
    lines: list[str] = []
    size = 0
    for path in _text_files(root):
        for number, line in enumerate(_lines_of(path), 1):
            if len(line) > MAX_LINE_CHARACTERS or not search(line):
                continue
            lines.append(f"{path}:{number}:{line}")
            size += len(lines[-1])
            if size > MAX_GREP_BYTES:
                return _cut(lines)
    return "\n".join(lines)


def _cut(lines: list[str]) -> str:
    size = 0
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_GREP_BYTES:
            return "\n".join(lines[:index]) + f"\n[more lines match; {MAX_GREP_BYTES} bytes is the most]"
    return "\n".join(lines)


def _text_files(root: str) -> Iterator[str]:
    if os.path.isfile(root):
        yield root
        return
    entries, _ = _walk(root, skip=_SKIPPED)
    for entry in entries:
        if entry.stat(follow_symlinks=False).st_size <= _MAX_FILE_BYTES:
            yield entry.path


def _lines_of(path: str) -> list[str]:
    """Reads a text file; what is binary, or may not be read, has no lines."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            data = file.read(_MAX_FILE_BYTES)
    except OSError:
        return []
    return [] if b"\0" in data[:8192] else data.decode("utf-8", "replace").splitlines()


def _directory(workspace: str, given: dict[str, Any]) -> str:
    root = _absolute(workspace, given["path"]) if given.get("path") else workspace
    if not os.path.isdir(root):
        raise ToolFailed(f"{root} is not a directory")
    return root


def _walk(root: str, skip: frozenset[str]) -> tuple[list[os.DirEntry[str]], bool]:
    """Returns the regular files under a directory in a fixed order, and whether these are all."""
    files: list[os.DirEntry[str]] = []
    seen = 0
    queue = [root]
    while queue:
        try:
            with os.scandir(queue.pop()) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue  # gone meanwhile, or not ours to read
        for entry in entries:
            seen += 1
            if seen > MAX_ENTRIES:
                return files, False
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in skip:
                    queue.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry)
    return files, True


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
        raise ToolFailed(f"the pattern {pattern!r} is no glob") from None
