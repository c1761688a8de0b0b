"""V23: the API of credentials is write-only: no method returns a value, its length or its hash, in no order of calls.

That no response of any service has a field for a secret is `tests/contracts/test_secrets.py`; here every method is
called, with a canary in every field that takes one, and all that ever comes back is searched.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit import ids
from services.kit.channels import raised
from tests.security.reflecting import everything_in
from tests.support.canary import hits, mint
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Start, vault_settings

ORIGIN = "https://mcp.example"
SERVICE = pb.DESCRIPTOR.services_by_name["VaultProxyService"]
KEY = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"


@pytest.fixture
async def proxy(start: Start, store_settings: dict[str, str]) -> AsyncIterator[Proxy]:
    """A vault_proxy whose vaults can be changed, on each store."""
    async with start(**store_settings) as started:
        yield started


def secrets_of(canary: str, key: str) -> Iterator[tuple[str, pb.CredentialSecret]]:
    """Yields every kind of credential with its origin, the canary in every field that is a secret."""
    bearer = pb.StaticBearer(value=canary)
    yield ORIGIN, pb.CredentialSecret(static_bearer=bearer)
    account = pb.McpOauth(access=canary, refresh=canary, client_id="c", client_auth="client_secret_post")
    account.client_secret, account.renewal_endpoint = canary, "https://as.example/token"
    yield "https://oauth.example", pb.CredentialSecret(mcp_oauth=account)
    variable = pb.EnvironmentVariable(variable="API_KEY", value=canary, allowed_hosts=["a.example"], in_headers=True)
    yield "", pb.CredentialSecret(environment_variable=variable)
    yield "https://git.example", pb.CredentialSecret(git=pb.GitAccess(value=canary))
    app = pb.GitAccess(app_id="1", installation_id="2", private_key=KEY.format(key))
    yield "https://app.example", pb.CredentialSecret(git=app)


class Caller:
    """Calls methods and keeps all that comes back, answers and refusals."""

    def __init__(self, stub: VaultProxyServiceStub) -> None:
        self._stub = stub
        self.seen: list[str] = []

    async def __call__(self, method: str, request: Any) -> Any:
        """Returns the answer, or the reason of the refusal."""
        try:
            answer = await getattr(self._stub, method)(request)
        except grpc.aio.AioRpcError as refused:
            self.seen.append(everything_in(refused))
            return raised(refused).reason
        self.seen.append(repr(answer) + repr(answer.SerializeToString()))
        return answer


def fingerprints(canary: str) -> list[str]:
    """Returns how hashes of a secret begin, by which somebody could tell it."""
    data = canary.encode()
    return [hashlib.new(name, data).hexdigest()[:12] for name in ("md5", "sha1", "sha256", "sha512", "blake2b")]


async def test_nothing_comes_back(proxy: Proxy, canary: str) -> None:
    """Created, listed, replaced with nothing, replaced, added twice, archived, and again after that: each kind."""
    call, key, newer = Caller(proxy.client), base64.b64encode(os.urandom(36)).decode(), mint("newer")
    vault_id = (await call("CreateVault", pb.CreateVaultRequest(name="v", request_id="r"))).vault.vault_id
    added = []
    for origin, secret in secrets_of(canary, key):
        request = pb.AddCredentialRequest(vault_id=vault_id, name="n", origin=origin, secret=secret)
        answer = await call("AddCredential", request)
        assert not isinstance(answer, str), answer
        added.append((answer.credential, secret))
        if origin:
            assert await call("AddCredential", request) == "CREDENTIAL_EXISTS"
    for credential, secret in added:
        empty = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=pb.CredentialSecret())
        assert isinstance(await call("UpdateCredential", empty), str)
        again = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=secret)
        assert (await call("UpdateCredential", again)).credential.version == 2
        for wrong in (
            credential.credential_id.upper(),
            credential.credential_id + "/",
            "../" + credential.credential_id,
        ):
            assert isinstance(await call("ArchiveCredential", pb.ArchiveCredentialRequest(credential_id=wrong)), str)
    bearer = pb.CredentialSecret(static_bearer=pb.StaticBearer(value=newer))
    replaced = pb.UpdateCredentialRequest(credential_id=added[0][0].credential_id, secret=bearer, expected_version=9)
    assert await call("UpdateCredential", replaced) == "VERSION_CONFLICT"
    for credential, _ in added:
        await call("ArchiveCredential", pb.ArchiveCredentialRequest(credential_id=credential.credential_id))
        gone = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=bearer)
        assert await call("UpdateCredential", gone) == "CREDENTIAL_NOT_FOUND"
    listing = pb.ListCredentialsRequest(vault_id=vault_id, include_archived=True)
    assert len((await call("ListCredentials", listing)).credentials) == len(added)
    await call("GetVault", pb.GetVaultRequest(vault_id=vault_id))
    await call("ListVaults", pb.ListVaultsRequest())
    await call("ArchiveVault", pb.ArchiveVaultRequest(vault_id=vault_id))
    await call("ListCredentials", listing)
    text = "\n".join(call.seen)
    assert [secret for secret in (canary, newer, key) if hits(secret, text)] == []
    assert [each for secret in (canary, newer) for each in fingerprints(secret) if each in text] == []
    assert hits(vault_id, text), "the control: what came back was seen"


async def test_a_value_s_length_shows_nowhere(proxy: Proxy) -> None:
    """Two credentials that differ in their values' lengths alone look alike."""
    call = Caller(proxy.client)
    sizes = set()
    for value in ("short", "x" * 700):
        vault_id = (await call("CreateVault", pb.CreateVaultRequest(name="v"))).vault.vault_id
        secret = pb.CredentialSecret(static_bearer=pb.StaticBearer(value=value))
        request = pb.AddCredentialRequest(vault_id=vault_id, name="n", origin=ORIGIN, secret=secret)
        credential = (await call("AddCredential", request)).credential
        credential.ClearField("create_time")
        credential.ClearField("update_time")
        sizes.add(credential.ByteSize())
    assert len(sizes) == 1


