"""A user of its own for each sandbox, where the service is root: no two share limits, files or signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.kit.errors import Full


class Users:
    """Claims of user ids, each a file named by the id with the sandbox's id in it.

    The ids lie above the range that systemd gives to containers and below what 32 bits with sign can say.
    """

    FIRST = 0x70000000
    COUNT = 4096

    def __init__(self, folder: Path) -> None:
        """Keeps claims in a folder, which is made when the first is."""
        self._folder = folder

    def claim(self, sandbox_id: str) -> int:
        """Returns an id that no other sandbox has. Raises Full when all are taken."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for uid in range(self.FIRST + 1, self.FIRST + self.COUNT):  # the first is for probes
            try:
                with (self._folder / str(uid)).open("x") as file:
                    file.write(sandbox_id)
            except FileExistsError:
                continue
            return uid
        raise Full("FULL", f"{self.COUNT} sandboxes are there", retry_after=30.0)

    def give_back(self, sandbox_id: str) -> None:
        """Ends a sandbox's claim. Idempotent."""
        self._end(lambda owner: owner == sandbox_id)

    def keep_only(self, sandbox_ids: set[str]) -> None:
        """Ends the claims of all but these sandboxes."""
        self._end(lambda owner: owner not in sandbox_ids)

    def _end(self, ends: Callable[[str], bool]) -> None:
        if not self._folder.is_dir():
            return
        for claim in self._folder.iterdir():
            try:
                if ends(claim.read_text()):
                    claim.unlink()
            except FileNotFoundError:
                continue  # ended by another call meanwhile
