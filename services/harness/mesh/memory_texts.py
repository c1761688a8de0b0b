"""What the memory tool says, in the words of the API's own reference implementation, and what its edits make. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.harness.config import MemoryStore
from services.harness.mesh.memory_paths import Wrong, described

MAX_LISTED = 1_000  # files and directories of one answer
MAX_VIEW_CHARACTERS = 100_000  # of a file, in one answer; at least one line
LEVELS = 2  # of a listing
_WIDTH = 6  # of line numbers


def listing(path: str, sizes: Mapping[str, int], stores: Sequence[MemoryStore] = ()) -> str:
    """Lists what lies under a path, two levels deep. `sizes` are in bytes, by path from there on.

    Of `stores` it says what they are for; one without files has a size as well, under its name with a slash behind.
    """
    found: dict[tuple[str, ...], int] = {}
    folders: set[tuple[str, ...]] = set()
    for file, size in sizes.items():
        parts = tuple(file.removesuffix("/").split("/"))
        if any(part.startswith(".") for part in parts):
            continue
        for depth in range(1, min(len(parts), LEVELS) + 1):
            found[parts[:depth]] = found.get(parts[:depth], 0) + size
            if depth < len(parts) or file.endswith("/"):
                folders.add(parts[:depth])
    lines = [f"Here're the files and directories up to {LEVELS} levels deep in {path}, excluding hidden items:"]
    lines.append(f"{_sized(sum(sizes.values()))}\t{path}")
    for parts in sorted(found)[:MAX_LISTED]:
        lines.append(f"{_sized(found[parts])}\t{path}/{'/'.join(parts)}{'/' if parts in folders else ''}")
    if len(found) > MAX_LISTED:
        lines.append(f"[{len(found) - MAX_LISTED} more are not shown: view a directory further down.]")
    if notes := [f"{described(each)}: {each.description or 'no description'}" for each in stores]:
        lines += ["", "What these directories are for:", *notes]
    return "\n".join(lines)


def numbered(path: str, content: bytes, view_range: Sequence[int] = ()) -> str:
    """Shows a file with line numbers, as far as it goes into one answer. Raises Wrong."""
    lines = text_of(path, content).split("\n")
    start, end = view_range or (1, -1)
    end = len(lines) if end == -1 else min(end, len(lines))
    if not 1 <= start <= len(lines) or end < start:
        raise Wrong(f"Invalid `view_range` parameter: [{start}, {end}]. The file has {len(lines)} lines.")
    said, room = [f"Here's the content of {path} with line numbers:"], MAX_VIEW_CHARACTERS
    for number in range(start, end + 1):
        line = _numbered(number, lines[number - 1])
        if number > start and len(line) > room:
            said.append(f"[Lines {number} to {end} are not shown: view them with view_range [{number}, {end}].]")
            break
        said.append(line)
        room -= len(line) + 1
    return "\n".join(said)


def replaced(path: str, content: bytes, old: str, new: str) -> tuple[bytes, str]:
    """Replaces what is there once, and returns the new content and what is said of it. Raises Wrong."""
    text = text_of(path, content)
    if not old or old not in text:
        raise Wrong(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if text.count(old) > 1 or text.find(old, text.find(old) + 1) != -1:
        lines = ", ".join(str(line) for line in _lines_of(text, old))
        raise Wrong(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}. "
            "Please ensure it is unique"
        )
    line = text[: text.find(old)].count("\n")
    after = text.replace(old, new)
    lines_after = after.split("\n")
    near = range(max(0, line - 2), min(len(lines_after), line + 3))
    snippet = "\n".join(_numbered(number + 1, lines_after[number]) for number in near)
    said = "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n" + snippet
    return after.encode(), said


def inserted(path: str, content: bytes, line: int, text: str) -> bytes:
    """Inserts lines behind a line, 0 meaning at the beginning, and returns the new content. Raises Wrong."""
    lines = text_of(path, content).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not 0 <= line <= len(lines):
        raise Wrong(f"Invalid `insert_line` parameter: {line}. It should be within the range [0, {len(lines)}].")
    lines.insert(line, text.removesuffix("\n"))
    return ("\n".join(lines) + "\n").encode()


def text_of(path: str, content: bytes) -> str:
    """Returns a file's text. Raises Wrong for one that has none."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Wrong(f"Unsupported file type for {path}: it is no text") from None


def _lines_of(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at != -1 and len(found) < 100:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    return found


def _numbered(number: int, line: str) -> str:
    return f"{number:>{_WIDTH}}\t{line}"


def _sized(size: int) -> str:
    if size < 1024:
        return f"{size}B"
    return f"{size / 1024:.1f}K" if size < 1024 * 1024 else f"{size / (1024 * 1024):.1f}M"
