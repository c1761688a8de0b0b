"""What a remote hand has not: files, checkpoints, repositories, doors, pools. Who asks for them is refused by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from services.kit.errors import Refused
from services.sandbox.hand import Content, Doors, FileInfo, Labels, SandboxInfo, Trust, Visit
from services.sandbox.records import Record


class Bare(ABC):
    """The methods of `Hand` (see there) that ask for what is not there."""

    capabilities: frozenset[str] = frozenset()

    @abstractmethod
    def _record(self, sandbox_id: str) -> Record:
        """Returns a sandbox's record. Raises Gone (`SANDBOX_GONE`)."""

    async def claim(self, sandbox_id: str, labels: Labels, files: Sequence[Content] = ()) -> SandboxInfo:
        """See `Hand.claim`: there are no free ones."""
        self._record(sandbox_id)
        cannot("pools")

    async def put(self, sandbox_id: str, files: Sequence[Content]) -> None:
        """See `Hand.put`: there are no files."""
        self._record(sandbox_id)
        if files:
            cannot("files")

    async def files(self, sandbox_id: str, path: str) -> tuple[tuple[FileInfo, ...], bool]:
        """See `Hand.files`: there are none."""
        self._record(sandbox_id)
        cannot("files")

    def read_file(self, sandbox_id: str, path: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """See `Hand.read_file`: there are none."""
        self._record(sandbox_id)
        cannot("files")

    def pack(self, sandbox_id: str, leave_out: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
        """See `Hand.pack`: there is no workspace."""
        self._record(sandbox_id)
        cannot("checkpoints")

    async def plant(self, sandbox_id: str, path: str, tree: Path) -> None:
        """See `Hand.plant`: there is no workspace."""
        cannot("repositories")

    async def open_doors(self, sandbox_id: str, names: Sequence[str]) -> Doors:
        """See `Hand.open_doors`: there are none."""
        self._record(sandbox_id)
        if names:
            raise Refused("ISOLATION_UNAVAILABLE", "a hand that dials out has no doors", backend="remote")
        return Doors({}, "")

    async def outfit(
        self, sandbox_id: str, env: Mapping[str, str], trust: Trust | None = None, generation: int = 0
    ) -> None:
        """See `Hand.outfit`: there are no doors to tell of."""
        self._record(sandbox_id)

    async def visit(self, sandbox_id: str, door: str) -> Visit:
        """See `Hand.visit`: there are no doors."""
        self._record(sandbox_id)
        cannot("doors")


def cannot(capability: str) -> NoReturn:
    """Raises Refused (`CAPABILITY_MISSING`)."""
    raise Refused(
        "CAPABILITY_MISSING", f"a hand that dials out has no {capability}", backend="remote", capability=capability
    )
