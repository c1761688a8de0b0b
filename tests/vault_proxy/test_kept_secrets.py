"""How long a secret is in the memory of vault_proxy, which holds it for calls and for nothing else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit import ids
from services.vault_proxy.mcp import connections
from services.vault_proxy.secret import Secret
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, Start, put_credential, vault_settings
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server
from tests.vault_proxy.test_servers import failure

pytestmark = pytest.mark.vault


def held(value: str) -> bool:
    """Says whether anything in this process holds a value as a secret."""
    gc.collect()
    return any(isinstance(each, Secret) and each.reveal() == value for each in gc.get_objects())


async def until(holds: Callable[[], bool]) -> None:
    """Waits."""
    while not holds():
        await asyncio.sleep(0.02)


@pytest.fixture
def value() -> str:
    """A credential of this test's own."""
    return ids.mint("kept")


@pytest.fixture
async def server(value: str) -> AsyncIterator[StrangeServer]:
    """A server that wants the credential, and notes which session each call came in."""

    def gate(request: Any) -> Any:
        return None if request.headers.get("authorization") == f"Bearer {value}" else Reply(401, b"no")

    async with strange_server(answer=gate) as strange:
        yield strange


@pytest.fixture
def grant_of(server: StrangeServer, openbao: OpenBaoServer, value: str) -> Callable[[Proxy], str]:
    """Makes a grant of a session that may use the credential."""
    vault_id = put_credential(openbao, server.url.removesuffix("/mcp"), value)
    return lambda proxy: proxy.peer.grant(McpServer(name="s", url=server.url), vault_ids=(vault_id,))


async def test_what_nobody_uses_is_dropped(
    start: Start,
    openbao: OpenBaoServer,
    server: StrangeServer,
    value: str,
    grant_of: Callable[[Proxy], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before its time is over an unused credential is out of the memory; the connection stays, and is used again."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    async with start(**vault_settings(openbao)) as proxy:
        grant = grant_of(proxy)
        await proxy.execute(grant, "s__echo", {"text": "1"})
        assert held(value)
        monkeypatch.setattr(connections, "CREDENTIAL_SECONDS", 0.1)
        await until(lambda: not held(value))
        assert (await proxy.execute(grant, "s__echo", {"text": "2"})).output == "you said 2"
        assert sum(each.rpc.get("method") == "initialize" for each in server.requests) == 1


async def test_the_end_of_the_session_drops_it(
    start: Start, openbao: OpenBaoServer, value: str, grant_of: Callable[[Proxy], str]
) -> None:
    """A session that has ended leaves nothing; another one that has the same credential goes on."""
    async with start(**vault_settings(openbao)) as proxy:
        grant = grant_of(proxy)
        await proxy.execute(grant, "s__echo", {"text": "1"})
        assert held(value)
        proxy.peer.revoke(grant)
        await until(lambda: not held(value))


async def test_an_update_drops_it(proxy: Proxy, server: StrangeServer, value: str) -> None:
    """Once `UpdateCredential` has returned, the replica that was asked holds the old value no more."""
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest(name="v"))).vault.vault_id
    bearer = pb.CredentialSecret(static_bearer=pb.StaticBearer(value=value))
    added = await proxy.client.AddCredential(
        pb.AddCredentialRequest(vault_id=vault, origin=server.url.removesuffix("/mcp"), secret=bearer)
    )
    grant = proxy.peer.grant(McpServer(name="s", url=server.url), vault_ids=(vault,))
    await proxy.execute(grant, "s__echo", {"text": "1"})
    assert held(value)
    newer = pb.CredentialSecret(static_bearer=pb.StaticBearer(value="newer"))
    request = pb.UpdateCredentialRequest(
        credential_id=added.credential.credential_id, secret=newer, expected_version=added.credential.version
    )
    await proxy.client.UpdateCredential(request)
    assert not held(value)


async def test_a_refusal_drops_it(proxy: Proxy, server: StrangeServer, openbao: OpenBaoServer) -> None:
    """A credential that the server does not take is not kept for the next call: that one looks it up again."""
    wrong = ids.mint("wrong")
    vault_id = put_credential(openbao, server.url.removesuffix("/mcp"), wrong)
    grant = proxy.peer.grant(McpServer(name="s", url=server.url), vault_ids=(vault_id,))
    assert (await failure(proxy.execute(grant, "s__echo", {"text": "1"}))).reason == "CREDENTIAL_REVOKED"
    await until(lambda: not held(wrong))


async def test_a_lost_call_keeps_its_error_and_no_secret(
    proxy: Proxy, server: StrangeServer, value: str, grant_of: Callable[[Proxy], str]
) -> None:
    """The error of a call that may have run is told for minutes; it holds none of the frames that it came through."""
    grant = grant_of(proxy)
    server.call = lambda request: Reply(200, b"{", {"Content-Type": "application/json"}, hang_up=True)
    for _ in range(2):
        lost = await failure(proxy.execute(grant, "s__echo", {"text": "1"}, execution_id="toolu_lost"))
        assert lost.reason == "SERVER_UNAVAILABLE"
    assert len(server.calls()) == 1
    proxy.peer.revoke(grant)
    await until(lambda: not held(value) and not held(grant))
