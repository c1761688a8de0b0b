"""Where things lie in the vault: a tenant's vaults, the credentials in them, and apart from those their secrets.

    tenants/<tenant>/vaults/<vault_id>/about                         name, create_time, archived
    tenants/<tenant>/vaults/<vault_id>/credentials/<credential_id>   kind, origin, name, times: what may be told
    tenants/<tenant>/vaults/<vault_id>/keys/<sha256 of the key>      credential_id: the one that has an origin
    tenants/<tenant>/secrets/<vault_id>/<credential_id>              kind, origin, and the secrets
    tenants/<tenant>/requests/<sha256 of the request id>             vault_id
    tenants/<tenant>/connections/<sha256 of the state>               sealed, expires: an account that is being connected

Only what lies below `secrets` is secret: this service may write there and not read; a session's token may read. What
lies below `connections` opens only with the state, which is not kept.
Each part of a path is checked here, so no id leads out of its tenant's folder. The vault folds case: so all of it is
lower case.
"""

from __future__ import annotations

import hashlib
import re

from services.kit import ids
from services.kit.errors import Invalid

TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def tenant_folder(tenant: str) -> str:
    """Returns a tenant's folder. Raises Invalid (`ID_INVALID`)."""
    if not TENANT.fullmatch(tenant):
        raise Invalid("ID_INVALID", "the tenant's name is no plain lower-case word", field="tenant")
    return f"tenants/{tenant}"


def vaults_folder(tenant: str) -> str:
    """Returns the folder of a tenant's vaults."""
    return f"{tenant_folder(tenant)}/vaults"


def about(tenant: str, vault_id: str) -> str:
    """Returns the path of what is known of a vault."""
    return f"{_vault(tenant, vault_id)}/about"


def credentials_folder(tenant: str, vault_id: str) -> str:
    """Returns the folder of a vault's credentials."""
    return f"{_vault(tenant, vault_id)}/credentials"


def credential(tenant: str, vault_id: str, credential_id: str) -> str:
    """Returns the path of what may be told of a credential."""
    ids.check("credential_id", credential_id)
    return f"{credentials_folder(tenant, vault_id)}/{credential_id}"


def secrets_folder(tenant: str, vault_id: str) -> str:
    """Returns the folder of the secrets of a vault's credentials."""
    ids.check("vault_id", vault_id)
    return f"{tenant_folder(tenant)}/secrets/{vault_id}"


def secret(tenant: str, vault_id: str, credential_id: str) -> str:
    """Returns the path of a credential's secrets."""
    ids.check("credential_id", credential_id)
    return f"{secrets_folder(tenant, vault_id)}/{credential_id}"


def key(tenant: str, vault_id: str, name: str) -> str:
    """Returns the path of the note which credential of a vault has a key."""
    return f"{_vault(tenant, vault_id)}/keys/{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def request(tenant: str, request_id: str) -> str:
    """Returns the path of what a request made."""
    return f"{tenant_folder(tenant)}/requests/{hashlib.sha256(request_id.encode()).hexdigest()[:40]}"


def connections_folder(tenant: str) -> str:
    """Returns the folder of a tenant's accounts that are being connected."""
    return f"{tenant_folder(tenant)}/connections"


def connection(tenant: str, state: str) -> str:
    """Returns the path of an account that is being connected."""
    return f"{connections_folder(tenant)}/{hashlib.sha256(state.encode()).hexdigest()}"


def _vault(tenant: str, vault_id: str) -> str:
    ids.check("vault_id", vault_id)
    return f"{vaults_folder(tenant)}/{vault_id}"
