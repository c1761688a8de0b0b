"""Vaults and credentials as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.errors import Invalid
from services.vault_proxy.connecting.steps import Returned, Started, Wish
from services.vault_proxy.core import kinds
from services.vault_proxy.core.kinds import Draft
from services.vault_proxy.credentials import Credential
from services.vault_proxy.secret import Secret
from services.vault_proxy.vaults import Vault

_KINDS = {
    kinds.MCP_OAUTH: pb.CREDENTIAL_KIND_MCP_OAUTH,
    kinds.STATIC_BEARER: pb.CREDENTIAL_KIND_STATIC_BEARER,
    kinds.ENVIRONMENT_VARIABLE: pb.CREDENTIAL_KIND_ENVIRONMENT_VARIABLE,
    kinds.GIT: pb.CREDENTIAL_KIND_GIT,
}


def draft_of(secret: pb.CredentialSecret) -> Draft:
    """Reads what a client says of a credential. Raises Invalid when it says nothing."""
    kind = secret.WhichOneof("secret")
    if kind is None:
        raise Invalid("ARGUMENT_INVALID", "secret: expected one", field="secret")
    message = getattr(secret, kind)
    its = kinds.KINDS[kind]
    facts = {name: _text(message, name) for name in (*its.fixed, *its.loose)}
    secrets = {name: str(getattr(message, name)) for name in its.secrets}
    return Draft(kind, Secret(secrets), facts)


def _text(message: pb.McpOauth | pb.StaticBearer | pb.EnvironmentVariable | pb.GitAccess, name: str) -> str:
    """Returns a field as text: a flag that is set as 1, names joined by spaces, a time in RFC 3339."""
    if name == "expire_time":
        if isinstance(message, pb.McpOauth) and message.HasField("expire_time"):
            return message.expire_time.ToJsonString()
        return ""
    value = getattr(message, name)
    if isinstance(value, bool):
        return "1" if value else ""
    return value if isinstance(value, str) else " ".join(value)


def vault_message(vault: Vault) -> pb.Vault:
    """Returns what clients see of a vault."""
    message = pb.Vault(vault_id=vault.vault_id, name=vault.name, archived=vault.archived)
    if vault.create_time:
        message.create_time.FromJsonString(vault.create_time)
    return message


def credential_message(credential: Credential) -> pb.Credential:
    """Returns what clients may know of a credential: everything but its secrets, their lengths or their hashes."""
    message = pb.Credential(
        credential_id=credential.credential_id,
        vault_id=credential.vault_id,
        name=credential.name,
        kind=_KINDS[credential.kind],
        origin=str(credential.origin or ""),
        version=credential.version,
        revoked=credential.revoked,
        archived=credential.archived,
    )
    for name in ("create_time", "update_time", "expire_time"):
        if time := getattr(credential, name):
            getattr(message, name).FromJsonString(time)
    facts = credential.facts
    match credential.kind:
        case kinds.MCP_OAUTH:
            message.mcp_oauth.SetInParent()
            _copy(facts, message.mcp_oauth, "renewal_endpoint", "client_id", "client_auth", "scope", "resource")
        case kinds.ENVIRONMENT_VARIABLE:
            its = message.environment_variable
            its.variable = facts.get("variable", "")
            its.allowed_hosts.extend(facts.get("allowed_hosts", "").split())
            its.in_headers, its.in_bodies = bool(facts.get("in_headers")), bool(facts.get("in_bodies"))
        case kinds.GIT:
            _copy(facts, message.git, "user", "app_id", "installation_id")
    return message


def wish_of(request: pb.StartConnectionRequest) -> Wish:
    """Reads what a client wants to connect."""
    return Wish(
        vault_id=request.vault_id,
        url=request.url,
        redirect_uri=request.redirect_uri,
        name=request.name,
        client_id=request.client_id,
        client_secret=Secret(request.client_secret),
        scope=request.scope,
    )


def started_message(started: Started) -> pb.StartConnectionResponse:
    """Returns what a client needs to send a person away."""
    message = pb.StartConnectionResponse(
        authorization_url=started.authorization_url, state=started.state, issuer=started.issuer
    )
    message.expire_time.FromSeconds(int(started.ends))
    return message


def returned_of(request: pb.FinishConnectionRequest) -> Returned:
    """Reads what a redirect brought."""
    return Returned(request.state, Secret(request.code), request.issuer, request.error)


def _copy(facts: Mapping[str, str], message: pb.McpOauthFacts | pb.GitFacts, *names: str) -> None:
    for name in names:
        setattr(message, name, facts.get(name, ""))