def test_the_walk_covers_every_method() -> None:
    """A method of the API that the probe above does not call has to be added to it, or be one of those named here."""
    walked = {"CreateVault", "GetVault", "ListVaults", "ArchiveVault", "AddCredential", "UpdateCredential"}
    walked |= {"ListCredentials", "ArchiveCredential"}
    by_grant = {
        "ListTools",
        "Execute",
        "WatchExecution",
        "CancelExecution",
        "PrepareDoors",
        "OpenDoor",
    }  # V14, V17, V24
    by_flow = {"ValidateCredential", "StartConnection", "FinishConnection"}  # V21
    assert {method.name for method in SERVICE.methods} == walked | by_grant | by_flow


@pytest.mark.vault
async def test_archiving_leaves_nothing_in_the_vault(start: Start, openbao: OpenBaoServer, canary: str) -> None:
    """Purged, not marked: no version of any secret is readable, with root's token neither. The control: it was."""
    async with start(**vault_settings(openbao)) as proxy:
        call = Caller(proxy.client)
        vault_id = (await call("CreateVault", pb.CreateVaultRequest(name="v"))).vault.vault_id
        kept = []
        for origin, secret in secrets_of(canary, "QUJD" * 12):
            request = pb.AddCredentialRequest(vault_id=vault_id, name="n", origin=origin, secret=secret)
            credential = (await call("AddCredential", request)).credential
            update = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=secret)
            await call("UpdateCredential", update)
            kept.append(credential.credential_id)

        async def readable() -> list[tuple[str, int]]:
            found = []
            for credential_id in kept:
                for version in (1, 2):
                    path = f"handmesh/data/tenants/default/secrets/{vault_id}/{credential_id}?version={version}"
                    answer = await asyncio.to_thread(operator.call, openbao, "GET", path)
                    if (answer.get("data") or {}).get("data"):
                        found.append((credential_id, version))
            return found

        assert {version for _, version in await readable()} == {2}, "the control: the newest one"
        for credential_id in kept[:2]:
            await call("ArchiveCredential", pb.ArchiveCredentialRequest(credential_id=credential_id))
        await call("ArchiveVault", pb.ArchiveVaultRequest(vault_id=vault_id))
        assert await readable() == []


async def test_ids_are_checked_before_anything(proxy: Proxy) -> None:
    """Upper case, paths, patterns, bytes: refused by their form, whatever they would have found."""
    call = Caller(proxy.client)
    credential_id = ids.mint("cred")
    for bad in (
        "",
        "*",
        "+",
        credential_id.upper(),
        f"../{credential_id}",
        f"{credential_id}/",
        f"{credential_id}\x00",
    ):
        assert await call("ArchiveCredential", pb.ArchiveCredentialRequest(credential_id=bad)) == "ID_INVALID", bad
    good = pb.ArchiveCredentialRequest(credential_id=credential_id)
    assert await call("ArchiveCredential", good) == "CREDENTIAL_NOT_FOUND", "the control"
