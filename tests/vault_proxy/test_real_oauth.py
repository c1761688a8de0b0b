"""A real authorization server and a real MCP server that asks it: connected, renewed, revoked."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import pytest

from handmesh.launcher.ports import free_ports
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.errors import Refused
from tests.support.openbao import OpenBaoServer
from tests.support.peers import peer
from tests.support.requirements import PEERS
from tests.vault_proxy import bao as operator
from tests.vault_proxy.browser import agree
from tests.vault_proxy.conftest import Proxy, Start, vault_settings
from tests.vault_proxy.connecting import failure

pytestmark = [pytest.mark.peers, pytest.mark.vault]

HERE = Path(__file__).parent / "peers"
REDIRECT = "http://127.0.0.1:7777/callback"
SECRET = "of-the-mcp-server"
PAST = "2026-01-01T00:00:00Z"


@dataclass
class Peers:
    """The two servers: where they are, and what the authorization server has said."""

    issuer: str
    url: str
    said: Path

    def heard(self) -> list[dict[str, Any]]:
        """Returns the grants that were given and refused."""
        return [json.loads(line) for line in self.said.read_text().splitlines() if line.startswith("{")]

    def since(self, before: int) -> list[dict[str, Any]]:
        """Returns those after the first so many."""
        return self.heard()[before:]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """Runs both."""
    directory = tmp_path_factory.mktemp("oauth-peers")
    ports = free_ports(2)
    issuer, url = f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}/mcp"
    script = str(HERE / "authorization_server.mjs")
    node = [str(PEERS / "bin" / "node"), script, str(PEERS), str(ports[0]), url, SECRET]
    python = [str(PEERS / "bin" / "python"), str(HERE / "mcp_server.py"), str(ports[1]), issuer, SECRET]
    with peer(ports[0], node, directory) as said, peer(ports[1], python, directory):
        yield Peers(issuer, url, said)


@pytest.fixture
async def proxy(start: Start, openbao: OpenBaoServer) -> AsyncIterator[Proxy]:
    """A vault_proxy on the run's OpenBao."""
    async with start(**vault_settings(openbao)) as started:
        yield started


async def connect(proxy: Proxy, peers: Peers, vault_id: str = "") -> pb.Credential:
    """Connects somebody's account, by the server's own pages."""
    if not vault_id:
        vault_id = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault.vault_id
    asked = pb.StartConnectionRequest(vault_id=vault_id, url=peers.url, redirect_uri=REDIRECT)
    started = await proxy.client.StartConnection(asked)
    typed = {"login": "ada", "password": "anything"}
    back = await asyncio.to_thread(agree, started.authorization_url, REDIRECT, typed)
    finish = pb.FinishConnectionRequest(state=back["state"], code=back["code"], issuer=back["iss"])
    return (await proxy.client.FinishConnection(finish)).credential


async def shout(proxy: Proxy, peers: Peers, credential: pb.Credential, text: str = "hi") -> str:
    """Calls the MCP server's tool in a session of its own."""
    grant = proxy.peer.grant(McpServer(name="notes", url=peers.url), vault_ids=(credential.vault_id,))
    return (await proxy.execute(grant, "notes__shout", {"text": text})).output


def path_of(credential: pb.Credential) -> str:
    return f"handmesh/data/tenants/default/secrets/{credential.vault_id}/{credential.credential_id}"


def secrets_of(bao: OpenBaoServer, credential: pb.Credential) -> dict[str, str]:
    """Reads what is kept, as an operator who may."""
    found: dict[str, str] = operator.call(bao, "GET", path_of(credential))["data"]["data"]
    return found


def outdate(bao: OpenBaoServer, credential: pb.Credential, **changes: str) -> dict[str, str]:
    """Writes that an access has ended, and nothing of when it was renewed; returns what was there before."""
    before = secrets_of(bao, credential)
    kept = {name: value for name, value in before.items() if name != "renewed"}
    operator.call(bao, "POST", path_of(credential), {"data": {**kept, "expire_time": PAST, **changes}})
    return before


def revoke(peers: Peers, secrets: dict[str, str]) -> None:
    """Takes the account's grant back at the authorization server, as its client may (RFC 7009)."""
    pair = f"{quote_plus(secrets['client_id'])}:{quote_plus(secrets['client_secret'])}"
    headers = {
        "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
    }
    connection = http.client.HTTPConnection(urlsplit(peers.issuer).netloc, timeout=20)
    connection.request("POST", "/token/revocation", urlencode({"token": secrets["refresh"]}), headers)
    assert connection.getresponse().status == 200
    connection.close()


