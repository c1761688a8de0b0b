"""What the memory tool needs of memory stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.harness.ports import Standing


@dataclass(frozen=True)
class Memory:
    """A file in a memory store. `session_id` and `request_id` say who wrote it, where that is known."""

    path: str
    sha256: str
    size: int
    session_id: str = ""
    request_id: str = ""


class Memories(Protocol):
    """Memory stores, as far as the session under whose grant one acts may reach them.

    Errors are ServiceErrors: Gone (`MEMORY_NOT_FOUND`), Denied (`MEMORY_READ_ONLY`), Invalid, Full, Unavailable. A
    request id makes a write or a deletion idempotent within the session, however late it is said again.
    """

    async def list(self, store_id: str, under: Standing) -> Sequence[Memory]:
        """Lists all files of a store, by path."""

    async def read(self, store_id: str, path: str, under: Standing) -> tuple[Memory, bytes]:
        """Reads a file as it is now."""

    async def write(
        self, store_id: str, path: str, content: bytes, expected: str, request_id: str, under: Standing
    ) -> Memory:
        """Writes a file that has the SHA-256 `expected` (empty: that is not there), and returns what the request wrote.

        Raises Conflict (`MEMORY_CONFLICT`) when it is another one.
        """

    async def delete(self, store_id: str, path: str, expected: str | None, request_id: str, under: Standing) -> None:
        """Deletes a file that has the SHA-256 `expected`, or whatever it holds. Raises Gone for one that never was.

        Raises Conflict (`MEMORY_CONFLICT`) when it is another one.
        """

    async def made(self, store_id: str, request_id: str, under: Standing) -> bool:
        """Tells whether a request of the session has written or deleted a file."""
