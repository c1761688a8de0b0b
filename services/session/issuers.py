"""The operator's file of issuers: whose tokens clients may show, and what they then may do. See docs/identity.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.kit.access import Scope
from services.kit.watched import UnreadableError
from services.session.api_keys import TENANT

ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY_SECONDS = 5  # that clocks may differ, at most
MOST_SECONDS = 24 * 60 * 60  # that a token may live, unless the file says otherwise
_FIELDS = {"issuer", "audience", "jwks_file", "jwks_url", "ca_file", "algorithms", "tenant", "tenant_claim", "tenants"}
_FIELDS |= {"scope_claim", "scopes", "name_claim", "leeway_seconds", "max_seconds"}


@dataclass(frozen=True)
class Issuer:
    """One issuer. Its keys are in `jwks`, a file or an https address.

    The tenant is `tenant`, or what the claim `tenant_claim` says if that is one of `tenants` (when there are any).
    `scopes` maps the words of the claim `scope_claim` to ours; the highest counts.
    """

    name: str
    audiences: tuple[str, ...]
    jwks: Path | str
    algorithms: tuple[str, ...]
    tenant: str
    tenant_claim: str
    tenants: frozenset[str]
    scope_claim: str
    scopes: Mapping[str, Scope] = field(hash=False)
    name_claim: str
    leeway_seconds: int
    max_seconds: int
    ca_file: Path | None = None


def read(file: Path) -> tuple[Issuer, ...]:
    """Reads the file. Raises OSError, and UnreadableError, which says what is wrong with which issuer."""
    try:
        said = json.loads(file.read_bytes())
    except ValueError:
        raise UnreadableError("expected JSON") from None
    rows = said.get("issuers") if isinstance(said, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UnreadableError('expected {"issuers": [{...}, ...]}')
    return tuple(_issuer(number, row, file.parent) for number, row in enumerate(rows, 1))


def _issuer(number: int, row: Mapping[str, Any], folder: Path) -> Issuer:
    def wrong(what: str) -> UnreadableError:
        return UnreadableError(f"issuer {number}: {what}")

    if unknown := sorted(row.keys() - _FIELDS):
        raise wrong(f"there is no field {unknown[0]}")
    for name in ("issuer", "tenant", "tenant_claim", "scope_claim", "name_claim", "jwks_file", "jwks_url", "ca_file"):
        if name in row and (not isinstance(row[name], str) or not row[name]):
            raise wrong(f"{name} is some text")
    if "issuer" not in row:
        raise wrong("issuer is missing")
    audiences = _texts(row.get("audience"))
    if not audiences:
        raise wrong("audience is some text, or a list of it")
    algorithms = _texts(row.get("algorithms", list(ALGORITHMS)))
    if not algorithms or not set(algorithms) <= set(ALGORITHMS):
        raise wrong("algorithms are some of " + ", ".join(ALGORITHMS))
    if ("tenant" in row) == ("tenant_claim" in row):
        raise wrong("either tenant or tenant_claim is needed")
    tenants = _texts(row.get("tenants", []))
    if tenants is None or not all(map(TENANT.fullmatch, [*tenants, row.get("tenant", "x")])):
        raise wrong(f"a tenant matches ^{TENANT.pattern}$")
    return Issuer(
        name=row["issuer"],
        audiences=tuple(audiences),
        jwks=_jwks(row, folder, wrong),
        algorithms=tuple(algorithms),
        tenant=row.get("tenant", ""),
        tenant_claim=row.get("tenant_claim", ""),
        tenants=frozenset(tenants),
        scope_claim=row.get("scope_claim", "scope"),
        scopes=_scopes(row.get("scopes"), wrong),
        name_claim=row.get("name_claim", "sub"),
        leeway_seconds=_seconds(row, "leeway_seconds", LEEWAY_SECONDS, 0, LEEWAY_SECONDS, wrong),
        max_seconds=_seconds(row, "max_seconds", MOST_SECONDS, 1, 366 * MOST_SECONDS, wrong),
        ca_file=folder / row["ca_file"] if "ca_file" in row else None,
    )


def _jwks(row: Mapping[str, Any], folder: Path, wrong: Any) -> Path | str:
    if ("jwks_file" in row) == ("jwks_url" in row):
        raise wrong("either jwks_file or jwks_url is needed")
    if "jwks_file" in row:
        return folder / str(row["jwks_file"])
    address: str = row["jwks_url"]
    if not address.startswith("https://"):
        raise wrong("jwks_url begins with https://")
    return address


def _scopes(said: Any, wrong: Any) -> Mapping[str, Scope]:
    names = {scope.word: scope for scope in Scope}
    if not isinstance(said, dict) or not said or not all(each in names for each in said.values()):
        raise wrong("scopes is {word of the issuer: " + " | ".join(names) + "}")
    return {word: names[name] for word, name in said.items()}


def _texts(said: Any) -> Sequence[str] | None:
    found = [said] if isinstance(said, str) else said
    return found if isinstance(found, list) and all(isinstance(it, str) and it for it in found) else None


def _seconds(row: Mapping[str, Any], name: str, default: int, least: int, most: int, wrong: Any) -> int:
    said = row.get(name, default)
    if type(said) is not int or not least <= said <= most:
        raise wrong(f"{name} is {least} to {most}")
    return said
