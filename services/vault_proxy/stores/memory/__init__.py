"""Secrets in this process's memory: gone when it ends. For tests and for a first look without a vault."""

from __future__ import annotations

import asyncio

from services.kit.errors import Conflict
from services.vault_proxy.ports import Changes, Document, Fields, Pass
from services.vault_proxy.secret import Secret
from services.vault_proxy.settings import Settings


def make(settings: Settings) -> MemoryStore:
    """Makes an empty store."""
    return MemoryStore()


class MemoryStore:
    """Implements `ports.CredentialStore` on a dict."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}

    async def read(self, path: str) -> Document | None:
        return self._documents.get(path)

    async def read_secret(self, path: str, holder: Pass) -> Document | None:
        return self._documents.get(path)

    def forget(self, session_id: str, below_epoch: int) -> None:
        pass

    async def keep(self) -> None:
        await asyncio.Event().wait()

    async def write(self, path: str, fields: Fields, expected_version: int) -> int:
        self._expect(path, expected_version)
        self._documents[path] = Document(Secret(dict(fields)), expected_version + 1)
        return expected_version + 1

    async def patch(self, path: str, fields: Changes, expected_version: int) -> int:
        self._expect(path, expected_version or -1)
        merged: dict[str, str | None] = {**self._documents[path].fields.reveal(), **fields}
        kept = {name: value for name, value in merged.items() if value is not None}
        self._documents[path] = Document(Secret(kept), expected_version + 1)
        return expected_version + 1

    async def version(self, path: str) -> int:
        document = self._documents.get(path)
        return document.version if document else 0

    def _expect(self, path: str, expected_version: int) -> None:
        document = self._documents.get(path)
        version = document.version if document else 0
        if version != expected_version:
            raise Conflict("VERSION_CONFLICT", f"the newest version is {version}", version=version)

    async def list(self, folder: str) -> list[str]:
        names = set()
        for path in self._documents:
            if path.startswith(folder + "/"):
                name, separator, _ = path[len(folder) + 1 :].partition("/")
                names.add(name + separator)
        return sorted(names)

    async def purge(self, path: str) -> None:
        self._documents.pop(path, None)

    async def close(self) -> None:
        self._documents.clear()
