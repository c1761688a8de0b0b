"""V15: whoever has one session's right asks for what is another's: another tenant's, or another session's.

Nobody is told whether what they asked for exists, and the vault itself was not asked: its audit log has no read of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from handmesh.client import HandmeshError
from handmesh.session.v1.config_pb2 import McpServer, SessionConfig
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit import ids
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY
from tests.security.ground import Ground, Person, bearer
from tests.support.canary import mint

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.asyncio(loop_scope="session")]

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def reads(ground: Ground, path: str) -> list[str]:
    """Returns the paths of documents that OpenBao was asked to read, as its own audit log has them."""
    lines = (ground.data / "openbao" / "audit.log").read_text().splitlines()
    asked = [json.loads(line)["request"] for line in lines if '"operation":"read"' in line]
    return [each["path"] for each in asked if each["path"].startswith("handmesh/data/") and path in each["path"]]


async def told(person: Person, method: str, request: Any) -> tuple[str, str, str]:
    """Returns all that somebody is told who is refused: status, reason, words."""
    with pytest.raises(HandmeshError) as caught:
        await person.call(method, request)
    return caught.value.code or "", caught.value.reason, str(caught.value)


def neighbours(minted: str) -> Iterator[str]:
    """Yields ids like another one: the next and the one before, other cases, slashes."""
    last = ALPHABET.index(minted[-1])
    for step in (1, -1):
        yield minted[:-1] + ALPHABET[(last + step) % len(ALPHABET)]
    yield minted.upper()
    yield f"{minted}/"
    yield f"../default/{minted}"
    yield f"{minted}\u200b"


async def test_another_tenants_vaults_are_as_if_there_were_none(ground: Ground) -> None:
    """Every method of the API, with ids that exist and with ids that do not: the same words, but for the id; and
    nothing is changed."""
    origin = "https://mine.example"
    vault_id = await ground.me.new_vault()
    credential_id = await ground.me.add(vault_id, origin, bearer(mint()))
    secret = bearer("planted")

    def requests(vault: str, credential: str) -> dict[str, Any]:
        return {
            "GetVault": pb.GetVaultRequest(vault_id=vault),
            "ArchiveVault": pb.ArchiveVaultRequest(vault_id=vault),
            "ListCredentials": pb.ListCredentialsRequest(vault_id=vault),
            "AddCredential": pb.AddCredentialRequest(vault_id=vault, origin=origin, secret=secret),
            "UpdateCredential": pb.UpdateCredentialRequest(credential_id=credential, secret=secret),
            "ArchiveCredential": pb.ArchiveCredentialRequest(credential_id=credential),
        }

    nobody = requests(nobodys_vault := ids.mint("vault"), nobodys := ids.mint("cred"))
    for method, request in requests(vault_id, credential_id).items():
        theirs = await told(ground.neighbour, method, request)
        nobodys_ = await told(ground.neighbour, method, nobody[method])
        assert theirs[0] == "NOT_FOUND"
        assert [each.replace(vault_id, "V").replace(credential_id, "C") for each in theirs] == [
            each.replace(nobodys_vault, "V").replace(nobodys, "C") for each in nobodys_
        ], method
    assert vault_id not in str(await ground.neighbour.call("ListVaults", pb.ListVaultsRequest()))
    [credential] = (await ground.me.call("ListCredentials", pb.ListCredentialsRequest(vault_id=vault_id))).credentials
    assert (credential.credential_id, credential.version, credential.archived) == (credential_id, 1, False)
    assert reads(ground, f"secrets/{vault_id}") == []


async def test_a_session_of_another_tenant_gets_no_credential(ground: Ground) -> None:
    """It names my vault and my server: the server is called without a credential, the vault was not asked."""
    vault_id = await ground.me.new_vault()
    await ground.me.add(vault_id, ground.shop.origin, bearer(ground.shop.token))
    config = SessionConfig(mcp_servers=[McpServer(name="shop", url=ground.shop.url)], vault_ids=[vault_id])
    session = await ground.neighbour.client.create_session(config, "ask the shop")
    events = await ground.turn(session)
    assert [it.error_raised.reason for it in events if it.HasField("error_raised")] == ["CREDENTIAL_REVOKED"]
    assert [it for it in events if it.HasField("credential_used")] == []
    assert reads(ground, f"secrets/{vault_id}") == []
    mine = await ground.me.client.create_session(config, "ask the shop")
    events = await ground.turn(mine)
    assert {it.credential_used.vault_id for it in events if it.HasField("credential_used")} == {vault_id}, "the control"
    assert reads(ground, f"default/secrets/{vault_id}") != [], "the control: the vault's log has reads"


async def test_a_vault_that_is_not_attached_is_not_used(ground: Ground) -> None:
    """The same tenant's, and ids that look like an attached one's: no credential, no read of any of them."""
    vault_id = await ground.me.new_vault()
    await ground.me.add(vault_id, ground.shop.origin, bearer(ground.shop.token))
    shop = McpServer(name="shop", url=ground.shop.url)
    refused = 0
    for named in ([], *([each] for each in neighbours(vault_id))):
        try:
            config = SessionConfig(mcp_servers=[shop], vault_ids=named)
            session = await ground.me.client.create_session(config, "ask the shop")
        except HandmeshError as told_so:
            assert told_so.reason in ("CONFIG_INVALID", "ID_INVALID"), told_so
            refused += 1
            continue
        events = await ground.turn(session)
        assert [it.error_raised.reason for it in events if it.HasField("error_raised")] == ["CREDENTIAL_REVOKED"], named
        assert [it for it in events if it.HasField("credential_used")] == []
    assert refused < len(list(neighbours(vault_id))), "the control: some of them are ids"
    assert reads(ground, f"secrets/{vault_id}") == []


async def test_a_grant_opens_its_own_session_s_servers_only(ground: Ground) -> None:
    """With my session's grant, a server that only another session has, and one that nobody has, are refused in the same
    words; another tenant's client cannot use the grant at all."""
    mine = await ground.work("hello", mcp_servers=[McpServer(name="shop", url=ground.shop.url)])
    await ground.work("hello", mcp_servers=[McpServer(name="bank", url=ground.strange.url)])
    grant = ((GRANT_KEY, ground.grant_of(mine.id)),)

    async def refusal(stub: VaultProxyServiceStub, name: str) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Execute(pb.ExecuteRequest(name=name, input="{}"), metadata=grant)
        problem = raised(caught.value)
        return f"{problem.reason} {problem.message}".replace(name.partition("__")[0], "<server>")

    async with ground.as_service("harness", "vault_proxy") as channel:
        stub = VaultProxyServiceStub(channel)
        listed = await stub.ListTools(pb.ListToolsRequest(), metadata=grant)
        assert {tool.name.partition("__")[0] for tool in listed.tools} == {"shop"}, "the control: the grant is good"
        assert await refusal(stub, "bank__echo") == await refusal(stub, "nobody__echo")
        assert (await refusal(stub, "bank__echo")).startswith("SERVER_DENIED")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        stub = ground.neighbour.vaults
        await stub.ListTools(pb.ListToolsRequest(), metadata=(*ground.neighbour.link.metadata, *grant))
    assert raised(caught.value).reason == "GRANT_INVALID"
