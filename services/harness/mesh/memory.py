"""The memory tool of the Messages API, on memory stores: files that outlive the session and may be shared.

Each store that the session's configuration names is a directory under `/memories`. What is changed is changed on the
condition that the store still has what was read, and under a request id that comes from the execution: a call that is
made again changes nothing again, and says what it said.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.harness.core import Config, ToolResult, ToolSpec
from services.harness.mesh import memory_texts as texts
from services.harness.mesh.memories import Memories, Memory
from services.harness.mesh.memory_paths import ROOT, Place, Wrong, placed, request_of, shown, writable
from services.harness.mesh.tool import Asked
from services.kit.errors import Conflict, Denied, Full, Gone, Invalid

NAME = "memory"
TYPE = "memory_20250818"
MAX_TREE_FILES = 500  # that one call renames or deletes
CHANGED = "The file {path} was changed by somebody else meanwhile: nothing was written. View it again."

_TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        "path": {**_TEXT, "description": "Of the file or directory, for all commands but rename."},
        "view_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "file_text": {**_TEXT, "description": "For create: what the new file holds."},
        "old_str": {**_TEXT, "description": "For str_replace: what is there exactly once."},
        "new_str": {**_TEXT, "description": "For str_replace: what takes its place."},
        "insert_line": {"type": "integer", "description": "For insert: behind which line, 0 for the beginning."},
        "insert_text": {**_TEXT, "description": "For insert: what to insert."},
        "old_path": {**_TEXT, "description": "For rename."},
        "new_path": {**_TEXT, "description": "For rename."},
    },
    "required": ["command"],
}
NEEDS = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str", "new_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}
"""What each command cannot do without."""

DONE = {
    "create": "File created successfully at: {path}",
    "str_replace": "The memory file has been edited.",
    "insert": "The file {path} has been edited.",
    "delete": "Successfully deleted {path}",
    "rename": "Successfully renamed {old_path} to {new_path}",
}
"""What is said when a command is done, or was done before."""


@dataclass(frozen=True)
class MemoryTools:
    """The tool `memory`, for sessions that have memory stores."""

    memories: Memories

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        """Returns the tool if there is a store (see `MeshTools.offered`)."""
        about = f"Files that outlive this session, in directories under {ROOT}. View {ROOT} before anything else."
        return [ToolSpec(NAME, about, json.dumps(SCHEMA), type=TYPE)] if config.memory_stores else []

    async def execute(self, asked: Asked) -> ToolResult:
        """Runs one command (see `MeshTools.execute`)."""
        given = asked.input
        command = str(given["command"])
        missing = [name for name in NEEDS[command] if name not in given]
        if missing:
            return ToolResult(f"The command {command} needs {' and '.join(missing)}.", "TOOL_ERROR")
        desk = _Desk(self.memories, asked)
        try:
            return ToolResult(await desk.commands[command](given))
        except Wrong as wrong:
            told = str(wrong)
        except Conflict as conflict:
            if conflict.reason != "MEMORY_CONFLICT":
                raise
            told = CHANGED.format(path=given.get("path") or given.get("old_path"))
        except (Gone, Denied, Invalid, Full) as problem:
            told = f"{problem.message[:1].upper()}{problem.message[1:]}."
        if command in DONE and await desk.was_done(given):
            return ToolResult(DONE[command].format_map(given))
        return ToolResult(told, "TOOL_ERROR")


class _Desk:
    """One call: what it may reach, and its commands."""

    def __init__(self, memories: Memories, asked: Asked) -> None:
        self._memories = memories
        self._asked = asked
        self._under = asked.under
        self._stores = asked.config.memory_stores
        self.commands: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[str]]] = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._replace,
            "insert": self._insert,
            "delete": self._delete,
            "rename": self._rename,
        }

    async def was_done(self, given: Mapping[str, Any]) -> bool:
        """Tells whether this execution has done its work before, and only its word was lost."""
        try:
            place = placed(str(given.get("path") or given.get("old_path")), self._stores)
        except Wrong:
            return False
        request = request_of(self._asked.execution_id)
        return place is not None and await self._memories.made(place.store.store_id, request, self._under)

    async def _view(self, given: Mapping[str, Any]) -> str:
        place = placed(given["path"], self._stores)
        if place is None:
            every = await asyncio.gather(*(self._memories.list(each.store_id, self._under) for each in self._stores))
            sizes = {f"{store.name}/": 0 for store in self._stores}
            for store, files in zip(self._stores, every, strict=True):
                sizes |= {f"{store.name}/{file.path}": file.size for file in files}
            return texts.listing(ROOT, sizes, self._stores)
        files = await self._memories.list(place.store.store_id, self._under)
        if any(file.path == place.path for file in files):
            _, content = await self._memories.read(place.store.store_id, place.path, self._under)
            return texts.numbered(place.shown, content, given.get("view_range", ()))
        below = _below(files, place.path)
        if not below and place.path:
            raise _absent(place.shown)
        prefix = f"{place.path}/" if place.path else ""
        return texts.listing(place.shown, {file.path.removeprefix(prefix): file.size for file in below})

    async def _create(self, given: Mapping[str, Any]) -> str:
        place = writable(placed(given["path"], self._stores), "create", given["path"])
        self._check_free(place, await self._memories.list(place.store.store_id, self._under))
        await self._write(place, given["file_text"].encode(), "")
        return DONE["create"].format_map(given)

    async def _replace(self, given: Mapping[str, Any]) -> str:
        place = writable(placed(given["path"], self._stores), "edit", given["path"])
        there, content = await self._read(place)
        after, said = texts.replaced(place.shown, content, given["old_str"], given["new_str"])
        written = await self._write(place, after, there.sha256)
        mine = written.sha256 == hashlib.sha256(after).hexdigest()
        return said if mine else DONE["str_replace"]  # it was done before, and the file was another one then

    async def _insert(self, given: Mapping[str, Any]) -> str:
        place = writable(placed(given["path"], self._stores), "edit", given["path"])
        there, content = await self._read(place)
        after = texts.inserted(place.shown, content, given["insert_line"], given["insert_text"])
        await self._write(place, after, there.sha256)
        return DONE["insert"].format_map(given)

    async def _delete(self, given: Mapping[str, Any]) -> str:
        place = writable(placed(given["path"], self._stores), "delete", given["path"])
        files = await self._tree(place)
        for file in files:
            request = request_of(self._asked.execution_id, "" if file is files[-1] else f"delete {file.path}")
            await self._memories.delete(place.store.store_id, file.path, None, request, self._under)
        return DONE["delete"].format_map(given)

    async def _rename(self, given: Mapping[str, Any]) -> str:
        old = writable(placed(given["old_path"], self._stores), "rename", given["old_path"])
        new = writable(placed(given["new_path"], self._stores), "rename", given["new_path"])
        if old.store == new.store and f"{new.path}/".startswith(f"{old.path}/"):
            raise Wrong(f"Cannot rename {old.shown} to {new.shown}: it lies in itself")
        files = await self._tree(old)
        there = await self._memories.list(new.store.store_id, self._under)
        self._check_free(new, [file for file in there if not self._moved(file)])
        for file in files:
            target = Place(new.store, new.path + file.path.removeprefix(old.path))
            await self._move(Place(old.store, file.path), target, last=file is files[-1])
        return DONE["rename"].format_map(given)

    async def _move(self, old: Place, new: Place, last: bool) -> None:
        file, content = await self._read(old)
        request = request_of(self._asked.execution_id, f"to {new.shown}")
        copied = await self._memories.write(new.store.store_id, new.path, content, "", request, self._under)
        if copied.sha256 != file.sha256:
            raise Wrong(f"The file {old.shown} was changed by somebody else meanwhile; {new.shown} has what it was.")
        request = request_of(self._asked.execution_id, "" if last else f"from {old.shown}")
        await self._memories.delete(old.store.store_id, old.path, file.sha256, request, self._under)

    def _moved(self, file: Memory) -> bool:
        """Tells whether this execution has put a file where it is before its harness died."""
        requests = (request_of(self._asked.execution_id, f"to {shown(store, file.path)}") for store in self._stores)
        return file.session_id == self._asked.log.session_id and file.request_id in requests

    async def _read(self, place: Place) -> tuple[Memory, bytes]:
        try:
            return await self._memories.read(place.store.store_id, place.path, self._under)
        except Gone:
            files = await self._memories.list(place.store.store_id, self._under)
            if _below(files, place.path):
                raise Wrong(f"The path {place.shown} is not a file.") from None
            raise _absent(place.shown) from None

    async def _write(self, place: Place, content: bytes, expected: str) -> Memory:
        request = request_of(self._asked.execution_id)
        return await self._memories.write(place.store.store_id, place.path, content, expected, request, self._under)

    async def _tree(self, place: Place) -> list[Memory]:
        """Returns a file, or the files of a directory. Raises Wrong when there are none, or too many."""
        files = _below(await self._memories.list(place.store.store_id, self._under), place.path)
        if not files:
            raise Wrong(f"The path {place.shown} does not exist")
        if len(files) > MAX_TREE_FILES:
            raise Wrong(f"{place.shown} has {len(files)} files, and one call takes {MAX_TREE_FILES}: go further down.")
        return files

    def _check_free(self, place: Place, files: Sequence[Memory]) -> None:
        """Raises Wrong unless a file or a directory can come to be at a place: no file is a directory as well."""
        if _below(files, place.path):
            raise Wrong(f"File {place.shown} already exists")
        parents = {place.path[:at] for at, each in enumerate(place.path) if each == "/"}
        if blocked := next((file for file in files if file.path in parents), None):
            raise Wrong(f"{shown(place.store, blocked.path)} is a file, not a directory")


def _below(files: Sequence[Memory], path: str) -> list[Memory]:
    return [file for file in files if not path or file.path == path or file.path.startswith(f"{path}/")]


def _absent(path: str) -> Wrong:
    return Wrong(f"The path {path} does not exist. Please provide a valid path.")
