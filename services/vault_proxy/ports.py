"""What vault_proxy needs of a place that keeps secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.vault_proxy.secret import Secret

Fields = Mapping[str, str]
Changes = Mapping[str, str | None]


@dataclass(frozen=True)
class Document:
    """What lies at a path. `version` counts its writes, from 1."""

    fields: Secret[Fields]
    version: int


class Pass(Protocol):
    """What a session's secrets are read with."""

    @property
    def session_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    async def voucher(self) -> Secret[str]:
        """Returns the session service's word for the session: a new one, to be used once, within a minute.

        Raises Unauthenticated (`GRANT_INVALID`) when the session is over, or Unavailable.
        """
        ...


class CredentialStore(Protocol):
    """Documents in folders. A path is lower-case words joined by `/`; the callers see to that.

    What lies below `tenants/<tenant>/secrets/` can be written and not read, but with a session's pass.

    Promises, for every method: a store that is down or sealed, or does not let this service in, raises Unavailable
    (`VAULT_UNAVAILABLE`) within 2 seconds, and works again by itself once it is back; no error and no log line holds a
    field's value; nothing is kept between two calls but logins; calls may be made at once.
    """

    async def read(self, path: str) -> Document | None:
        """Returns the newest version, or None where there is none. Reads what was written last, by anyone."""
        ...

    async def read_secret(self, path: str, holder: Pass) -> Document | None:
        """Returns a secret document of a session: of its tenant, and of the vaults that it has. Else as `read`.

        Raises Unavailable (`VAULT_UNAVAILABLE`) also when the session has no right to it, and what the pass raises.
        """
        ...

    def forget(self, session_id: str, below_epoch: int) -> None:
        """Drops what is kept to read a session's secrets: for epochs below one, or with 0 for all."""
        ...

    async def keep(self) -> None:
        """Keeps this service's own login alive, for ever, from the start on."""
        ...

    async def write(self, path: str, fields: Fields, expected_version: int) -> int:
        """Replaces the document if its version is the expected one, 0 meaning that there is none. Returns the new one.

        Of two writers at once, one succeeds. What the document held before cannot be read any more, by anyone.
        Raises Conflict (`VERSION_CONFLICT`, metadata `version`: the true one, 0 if there is none).
        """
        ...

    async def patch(self, path: str, fields: Changes, expected_version: int) -> int:
        """Changes the fields that are named, None meaning that one goes, and keeps the others. Returns the new version.

        Needs no right to read what is there. What was there before cannot be read any more. Raises Conflict as `write`.
        """
        ...

    async def version(self, path: str) -> int:
        """Returns the document's version, 0 where there is none. Needs no right to read it."""
        ...

    async def list(self, folder: str) -> list[str]:
        """Returns the names in a folder, sorted: `name` for a document, `name/` for a folder. None there: empty."""
        ...

    async def purge(self, path: str) -> None:
        """Removes the document with all that it ever held. Idempotent. The next write expects version 0."""
        ...

    async def close(self) -> None:
        """Lets go of connections and the login. No other method is called after it."""
        ...
