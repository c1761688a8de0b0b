"""The kinds of credentials: which fields each has, what they may hold, and which of them never change.

A draft is what a client sends. Its secrets go into one document of the store, what may be told of it into another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from services.kit.errors import Invalid
from services.kit.origin import Origin, UrlRefused, origin_of
from services.vault_proxy.secret import Secret

STATIC_BEARER = "static_bearer"
MCP_OAUTH = "mcp_oauth"
ENVIRONMENT_VARIABLE = "environment_variable"
GIT = "git"
FOR_MCP = frozenset({STATIC_BEARER, MCP_OAUTH})

CLIENT_AUTHS = ("none", "client_secret_basic", "client_secret_post")
GIT_USER = "x-access-token"
VALUE_CHARACTERS = 8192
NAME_CHARACTERS = 255
SCOPE_CHARACTERS = 2048
MOST_HOSTS = 16

_BEARER = re.compile(r"[!-~]+")  # anything else is no header value
_TEXT = re.compile(r"[ -~]+")  # RFC 6749, VSCHAR
_VALUE = re.compile(r"[\t -~]+")
_SCOPE = re.compile(r"[!#-\[\]-~]+( [!#-\[\]-~]+)*")  # RFC 6749, 3.3
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NUMBER = re.compile(r"[0-9]{1,20}")
_PRIVATE_KEY = re.compile(r"-----BEGIN (RSA )?PRIVATE KEY-----\n[A-Za-z0-9+/=\n]+-----END (RSA )?PRIVATE KEY-----\n?")


@dataclass(frozen=True)
class Kind:
    """The fields of a kind: secrets, those that never change, and those that an update may change."""

    secrets: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    STATIC_BEARER: Kind(("value",)),
    MCP_OAUTH: Kind(
        ("access", "refresh", "client_secret"),
        ("renewal_endpoint", "client_id", "client_auth", "resource"),
        ("scope", "expire_time"),
    ),
    ENVIRONMENT_VARIABLE: Kind(("value",), ("variable", "allowed_hosts", "in_headers", "in_bodies")),
    GIT: Kind(("value", "private_key"), ("user", "app_id", "installation_id")),
}


@dataclass(frozen=True)
class Draft:
    """What a client says of a credential. Empty texts are what it does not say; lists are joined by spaces."""

    kind: str
    secrets: Secret[Mapping[str, str]]
    facts: Mapping[str, str] = field(default_factory=dict)

    def secret(self, name: str) -> str:
        """Returns a secret field's value, empty when it was not sent."""
        return self.secrets.reveal().get(name, "")


def checked(draft: Draft, origin: str) -> tuple[Draft, Origin | None]:
    """Returns a new credential's draft, with what it left to us, and its origin: None for a variable.

    Raises Invalid (`ARGUMENT_INVALID`, metadata `field`).
    """
    bound: Origin | None = None
    if draft.kind != ENVIRONMENT_VARIABLE:
        bound = _bound(origin)
    elif origin:
        _refuse("origin", "an environment variable has allowed hosts and no origin")
    facts = dict(draft.facts)
    match draft.kind:
        case "mcp_oauth":
            _check_oauth(draft, facts)
        case "environment_variable":
            _check_variable(facts)
        case "git":
            facts["user"] = facts.get("user") or GIT_USER
            _check_git(draft, facts)
    needed = {STATIC_BEARER: "value", MCP_OAUTH: "access", ENVIRONMENT_VARIABLE: "value"}.get(draft.kind)
    if needed is not None and not draft.secret(needed):
        _refuse(f"secret.{needed}", "expected one")
    check_secrets(draft)
    return Draft(draft.kind, draft.secrets, {name: value for name, value in facts.items() if value}), bound


def check_secrets(draft: Draft) -> None:
    """Checks the secrets that were sent, and what may come with them. Raises Invalid (`ARGUMENT_INVALID`)."""
    for name in KINDS[draft.kind].secrets:
        value = draft.secret(name)
        if value and (not _form(draft.kind, name).fullmatch(value) or len(value) > VALUE_CHARACTERS):
            _refuse(f"secret.{name}", f"has characters that it cannot have, or more than {VALUE_CHARACTERS}")
    scope = draft.facts.get("scope", "")
    if scope and not is_scope(scope):
        _refuse("secret.scope", "expected scopes, each separated by one space from the next")


def changed(draft: Draft, kind: str, facts: Mapping[str, str]) -> None:
    """Raises Invalid (`CREDENTIAL_IMMUTABLE`) when an update says something else than what is fixed."""
    if draft.kind != kind:
        raise Invalid("CREDENTIAL_IMMUTABLE", f"the credential is of the kind {kind}", field="secret")
    for name in KINDS[kind].fixed:
        said = draft.facts.get(name, "")
        if said and said != facts.get(name, ""):
            raise Invalid("CREDENTIAL_IMMUTABLE", f"{name} does not change: add another credential", field=name)


