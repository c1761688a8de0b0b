"""What sandboxes need of the session service: blobs and memories of those they act for.

Errors are ServiceErrors, as that service raises them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Whose:
    """For whom the sandbox acts: a tenant, and a session of it if there is one. Nothing of others is reached."""

    tenant: str
    session_id: str = ""


@dataclass(frozen=True)
class Memory:
    """The newest version of a file in a memory store."""

    path: str  # relative
    sha256: str
    size: int


class Session(Protocol):
    """The session service."""

    async def tenant_of(self, session_id: str) -> str:
        """Returns whose a session is. Raises Gone (`SESSION_NOT_FOUND`)."""
        ...

    def download(self, whose: Whose, blob_id: str) -> AsyncGenerator[bytes, None]:
        """Yields a blob of the session, and at its end has checked it. Raises Gone (`BLOB_NOT_FOUND`)."""
        ...

    async def upload(self, whose: Whose, content: AsyncIterator[bytes], media_type: str) -> str:
        """Keeps content as a blob of the session; returns its id. Raises Full (`BLOB_QUOTA`)."""
        ...

    async def memories(self, whose: Whose, store_id: str) -> list[Memory]:
        """Lists the files of a memory store. Raises Gone (`MEMORY_NOT_FOUND`)."""
        ...

    async def read_memory(self, whose: Whose, store_id: str, path: str) -> tuple[Memory, bytes]:
        """Returns a file. Raises Gone (`MEMORY_NOT_FOUND`)."""
        ...

    async def write_memory(self, whose: Whose, store_id: str, path: str, content: bytes, expected: str) -> str:
        """Writes a file if it still has the expected SHA-256 (empty: if there is none); returns the new one.

        Raises Conflict (`MEMORY_CONFLICT`, metadata `sha256`: what it is now).
        """
        ...

    async def delete_memory(self, whose: Whose, store_id: str, path: str, expected: str) -> None:
        """Deletes a file if it still has the expected SHA-256. Raises Conflict (`MEMORY_CONFLICT`)."""
        ...
