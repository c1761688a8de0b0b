"""Renews accesses: one at a time for a credential, whoever asks, in this process and in every other.

Whoever is to renew first writes so into the secret's document by compare-and-set; who loses that waits and reads. So
one request reaches the authorization server, which may take a second use of a refresh token for a theft and revoke all.
After LEASE_SECONDS without news somebody else may try. If the one before had been answered and died before it could
store the new pair, a server that rotates says `invalid_grant`: the credential is revoked, and a person must connect the
account again. No order of writing avoids that: between the server's answer and the store there is always a moment.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from services.kit.errors import Conflict, Refused, ServiceError, Unauthenticated, Unavailable
from services.kit.logs import Log
from services.kit.origin import Allowed, UrlRefused, origin_of
from services.vault_proxy import counting, trail
from services.vault_proxy.audit import Audit
from services.vault_proxy.core import renewal
from services.vault_proxy.core.renewal import Failed, Need, Renewed
from services.vault_proxy.credentials import Credential, Credentials
from services.vault_proxy.grants import Access, read_secret
from services.vault_proxy.ports import Changes, CredentialStore, Document, Fields
from services.vault_proxy.secret import Secret

if TYPE_CHECKING:
    from services.vault_proxy.outbound import Outbound

ASK_SECONDS = 10.0  # for one request to an authorization server
POLL_SECONDS = 0.1  # between two looks at what somebody else renews
STORE_SECONDS = 0.5  # between two tries to store what was renewed
WAIT_SECONDS = 45.0  # at most, for all of it: more than a lease
CLOSE_SECONDS = 1.0
_OUTCOMES = {"refreshed": "refreshed", "CREDENTIAL_REVOKED": "revoked", "CREDENTIAL_REFRESH_FAILED": "failed"}

_log = Log("services.vault_proxy.renewal")


class Renewal:
    """Renews accesses. `now` is Unix time in seconds."""

    def __init__(
        self,
        store: CredentialStore,
        credentials: Credentials,
        audit: Audit,
        now: Callable[[], float],
        allowed: Allowed,
        ca_file: Path | None,
    ) -> None:
        self._store = store
        self._credentials = credentials
        self._audit = audit
        self._now = now
        self._outbound: Outbound | None = None
        self._reach = (allowed, ca_file)
        self._running: dict[str, asyncio.Task[None]] = {}  # path of a secret -> who renews it, or waits for who does

    async def fresh(self, access: Access, credential: Credential, refused: Secret[str] | None) -> Document | None:
        """Returns a credential's secret document with an access that can be used, renewed if need be.

        Raises Refused (`CREDENTIAL_REVOKED`), Unavailable (`CREDENTIAL_REFRESH_FAILED`, `VAULT_UNAVAILABLE`), or
        Unauthenticated when the session is over.
        """
        path = trail.secret(access.tenant, credential.vault_id, credential.credential_id)
        while True:
            document = await read_secret(self._store, access, path)
            if document is None or renewal.need(document.fields.reveal(), refused, self._now()) is Need.NOTHING:
                return document
            task = self._running.get(path)
            mine = task is None
            if task is None:
                task = asyncio.create_task(self._bring(access, credential, path, refused), name=f"renew {path}")
                self._running[path] = task
                task.add_done_callback(lambda ended: self._end(path, ended))
            try:
                # Shielded: it goes on without its caller, because what the server gives it must be stored.
                await asyncio.shield(task)
            except Unauthenticated:
                if mine:
                    raise
                continue  # the session that it ran for has ended, and this one has not
            return await read_secret(self._store, access, path)

    def _end(self, path: str, task: asyncio.Task[None]) -> None:
        if self._running.get(path) is task:
            del self._running[path]
        if not task.cancelled():
            task.exception()  # nobody may be waiting any more

    async def _bring(self, access: Access, credential: Credential, path: str, refused: Secret[str] | None) -> None:
        ends = self._now() + WAIT_SECONDS
        while self._now() < ends:
            document = await read_secret(self._store, access, path)
            if document is None:
                return None
            fields = document.fields.reveal()
            match renewal.need(fields, refused, self._now()):
                case Need.NOTHING:
                    return None
                case Need.REVOKED:
                    raise _revoked(fields)
                case Need.GIVE_UP:
                    raise _failed(fields)
                case Need.WAIT:
                    await asyncio.sleep(POLL_SECONDS)
                case Need.RENEW:
                    lease = renewal.lease(secrets.token_hex(8), self._now())
                    try:
                        version = await self._store.patch(path, lease, document.version)
                    except Conflict:
                        continue  # somebody else was first
                    return await self._renew(access, credential, Document(document.fields, version), refused)
        raise Unavailable("CREDENTIAL_REFRESH_FAILED", "somebody else renews the access and does not end")

    async def _renew(
        self, access: Access, credential: Credential, document: Document, refused: Secret[str] | None
    ) -> None:
        """Asks the server, stores what it says, and tells."""
        fields = document.fields.reveal()
        path = trail.secret(access.tenant, credential.vault_id, credential.credential_id)
        outcome = await self._ask(fields)
        now, result = self._now(), "refreshed"
        changes: Changes
        match outcome:
            case Renewed():
                changes = renewal.stored(outcome, now)
            case Failed.REVOKED:
                changes, result = {**renewal.CLEARED, renewal.REVOKED: "1"}, "CREDENTIAL_REVOKED"
            case Failed.OTHERWISE:
                after = f"{now + renewal.BACKOFF_SECONDS:.3f}"
                changes, result = {**renewal.CLEARED, renewal.RENEW_AFTER: after}, "CREDENTIAL_REFRESH_FAILED"
        counting.REFRESHES.add(_OUTCOMES[result])
        self._audit.used(access.told, _host(fields), "", credential, result)
        await self._keep(access, path, changes, document, now + renewal.LEASE_SECONDS)
        if not isinstance(outcome, Renewed):
            _log.warning("an access is not renewed", credential_id=credential.credential_id, result=result)
        await self._tell(access, credential, changes, outcome)
        if outcome is Failed.REVOKED:
            raise _revoked(fields)
        if outcome is Failed.OTHERWISE and not renewal.usable(fields, refused, now):
            raise _failed(fields)

    async def _ask(self, fields: Fields) -> Renewed | Failed:
        from services.vault_proxy.outbound import NoAnswer, Outbound

        if self._outbound is None:
            self._outbound = await asyncio.to_thread(Outbound, *self._reach)
        body, header = renewal.question(fields)
        try:
            answer = await self._outbound.send(
                "POST", fields["renewal_endpoint"], renewal.FORM, body, header, seconds=ASK_SECONDS
            )
        except (UrlRefused, NoAnswer) as problem:
            _log.warning("an authorization server does not answer", kind=type(problem).__name__)
            return Failed.OTHERWISE
        return renewal.answer(answer.status, answer.body, fields.get("resource", ""))

    async def _keep(self, access: Access, path: str, changes: Changes, document: Document, until: float) -> None:
        """Stores what the server said. What a client has put in the refresh token's place meanwhile counts more."""
        old, version = document.fields.reveal(), document.version
        while True:
            try:
                await self._store.patch(path, changes, version)
                return
            except Conflict:
                now = await read_secret(self._store, access, path)
                if now is None or now.fields.reveal().get("refresh") != old.get("refresh"):
                    return
                version = now.version
            except Unavailable:
                if self._now() >= until:
                    _log.error("what an authorization server said could not be stored")
                    raise
                await asyncio.sleep(STORE_SECONDS)

    async def _tell(self, access: Access, credential: Credential, changes: Changes, outcome: Renewed | Failed) -> None:
        """Notes the outcome where people see it. That it cannot be noted costs nobody the access."""
        if outcome is Failed.OTHERWISE:
            return
        expires = (changes.get("expire_time") or "") if isinstance(outcome, Renewed) else credential.expire_time
        try:
            await self._credentials.renewed(access.tenant, credential, expires, revoked=outcome is Failed.REVOKED)
        except ServiceError as problem:
            _log.warning("a renewal is not noted", credential_id=credential.credential_id, reason=problem.reason)

    async def close(self) -> None:
        """Waits a moment for what runs, and cancels it then."""
        if self._running:
            _, late = await asyncio.wait(self._running.values(), timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _host(fields: Fields) -> str:
    try:
        return origin_of(fields.get("renewal_endpoint", "")).host
    except UrlRefused:
        return ""


def _revoked(fields: Fields) -> Refused:
    return Refused("CREDENTIAL_REVOKED", "the account must be connected again", server=_host(fields))


def _failed(fields: Fields) -> Unavailable:
    return Unavailable(
        "CREDENTIAL_REFRESH_FAILED",
        "the authorization server does not renew the access now",
        retry_after=renewal.BACKOFF_SECONDS,
        server=_host(fields),
    )