def key_of(kind: str, origin: Origin | None, facts: Mapping[str, str]) -> str:
    """Returns what a vault has at most one living credential for."""
    if kind == ENVIRONMENT_VARIABLE:
        return f"variable {facts.get('variable', '')}"
    return f"{'mcp' if kind in FOR_MCP else kind} {origin}"


def is_bearer(value: str) -> bool:
    """Tells whether a value can be sent as a bearer token."""
    return _BEARER.fullmatch(value) is not None and len(value) <= VALUE_CHARACTERS


def is_scope(text: str) -> bool:
    """Tells whether a text is a scope or several, each separated by one space from the next."""
    return _SCOPE.fullmatch(text) is not None and len(text) <= SCOPE_CHARACTERS


def is_value(value: str) -> bool:
    """Tells whether a value can be put in the place of a placeholder."""
    return _VALUE.fullmatch(value) is not None and len(value) <= VALUE_CHARACTERS


def is_user(name: str) -> bool:
    """Tells whether a name can be sent as a user's."""
    return _BEARER.fullmatch(name) is not None and ":" not in name and len(name) <= NAME_CHARACTERS


def is_number(text: str) -> bool:
    """Tells whether a text can be an app's or an installation's number."""
    return _NUMBER.fullmatch(text) is not None


def _form(kind: str, name: str) -> re.Pattern[str]:
    if name == "private_key":
        return _PRIVATE_KEY
    if kind == ENVIRONMENT_VARIABLE:
        return _VALUE
    return _TEXT if name in {"refresh", "client_secret"} else _BEARER


def _check_oauth(draft: Draft, facts: dict[str, str]) -> None:
    endpoint, auth = facts.get("renewal_endpoint", ""), facts.get("client_auth", "")
    if not endpoint:
        for name in ("client_id", "client_auth", "resource"):
            if facts.get(name):
                _refuse(f"secret.{name}", "says how the access is renewed, but no renewal_endpoint does")
        for name in ("refresh", "client_secret"):
            if draft.secret(name):
                _refuse(f"secret.{name}", "renews the access, but no renewal_endpoint says where")
        return
    _check_url("secret.renewal_endpoint", endpoint)
    if facts.get("resource"):
        _check_url("secret.resource", facts["resource"])
    if not facts.get("client_id") or not _TEXT.fullmatch(facts["client_id"]) or len(facts["client_id"]) > 1024:
        _refuse("secret.client_id", "expected the client that the access was given to")
    facts["client_auth"] = auth = auth or "none"
    if auth not in CLIENT_AUTHS:
        _refuse("secret.client_auth", f"expected one of {', '.join(CLIENT_AUTHS)}")
    if (auth == "none") == bool(draft.secret("client_secret")):
        _refuse("secret.client_secret", "goes with client_secret_basic and client_secret_post, and with nothing else")


def _check_variable(facts: Mapping[str, str]) -> None:
    if not _VARIABLE.fullmatch(facts.get("variable", "")):
        _refuse("secret.variable", "expected the name of an environment variable")
    hosts = facts.get("allowed_hosts", "").split(" ")
    if not 1 <= len(hosts) <= MOST_HOSTS or not all(_is_host(host) for host in hosts):
        _refuse("secret.allowed_hosts", f"expected 1 to {MOST_HOSTS} hosts: names in lower case, or *.name")
    if not facts.get("in_headers") and not facts.get("in_bodies"):
        _refuse("secret.in_headers", "expected a place: in_headers, in_bodies or both")


def _is_host(host: str) -> bool:
    try:
        return origin_of(f"https://{host.removeprefix('*.')}").host == host.removeprefix("*.")
    except UrlRefused:
        return False


def _check_git(draft: Draft, facts: Mapping[str, str]) -> None:
    if not is_user(facts["user"]):
        _refuse("secret.user", "expected a user name without spaces and colons")
    app = [facts.get("app_id", ""), facts.get("installation_id", ""), draft.secret("private_key")]
    if not any(app):
        if not draft.secret("value"):
            _refuse("secret.value", "expected one, or a GitHub App's id, installation and private key")
        return
    if draft.secret("value") or not all(app):
        _refuse("secret.app_id", "a GitHub App has an id, an installation and a private key, and no value")
    for name in ("app_id", "installation_id"):
        if not is_number(facts[name]):
            _refuse(f"secret.{name}", "expected a number")


def _bound(origin: str) -> Origin:
    found = _check_url("origin", origin)
    if re.search("[/?]", origin.partition("://")[2].removesuffix("/")):
        _refuse("origin", "expected scheme://host[:port] and nothing more")
    return found


def _check_url(name: str, url: str) -> Origin:
    try:
        return origin_of(url)
    except UrlRefused as refused:
        _refuse(name, str(refused))


def _refuse(name: str, rule: str) -> NoReturn:
    raise Invalid("ARGUMENT_INVALID", f"{name}: {rule}", field=name)
