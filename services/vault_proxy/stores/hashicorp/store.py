"""The KV engine's calls, each in a thread: hvac blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from services.kit.errors import Conflict, Unavailable
from services.kit.logs import Log
from services.vault_proxy.ports import Changes, Document, Fields, Pass
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.hashicorp.tokens import Tokens

CALL_SECONDS = 1.8  # for a call with all that it takes: the port promises 2
THREADS = 8
KEEP_SECONDS = 60.0  # at most between two looks at the login: its life may have been set short
RETRY_SECONDS = 1.0  # until the vault is looked for again

_FORBIDDEN = object()
_log = Log("services.vault_proxy.stores.hashicorp")
_NOTHING = -1  # no document's version
OLD_VERSIONS = 20  # more than an engine keeps of a document, unless its operator says so


class HashicorpStore:
    """Implements `ports.CredentialStore`."""

    def __init__(
        self, url: str, mount: str, approle_file: Path, ca_file: Path | None = None, auth_mount: str = "handmesh"
    ) -> None:
        self._mount = mount
        self._access = (url, approle_file, ca_file, auth_mount)
        self._parts: tuple[Any, Any] | None = None
        self._making = threading.Lock()  # one login for all threads
        # Own threads: a vault that does not answer must not hold up what else needs a thread, such as name lookups.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="vault")
        self._tokens = Tokens(self.mint)

    async def read(self, path: str) -> Document | None:
        def action(client: Any) -> Document | None:
            return _document(
                client.secrets.kv.v2.read_secret_version(path, mount_point=self._mount, raise_on_deleted_version=True)
            )

        document: Document | None = await self._call(action, missing=None)
        return document

    async def read_secret(self, path: str, holder: Pass) -> Document | None:
        refused: Secret[str] | None = None
        for _ in range(2):
            token = await self._tokens.token(holder, unless=refused)
            found = await self._in_thread(self._session_read, path, token)
            if found is not _FORBIDDEN:
                document: Document | None = found
                return document
            refused = token  # it may have run out, or the vault has lost it
        _log.error("the vault forbids a session its own secrets: see the policies in docs/vault.md")
        raise Unavailable("VAULT_UNAVAILABLE", "the vault forbids it to the session")

    def forget(self, session_id: str, below_epoch: int) -> None:
        self._tokens.forget(session_id, below_epoch)

    async def keep(self) -> None:
        while True:
            try:
                seconds = await self._in_thread(lambda: self._made()[0].keep())
            except Unavailable:
                seconds = RETRY_SECONDS
            await asyncio.sleep(min(seconds, KEEP_SECONDS))

    async def mint(self, voucher: Secret[str]) -> tuple[Secret[str], float]:
        """Logs a session in by its voucher. Returns its token, and the token's life in seconds."""
        minted: tuple[Secret[str], float] = await self._in_thread(lambda: self._made()[1].log_in(voucher))
        return minted

    def _session_read(self, path: str, token: Secret[str]) -> Any:
        let_in, answer = self._made()[1].read(path, token)
        if not let_in:
            return _FORBIDDEN
        return None if answer is None else _document(answer)

    async def write(self, path: str, fields: Fields, expected_version: int) -> int:
        def action(client: Any) -> int:
            kv = client.secrets.kv.v2
            answer = kv.create_or_update_secret(path, dict(fields), cas=expected_version, mount_point=self._mount)
            return self._only(client, path, answer["data"]["version"])

        return await self._changed(path, action, expected_version)

    async def patch(self, path: str, fields: Changes, expected_version: int) -> int:
        def action(client: Any) -> int:
            # Not hvac's own `patch`: that reads and writes, and this service may not read.
            answer = client.adapter.request(
                "patch",
                f"/v1/{self._mount}/data/{path}",
                json={"data": dict(fields), "options": {"cas": expected_version}},
                headers={"Content-Type": "application/merge-patch+json"},
            )
            return self._only(client, path, answer["data"]["version"])

        return await self._changed(path, action, expected_version)

    async def version(self, path: str) -> int:
        def action(client: Any) -> int:
            answer = client.secrets.kv.v2.read_secret_metadata(path, mount_point=self._mount)
            version: int = answer["data"]["current_version"]
            return version

        found: int = await self._call(action, missing=0)
        return found

    def _only(self, client: Any, path: str, version: int) -> int:
        """Destroys the versions before this one."""
        if version > 1:
            old = list(range(max(1, version - OLD_VERSIONS), version))
            client.secrets.kv.v2.destroy_secret_versions(path, old, mount_point=self._mount)
        return version

    async def _changed(self, path: str, action: Callable[[Any], int], expected_version: int) -> int:
        try:
            version: int = await self._call(action, missing=_NOTHING)
        except _Refused:
            version = await self.version(path)
            if version == expected_version:
                raise  # it was refused for something else
            raise Conflict("VERSION_CONFLICT", f"the newest version is {version}", version=version) from None
        if version == _NOTHING:
            raise Conflict("VERSION_CONFLICT", "there is no document to change", version=0)
        return version

    async def list(self, folder: str) -> list[str]:
        def action(client: Any) -> Any:
            answer = client.secrets.kv.v2.list_secrets(folder, mount_point=self._mount)
            return sorted(str(key) for key in answer["data"]["keys"])

        names: list[str] = await self._call(action, missing=[])
        return names

    async def purge(self, path: str) -> None:
        def action(client: Any) -> None:
            client.secrets.kv.v2.delete_metadata_and_all_versions(path, mount_point=self._mount)

        await self._call(action, missing=None)

    async def close(self) -> None:
        self._tokens.clear()
        if self._parts is not None:
            for part in self._parts:
                part.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, action: Callable[[Any], Any], missing: Any = ...) -> Any:
        """Does something with a logged-in client in a thread. Returns `missing` where the vault has no such path."""
        return await self._in_thread(self._blocking, action, missing)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await loop.run_in_executor(self._threads, work, *arguments)
        except TimeoutError:
            raise Unavailable("VAULT_UNAVAILABLE", "the vault does not answer in time", retry_after=1) from None

    def _made(self) -> tuple[Any, Any]:
        """Returns the service's login, and what sessions read with."""
        # hvac and requests cost 100 ms and 20 MB: paid in a thread.
        from services.vault_proxy.stores.hashicorp.login import Login
        from services.vault_proxy.stores.hashicorp.reads import SessionReads, Wire

        url, approle_file, ca_file, auth_mount = self._access
        with self._making:
            if self._parts is None:
                reads = SessionReads(Wire(url, ca_file), self._mount, auth_mount)
                self._parts = Login(url, approle_file, ca_file), reads
            return self._parts

    def _blocking(self, action: Callable[[Any], Any], missing: Any) -> Any:
        from hvac.exceptions import InvalidPath, InvalidRequest

        try:
            return self._made()[0].use(action)
        except InvalidPath:
            if missing is ...:
                raise Unavailable("VAULT_UNAVAILABLE", "the vault has no such secrets engine") from None
            return missing
        except InvalidRequest:
            raise _Refused("VAULT_UNAVAILABLE", "the vault refuses the request") from None


def _document(answer: Any) -> Document:
    data = answer["data"]
    fields = {str(key): value for key, value in data["data"].items() if isinstance(value, str)}
    return Document(Secret(fields), data["metadata"]["version"])


class _Refused(Unavailable):
    """The vault refused a request: a write because of its version, anything else because it is no KV engine."""
