"""Uses a credential once, harmlessly, to see whether it works: with the voucher that a client brings for its vault."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import grpc

from handmesh.session.v1 import session_pb2
from services.kit import channels, ids
from services.kit.errors import Invalid, ServiceError, Unauthenticated, Unavailable
from services.kit.origin import Allowed, Origin, UrlRefused, origin_of
from services.vault_proxy import trail
from services.vault_proxy.core import kinds
from services.vault_proxy.credentials import Credential
from services.vault_proxy.github_app import Api, GithubApps
from services.vault_proxy.grants import Access, Server, read_secret
from services.vault_proxy.mcp.connections import Connections, Use
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.secret import Secret
from services.vault_proxy.vaults import Vaults
from services.vault_proxy.wallet import Wallet

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub
    from services.vault_proxy.outbound import Outbound

REDEEM_SECONDS = 5.0
ASK_SECONDS = 15.0  # for a git host's answer
DEFAULT_PATH = "/mcp"  # where most servers are that have a fixed value


@dataclass(frozen=True)
class Verdict:
    """Whether a credential works, why not (an ErrorReason by name), and what was tried, in a line."""

    valid: bool
    reason: str
    detail: str


@dataclass
class VoucherPass:
    """Implements `ports.Pass` with the session service's word for one vault: good for one login."""

    session_id: str
    word: Secret[str] = field(repr=False)
    epoch: int = 0

    async def voucher(self) -> Secret[str]:
        word, self.word = self.word, Secret("")
        if not word.reveal():
            raise Unavailable("VAULT_UNAVAILABLE", "nobody vouches for the client to the vault")
        return word


class Validation:
    """Tries credentials. `allowed` and `ca_file` are as for MCP servers."""

    def __init__(
        self,
        session: SessionServiceAsyncStub,
        store: CredentialStore,
        vaults: Vaults,
        wallet: Wallet,
        connections: Connections,
        allowed: Allowed,
        ca_file: Path | None,
    ) -> None:
        self._session = session
        self._store = store
        self._vaults = vaults
        self._wallet = wallet
        self._connections = connections
        self._reach = (allowed, ca_file)
        self._outbound: Outbound | None = None

    async def validate(self, tenant: str, credential_id: str, voucher: Secret[str], url: str) -> Verdict:
        """Says whether a credential works. An empty `url` is left to us.

        Raises Gone (`CREDENTIAL_NOT_FOUND`), Invalid, Unauthenticated (`GRANT_INVALID`), or Unavailable when the vault
        or the session service does not answer.
        """
        credential = await self._vaults.locate(tenant, credential_id)
        _check_url(url, credential.origin)
        access = await self._vouched(tenant, credential, voucher)
        try:
            match credential.kind:
                case kinds.MCP_OAUTH | kinds.STATIC_BEARER:
                    return await self._ask_mcp(access, credential, url or _url_of(credential))
                case kinds.GIT:
                    return await self._ask_git(access, credential, url)
                case _:
                    return await self._look(access, credential)
        finally:
            self._connections.drop(access.session_id)
            self._store.forget(access.session_id, 0)

    async def _vouched(self, tenant: str, credential: Credential, voucher: Secret[str]) -> Access:
        """Returns the access that a voucher gives. Raises Unauthenticated when it is for something else."""
        request = session_pb2.RedeemVoucherRequest(voucher=voucher.reveal())
        try:
            redeemed = await self._session.RedeemVoucher(request, timeout=REDEEM_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise channels.raised(error) from None
        if (redeemed.tenant, redeemed.vault_id) != (tenant, credential.vault_id):
            raise Unauthenticated("GRANT_INVALID", "the voucher is for another vault")
        name = ids.mint("vouch")
        holder = VoucherPass(name, Secret(redeemed.vault_jwt))
        return Access(name, tenant, 0, vault_ids=(credential.vault_id,), secrets=holder, vouched=True)

    async def _ask_mcp(self, access: Access, credential: Credential, url: str) -> Verdict:
        """Connects and lists the server's tools. An access that must be renewed is."""
        use = Use()
        try:
            offered = await self._connections.tools(access, Server(origin_of(url).host, url), use, refresh=True)
        except ServiceError as problem:
            if problem.reason == "VAULT_UNAVAILABLE":
                raise
            return Verdict(False, problem.reason, problem.message)
        if use.credential is None or use.credential.credential_id != credential.credential_id:
            return _no_secret()
        return Verdict(True, "", f"the MCP server takes it; tools that it lists: {len(offered.tools)}")

    async def _ask_git(self, access: Access, credential: Credential, url: str) -> Verdict:
        """Makes an app's key a value, if it has one, and asks a repository for its references, as a fetch begins."""
        from services.vault_proxy.outbound import NoAnswer, Outbound

        login = await self._wallet.find_git(access, credential.origin) if credential.origin else None
        if login is None or login.credential_id != credential.credential_id:
            return _no_secret()
        try:
            value = await GithubApps(Api(*self._reach).post, time.time).value(login) if login.app_id else login.value
        except ServiceError as problem:
            return Verdict(False, problem.reason, problem.message)
        if not url:
            said = "the host gives the app an access" if login.app_id else "its secret can be read"
            return Verdict(True, "", f"{said}; whether a repository takes it shows with its URL")
        if self._outbound is None:
            self._outbound = await asyncio.to_thread(Outbound, *self._reach)
        pair = base64.b64encode(f"{login.user}:{value.reveal()}".encode()).decode()
        place = f"{url.rstrip('/')}/info/refs?service=git-upload-pack"
        try:
            answer = await self._outbound.send("GET", place, {}, None, Secret(f"Basic {pair}"), ASK_SECONDS)
        except (UrlRefused, NoAnswer):
            return Verdict(False, "SERVER_UNAVAILABLE", "the git host does not answer, or may not be called")
        if answer.status == 200:
            return Verdict(True, "", "the git host shows the repository's references")
        reason = "CREDENTIAL_REVOKED" if answer.status in (401, 403, 404) else "SERVER_UNAVAILABLE"
        return Verdict(False, reason, f"the git host answers with HTTP status {answer.status}")

    async def _look(self, access: Access, credential: Credential) -> Verdict:
        """Reads a variable's value: where it is taken shows only in a sandbox."""
        path = trail.secret(access.tenant, credential.vault_id, credential.credential_id)
        document = await read_secret(self._store, access, path)
        if document is None or not document.fields.reveal().get("value"):
            return _no_secret()
        return Verdict(True, "", "its secret can be read; whether a host takes it shows when it is used")


def _no_secret() -> Verdict:
    return Verdict(False, "CREDENTIAL_NOT_FOUND", "its secret is not there, or is bound to something else")


def _check_url(url: str, origin: Origin | None) -> None:
    if not url:
        return
    try:
        if origin is None or origin_of(url) != origin:
            raise Invalid("ARGUMENT_INVALID", "url: expected one of the credential's origin", field="url")
    except UrlRefused as refused:
        raise Invalid("ARGUMENT_INVALID", f"url: {refused}", field="url") from None


def _url_of(credential: Credential) -> str:
    """Returns where a credential's MCP server most likely is: its resource, unless that is all of an origin."""
    resource = credential.facts.get("resource", "")
    if urlsplit(resource).path.strip("/") and origin_of(resource) == credential.origin:
        return resource
    return f"{credential.origin}{DEFAULT_PATH}"
