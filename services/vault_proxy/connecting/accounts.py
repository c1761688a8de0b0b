"""The two steps of connecting an account. Imported on first use: it loads the HTTP library and a cipher."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from pathlib import Path

from services.kit.errors import Invalid, Refused
from services.kit.logs import Log
from services.kit.origin import Allowed, UrlRefused, origin_of
from services.vault_proxy.connecting import discovery
from services.vault_proxy.connecting.pending import Pending
from services.vault_proxy.connecting.steps import Returned, Started, Wish
from services.vault_proxy.core import authorizing, renewal
from services.vault_proxy.core.authorizing import Attempt, Client
from services.vault_proxy.core.metadata import FAILED, UNSUPPORTED, AuthorizationServer, Unconnectable
from services.vault_proxy.credentials import Credential
from services.vault_proxy.outbound import Answer, NoAnswer, Outbound
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.secret import Secret
from services.vault_proxy.vaults import Vaults, check_name

START_SECONDS = 40.0  # for all questions that a start asks
STATE_BYTES = VERIFIER_BYTES = 32

_JSON = {"accept": "application/json", "content-type": "application/json"}
_log = Log("services.vault_proxy.connecting")


class Accounts:
    """Connects accounts. `now` is Unix time in seconds, `document_url` this service's own client metadata, if any."""

    def __init__(
        self,
        store: CredentialStore,
        vaults: Vaults,
        now: Callable[[], float],
        allowed: Allowed,
        ca_file: Path | None,
        document_url: str,
    ) -> None:
        self._pending = Pending(store, now)
        self._vaults = vaults
        self._now = now
        self._allowed = allowed
        self._document_url = document_url
        self._outbound = Outbound(allowed, ca_file)

    async def start(self, tenant: str, wish: Wish) -> Started:
        """Finds out how, and remembers it.

        Raises Invalid, Gone (`VAULT_NOT_FOUND`), Exists (`CREDENTIAL_EXISTS`), Refused (`OAUTH_UNSUPPORTED`,
        `OAUTH_FAILED`), Denied (`SERVER_ADDRESS_DENIED`), Unavailable or Full: of the vault, too.
        """
        check_name(wish.name)
        authorizing.check_redirect(wish.redirect_uri)
        authorizing.check_client(wish.client_id, wish.client_secret, wish.scope)
        try:
            origin = origin_of(wish.url)
        except UrlRefused as refused:
            raise Invalid("ARGUMENT_INVALID", f"url: {refused}", field="url") from None
        await self._vaults.check_place(tenant, wish.vault_id, origin)
        try:
            async with asyncio.timeout(START_SECONDS):
                server, attempt = await self._prepare(wish)
        except Unconnectable as problem:
            raise _refused(problem, origin.host) from None
        except TimeoutError:
            raise Refused(UNSUPPORTED, "the servers do not answer in time", server=origin.host) from None
        state = secrets.token_urlsafe(STATE_BYTES)
        ends = await self._pending.put(tenant, state, attempt)
        _log.info("an account is being connected", vault_id=wish.vault_id, server=origin.host)
        url = authorizing.authorization_url(server.authorization_endpoint, attempt, state)
        return Started(url, server.issuer, state, ends)

    async def _prepare(self, wish: Wish) -> tuple[AuthorizationServer, Attempt]:
        challenge = await discovery.challenge(self._outbound, wish.url)
        resource = await discovery.resource(self._outbound, wish.url, challenge)
        server = await discovery.server(self._outbound, resource.issuer, self._allowed)
        scope = authorizing.scope_for(wish.scope, challenge.scope, resource, server)
        client = authorizing.known_client(server, wish.client_id, wish.client_secret, self._document_url)
        origin = origin_of(wish.url)
        return server, Attempt(
            vault_id=wish.vault_id,
            name=wish.name or origin.host,
            origin=str(origin),
            resource=resource.resource,
            issuer=server.issuer,
            names_itself=server.names_itself,
            token_endpoint=server.token_endpoint,
            redirect_uri=wish.redirect_uri,
            scope=scope,
            client=client or await self._register(server, wish.redirect_uri, scope),
            verifier=Secret(secrets.token_urlsafe(VERIFIER_BYTES)),
        )

    async def _register(self, server: AuthorizationServer, redirect_uri: str, scope: str) -> Client:
        asked = authorizing.registration(server, redirect_uri, scope)
        body = Secret(json.dumps(asked).encode())
        answer = await self._post(server.registration_endpoint, _JSON, body)
        return authorizing.registered(answer.status, answer.body, asked)

    async def finish(self, tenant: str, returned: Returned) -> Credential:
        """Turns what a redirect brought into a credential. The state is used up, whatever comes of it.

        Raises Refused (`OAUTH_FAILED`), Gone (`VAULT_NOT_FOUND`), Exists (`CREDENTIAL_EXISTS`), Full or Unavailable.
        """
        attempt = await self._pending.take(tenant, returned.state)
        if attempt is None:
            raise Refused(FAILED, "the state is unknown, was used, or is too old: start again")
        origin = origin_of(attempt.origin)
        try:
            authorizing.check_return(attempt, returned.issuer, returned.error, returned.code)
            await self._vaults.check_place(tenant, attempt.vault_id, origin)
            body, header = authorizing.exchange(attempt, returned.code)
            answer = await self._post(attempt.token_endpoint, renewal.FORM, body, header)
            draft = authorizing.given(attempt, answer.status, answer.body, self._now())
        except Unconnectable as problem:
            raise _refused(problem, origin.host) from None
        connected = await self._vaults.connect(tenant, attempt.vault_id, attempt.name, origin, draft)
        _log.info("an account is connected", vault_id=attempt.vault_id, credential_id=connected.credential_id)
        return connected

    async def _post(
        self, url: str, headers: dict[str, str], body: Secret[bytes], authorization: Secret[str] | None = None
    ) -> Answer:
        try:
            return await self._outbound.send("POST", url, headers, body, authorization, seconds=discovery.ASK_SECONDS)
        except UrlRefused as refused:
            raise Unconnectable(FAILED, f"the authorization server may not be called: {refused}") from None
        except NoAnswer as problem:
            raise Unconnectable(FAILED, f"the authorization server does not answer ({problem.failure.value})") from None


def _refused(problem: Unconnectable, server: str) -> Refused:
    return Refused(problem.reason, str(problem), server=server)
