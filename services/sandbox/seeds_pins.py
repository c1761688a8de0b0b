"""Which sandbox shows which seed, kept on the disk: a seed that is shown must not go, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pin:
    """What was asked for at a path of a sandbox, and the key of the seed that it got."""

    url: str
    ref: str
    key: str


class Pins:
    """A file for each sandbox that shows seeds. One service process owns the folder."""

    def __init__(self, folder: Path) -> None:
        """Reads what there is. The folder is made when the first pin is."""
        self._folder = folder
        self._pins: dict[str, dict[str, Pin]] = {}
        for file in folder.glob("*.json") if folder.is_dir() else ():
            self._pins[file.stem] = {path: Pin(**pin) for path, pin in json.loads(file.read_text()).items()}

    def get(self, sandbox_id: str, path: str) -> Pin | None:
        """Returns what is at a path of a sandbox."""
        return self._pins.get(sandbox_id, {}).get(path)

    def held(self) -> set[str]:
        """Returns the keys of the seeds that are shown."""
        return {pin.key for pins in self._pins.values() for pin in pins.values()}

    def sandboxes(self) -> set[str]:
        """Returns the sandboxes that show any."""
        return set(self._pins)

    def set(self, sandbox_id: str, path: str, pin: Pin) -> None:
        """Takes note of a seed, before it is shown."""
        self._pins.setdefault(sandbox_id, {})[path] = pin
        self._save(sandbox_id)

    def remove(self, sandbox_id: str, path: str) -> None:
        """Takes note of a seed that was not shown after all."""
        self._pins.get(sandbox_id, {}).pop(path, None)
        self._save(sandbox_id)

    def forget(self, sandbox_ids: Iterable[str]) -> None:
        """Takes note that sandboxes are gone. Idempotent."""
        for sandbox_id in sandbox_ids:
            if self._pins.pop(sandbox_id, None) is not None:
                (self._folder / f"{sandbox_id}.json").unlink(missing_ok=True)

    def _save(self, sandbox_id: str) -> None:
        """Writes a sandbox's pins. A crash leaves the old ones or the new ones."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._folder / f"{sandbox_id}.new"
        new.write_text(json.dumps({path: asdict(pin) for path, pin in self._pins[sandbox_id].items()}))
        new.replace(self._folder / f"{sandbox_id}.json")
