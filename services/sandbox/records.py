"""What a hand keeps of its sandboxes on the disk, so that a service that starts again finds them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from services.kit.errors import Conflict
from services.sandbox.hand import Labels, Move, Owner, Reader, SandboxInfo
from services.sandbox.removal import remove_tree

_FILE = "sandbox.json"
_PAGE_BYTES = 4096

Facts = Mapping[str, str | int]


@dataclass(frozen=True)
class Record:
    """A sandbox as it was made. `facts` are what its backend needs to find it again; `ready` when it was finished."""

    info: SandboxInfo
    folder: Path
    ready: bool = False
    facts: Facts = field(default_factory=dict)

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self.info.labels.sandbox_id

    @property
    def door(self) -> Path:
        """The folder that the service and the sandbox share; the runner's socket is in it."""
        return self.folder / "door"


class Records:
    """A folder with a folder for each sandbox. One service process owns it."""

    def __init__(self, root: Path) -> None:
        """Keeps records under a folder, which is made when the first is."""
        self._root = root
        self._requests: dict[str, str] | None = None  # request id -> sandbox id, once they were read

    def create(self, info: SandboxInfo) -> Record:
        """Makes the folders of a new sandbox, private to the service's user, and its first record."""
        record = Record(info, self._root / info.labels.sandbox_id)
        for folder in (self._root, record.folder, record.door):
            folder.mkdir(mode=0o700, parents=True, exist_ok=folder == self._root)
        return self.save(record)

    def save(self, record: Record) -> Record:
        """Writes a record. A crash of the service leaves the old one or the new one.

        It is not synced: no sandbox outlives the crash of its machine, and a claim would take twice as long.
        """
        kept = {"info": asdict(record.info), "ready": record.ready, "facts": dict(record.facts)}
        data = json.dumps(kept).encode()
        if not _overwritten(record.folder / _FILE, data):
            new = record.folder / (_FILE + ".new")
            new.write_bytes(data)
            new.replace(record.folder / _FILE)
        if record.info.labels.request_id:
            self._by_request()[record.info.labels.request_id] = record.sandbox_id
        return record

    def relabel(self, record: Record, before: Labels, after: Labels) -> Record:
        """Changes whose a sandbox is, as `Hand.relabel` promises. Nothing is waited for: one service has the record."""
        if record.info.labels != before:
            now = record.info.labels.generation
            raise Conflict("GENERATION_CONFLICT", f"the sandbox has generation {now} by now", generation=now)
        labels = replace(after, sandbox_id=record.sandbox_id)
        return self.save(replace(record, info=replace(record.info, labels=labels)))

    def get(self, sandbox_id: str) -> Record | None:
        """Reads a record, if there is one. One that a crash of the machine has torn counts as none."""
        folder = self._root / sandbox_id
        try:
            kept = json.loads((folder / _FILE).read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        info = kept["info"]
        labels = _labels(info.pop("labels"))
        tools, limits = tuple(info.pop("tools")), tuple(info.pop("unenforced_limits"))
        return Record(
            SandboxInfo(labels, tools=tools, unenforced_limits=limits, **info), folder, kept["ready"], kept["facts"]
        )

    def all(self) -> list[Record]:
        """Reads all records, oldest first."""
        if not self._root.is_dir():
            return []
        found = [record for folder in self._root.iterdir() if (record := self.get(folder.name))]
        if self._requests is None:
            labels = [record.info.labels for record in found]
            self._requests = {each.request_id: each.sandbox_id for each in labels if each.request_id}
        return sorted(found, key=lambda it: (it.info.labels.create_time, it.sandbox_id))

    def by_request(self, request_id: str) -> Record | None:
        """Finds the sandbox that a request made."""
        sandbox_id = self._by_request().get(request_id)
        found = None if sandbox_id is None else self.get(sandbox_id)
        return found if found is not None and found.info.labels.request_id == request_id else None

    def _by_request(self) -> dict[str, str]:
        if self._requests is None:
            self.all()
        if self._requests is None:  # there is no folder yet
            self._requests = {}
        return self._requests

    def unfinished(self) -> list[Path]:
        """Lists folders without a record: of a sandbox whose making was cut off at its very start."""
        return [it for it in self._root.iterdir() if self.get(it.name) is None] if self._root.is_dir() else []

    def remove(self, folder: Path) -> None:
        """Removes a sandbox's folder, whatever its tools have done to it. Idempotent."""
        known = self._requests or {}
        for request in [request for request, sandbox_id in list(known.items()) if sandbox_id == folder.name]:
            known.pop(request, None)  # in place: this runs in a thread of its own
        remove_tree(folder)


def _labels(kept: dict[str, Any]) -> Labels:
    """Reads labels, those of an older service too."""
    move = kept.pop("move", None)
    readers, past = kept.pop("readers", ()), kept.pop("past", ())
    return Labels(
        **kept,
        move=None if move is None else Move(**move),
        readers=tuple(Reader(**each) for each in readers),
        past=tuple(Owner(**each) for each in past),
    )


def _overwritten(file: Path, data: bytes) -> bool:
    """Writes a file that is there, in one step. False when it is not there, or when that cannot be one step.

    The kernel writes what lies in one page whole or not at all, whatever ends the process. To replace a file takes ten
    times as long: ext4 sends the new one to the disk at once.
    """
    if len(data) > _PAGE_BYTES:
        return False
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        before = os.fstat(descriptor).st_size
        return before <= _PAGE_BYTES and os.write(descriptor, data.ljust(before)) >= len(data)
    finally:
        os.close(descriptor)


def finished(record: Record, unenforced: tuple[str, ...]) -> Record:
    """Returns the record of a sandbox that can execute now."""
    return replace(record, ready=True, info=replace(record.info, unenforced_limits=unenforced))
