"""A hand on a directory of this machine: bash, read, write, edit and list.

It isolates nothing. Commands run as the user who serves the hand, with all that this user may do and reach; the
directory is where they begin, not where they end. `read`, `write`, `edit` and `list` stay in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from handmesh.hand.answers import Image, Result, ToolError
from handmesh.hand.call import Call
from handmesh.hand.shells import Shells
from handmesh.hand.tools import Hand, tool

READ_BYTES = 256 << 10
IMAGE_BYTES = 5 << 20
TEXT_BYTES = 100 << 10  # of a command's output in its result
MOST_LISTED = 1_000
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}

FilePath = Annotated[str, "The file, relative to the directory."]


class Printed:
    """What a command has printed: head and tail of it, when it is too long."""

    def __init__(self) -> None:
        self._head, self._tail, self._total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Takes more."""
        self._total += len(data)
        room = max(0, TEXT_BYTES // 2 - len(self._head))
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-TEXT_BYTES // 2 :]

    def text(self) -> str:
        """Returns it for a model."""
        left_out = self._total - len(self._head) - len(self._tail)
        middle = f"\n\n[... {left_out} bytes left out ...]\n\n".encode() if left_out else b""
        return bytes(self._head + middle + self._tail).decode("utf-8", "replace").rstrip("\n")


class Directory(Hand):
    """A directory on a machine that its owner has connected. Commands run there without isolation."""

    capacity = 8

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        """Takes where commands begin, and the variables that they see."""
        self._root = root.resolve()
        self._shells = Shells(self._root, environment)

    @tool
    async def bash(self, command: Annotated[str, "The command."], call: Call) -> Result:
        """Runs a command in bash and returns what it prints, standard output and error together.

        Each command has a fresh shell in the hand's directory. Nothing isolates it from the machine.
        """
        printed = Printed()

        def write(data: bytes) -> None:
            call.write(data)
            printed.add(data)

        code = await self._shells.run(command, write)
        if not code:
            return Result(printed.text(), exit_code=0)
        return Result(f"{printed.text() or '(no output)'}\n[exit code: {code}]", "TOOL_ERROR", exit_code=code)

    @tool(read_only=True)
    def read(self, file_path: FilePath) -> str | Image:
        """Reads a text file of up to 256 KiB, or shows a picture of up to 5 MiB."""
        path = self._path(file_path)
        try:
            with path.open("rb") as file:
                data = file.read(IMAGE_BYTES + 1)
        except OSError as error:
            raise ToolError(f"{file_path}: {error.strerror}") from None
        kind = next((kind for start, kind in _PICTURES.items() if data.startswith(start)), "")
        if kind and len(data) <= IMAGE_BYTES:
            return Image(data, kind)
        if len(data) > READ_BYTES or b"\0" in data:
            raise ToolError(f"{file_path} is no text of at most {READ_BYTES} bytes")
        return data.decode("utf-8", "replace")

    @tool(idempotent=True)
    def write(self, file_path: FilePath, content: Annotated[str, "The whole new content."]) -> str:
        """Writes a file, whole, and makes the directories that it needs."""
        path = self._path(file_path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise ToolError(f"{file_path}: {error.strerror}") from None
        return f"wrote {file_path}"

    @tool
    def edit(
        self,
        file_path: FilePath,
        old_string: Annotated[str, "The text to replace, exactly."],
        new_string: Annotated[str, "The text to put in its place."],
        replace_all: Annotated[bool, "Replaces every occurrence."] = False,
    ) -> str:
        """Replaces text in a file; it must be there once unless `replace_all` is true."""
        path = self._path(file_path)
        try:
            text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ToolError(f"{file_path}: {getattr(error, 'strerror', 'is no text')}") from None
        found = text.count(old_string) if old_string else 0
        if not found or (found > 1 and not replace_all):
            raise ToolError(f"the text is in {file_path} {found} times")
        path.write_bytes(text.replace(old_string, new_string).encode())
        return f"replaced {found} time{'s' if found > 1 else ''} in {file_path}"

    @tool(name="list", read_only=True)
    def list_(self, path: Annotated[str, "The directory, relative to the hand's."] = ".") -> str:
        """Lists a directory: folders end with a slash; at most 1,000 names."""
        try:
            found = sorted(f"{each.name}/" if each.is_dir() else each.name for each in self._path(path).iterdir())
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None
        more = [f"[{len(found) - MOST_LISTED} more]"] if len(found) > MOST_LISTED else []
        return "\n".join(found[:MOST_LISTED] + more) or "(empty)"

    async def stopped(self) -> None:
        """Ends the shell that waits for a command."""
        self._shells.close()

    def _path(self, text: str) -> Path:
        try:
            path = (self._root / text).resolve()
        except (OSError, ValueError, RuntimeError):
            raise ToolError("that is no path") from None
        if not path.is_relative_to(self._root):
            raise ToolError(f"{text} is outside of the hand's directory")
        return path