async def test_an_account_is_connected_and_used(proxy: Proxy, peers: Peers, openbao: OpenBaoServer) -> None:
    """Discovered, registered, logged in, agreed; the access opens the server, and one that is made up does not."""
    credential = await connect(proxy, peers)
    facts = credential.mcp_oauth
    assert (facts.resource, facts.renewal_endpoint, facts.client_auth) == (
        peers.url,
        f"{peers.issuer}/token",
        "client_secret_basic",
    )
    assert facts.scope == "read"  # what the access is for; offline_access was asked for, too
    assert await shout(proxy, peers, credential, "quiet") == "QUIET"
    fixed = pb.CredentialSecret(static_bearer=pb.StaticBearer(value="made-up"))
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
    origin = peers.url.removesuffix("/mcp")
    request = pb.AddCredentialRequest(vault_id=vault.vault_id, origin=origin, secret=fixed)
    wrong = (await proxy.client.AddCredential(request)).credential
    problem = await failure(shout(proxy, peers, wrong))
    assert (type(problem), problem.reason) == (Refused, "CREDENTIAL_REVOKED")


async def test_renewed_once_by_many_sessions_on_two_replicas(
    start: Start, peers: Peers, openbao: OpenBaoServer
) -> None:
    """The server rotates and detects reuse: one request for all, and what it gave is what is kept."""
    one, two = start(**vault_settings(openbao)), start(**vault_settings(openbao))
    async with one as first, two as second:
        credential = await connect(first, peers)
        before = outdate(openbao, credential)
        count = len(peers.heard())
        calls = [shout(proxy, peers, credential, f"n{at}") for proxy in (first, second) for at in range(10)]
        assert await asyncio.gather(*calls) == [f"N{at}" for at in range(10)] * 2
        assert peers.since(count) == [{"granted": "refresh_token"}]
        after = secrets_of(openbao, credential)
        assert after["access"] != before["access"] and after["refresh"] != before["refresh"]
        outdate(openbao, credential)
        assert await shout(second, peers, credential) == "HI"  # the control: the new one is good


async def test_a_refresh_token_that_was_used_before(proxy: Proxy, peers: Peers, openbao: OpenBaoServer) -> None:
    """Reuse is taken for a theft: the server ends the whole grant, and the account must be connected again."""
    credential = await connect(proxy, peers)
    stolen = outdate(openbao, credential)["refresh"]
    assert await shout(proxy, peers, credential) == "HI"
    outdate(openbao, credential, refresh=stolen)
    count = len(peers.heard())
    for _ in range(3):
        problem = await failure(shout(proxy, peers, credential))
        assert (type(problem), problem.reason) == (Refused, "CREDENTIAL_REVOKED")
    heard = peers.since(count)
    assert {"revoked": True} in heard
    assert [each for each in heard if "revoked" not in each] == [{"refused": "refresh_token", "error": "invalid_grant"}]
    again = await connect(proxy, peers, credential.vault_id)
    assert again.credential_id == credential.credential_id
    assert await shout(proxy, peers, again) == "HI"


async def test_a_grant_that_is_taken_back(proxy: Proxy, peers: Peers, openbao: OpenBaoServer) -> None:
    """Under a running session: its next call is refused by name, the list says so, and connecting again mends it."""
    credential = await connect(proxy, peers)
    grant = proxy.peer.grant(McpServer(name="notes", url=peers.url), vault_ids=(credential.vault_id,))
    assert (await proxy.execute(grant, "notes__shout", {"text": "a"})).output == "A"
    await asyncio.to_thread(revoke, peers, secrets_of(openbao, credential))
    problem = await failure(proxy.execute(grant, "notes__shout", {"text": "b"}))
    assert (type(problem), problem.reason) == (Refused, "CREDENTIAL_REVOKED")
    listed = await proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=credential.vault_id))
    assert [each.revoked for each in listed.credentials] == [True]
    mended = await connect(proxy, peers, credential.vault_id)
    assert (mended.credential_id, mended.revoked) == (credential.credential_id, False)
    assert (await proxy.execute(grant, "notes__shout", {"text": "c"})).output == "C"


async def test_a_server_of_another_resource(proxy: Proxy, peers: Peers) -> None:
    """The authorization server gives nothing for a resource that is not its own: told by name."""
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
    asked = pb.StartConnectionRequest(vault_id=vault.vault_id, url=peers.url, redirect_uri=REDIRECT)
    started = await proxy.client.StartConnection(asked)
    other = started.authorization_url.replace(quote_plus(peers.url), quote_plus("http://127.0.0.1:1/mcp"))
    assert other != started.authorization_url
    back = await asyncio.to_thread(agree, other, REDIRECT, {"login": "ada", "password": "x"})
    assert (back["error"], back["iss"]) == ("invalid_target", peers.issuer)
    finish = pb.FinishConnectionRequest(state=back["state"], issuer=back["iss"], error=back["error"])
    problem = await failure(proxy.client.FinishConnection(finish))
    assert (problem.reason, "invalid_target" in problem.message) == ("OAUTH_FAILED", True)
