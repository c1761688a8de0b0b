"""V18: addresses of MCP servers, git hosts and OAuth endpoints that lead inside: refused before a socket is opened.

The table is `tests.kit.test_origin`: more than thirty spellings of a URL, and thirty of an address that a name may
resolve to.
"""

from __future__ import annotations

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.channels import raised
from services.kit.errors import Invalid
from services.kit.origin import Allowed, UrlRefused, parse_allowed
from services.sandbox.seeds_rules import Repository, Sources, check_repository
from services.vault_proxy.outbound import Failure, NoAnswer, Outbound
from services.vault_proxy.secret import Secret
from tests.kit.test_origin import REFUSED_ADDRESSES, REFUSED_URLS
from tests.support.heard import SOCKETS
from tests.vault_proxy.conftest import Start
from tests.vault_proxy.strange_server import StrangeServer, strange_server
from tests.vault_proxy.test_outbound import KEY, post, resolving

LONG_AGO = "2026-01-01T00:00:00Z"


def test_the_table_is_as_long_as_it_says() -> None:
    """Thirty spellings at least, of both."""
    assert len(set(REFUSED_URLS)) >= 30
    assert len(set(REFUSED_ADDRESSES)) >= 30


@pytest.mark.parametrize("url", REFUSED_URLS)
async def test_no_client_is_made_for_a_refused_url(url: str) -> None:
    """No name is looked up and nothing is connected to: for an MCP server, for an endpoint of OAuth, for git."""
    with SOCKETS.watched() as seen:
        with pytest.raises(UrlRefused):
            await post(Outbound(Allowed()), url)
        with pytest.raises(UrlRefused):
            await Outbound(Allowed()).send("GET", url)
        with pytest.raises(Invalid) as refused:
            check_repository(Repository("repo", url), Sources())
    assert seen == []
    assert not url.partition("://")[2] or url not in str(refused.value), "a URL may hold somebody's password"


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
async def test_a_name_that_leads_inside_opens_no_socket(address: str) -> None:
    """Alone, and hidden among public addresses: all must pass."""
    for answer in ([address], ["93.184.216.34", address]):
        outbound = Outbound(Allowed(), resolve=resolving(answer))
        with SOCKETS.watched() as seen:
            told, exchange = await post(outbound, "https://good.example/mcp")
            with pytest.raises(NoAnswer) as caught:
                await outbound.send("POST", "https://good.example/oauth", authorization=Secret(f"Basic {KEY}"))
        assert (told.status_code, exchange.failure, exchange.sent) == (502, Failure.DENIED, False)
        assert (caught.value.failure, caught.value.sent) == (Failure.DENIED, False)
        assert seen == []


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost.localdomain", "ip6-localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1"],
)
async def test_loopback_by_name_or_number_is_not_connected_to(host: str) -> None:
    """The system's resolver may be asked; nothing is connected to, however the listener is spelled."""
    with SOCKETS.watched() as seen:
        _, exchange = await post(Outbound(Allowed()), f"https://{host}/mcp")
    assert exchange.failure in (Failure.DENIED, Failure.UNREACHABLE)
    assert exchange.failure is Failure.DENIED or "localdomain" in host or "ip6" in host  # names not every system has
    assert [event for event, _ in seen if event == "socket.connect"] == []


async def test_the_audit_sees_a_connection(strange: StrangeServer) -> None:
    """The control: allowed calls of both kinds are connected to, and seen."""
    outbound = Outbound(parse_allowed("127.0.0.1"))
    with SOCKETS.watched() as seen:
        answer, exchange = await post(outbound, strange.url)
        assert (await outbound.send("POST", strange.url)).status == 200
    assert (answer.status_code, exchange.status, exchange.failure) == (200, 200, None)
    assert [event for event, _ in seen if event == "socket.connect"] == ["socket.connect"] * 2


async def test_a_session_that_names_such_a_server_is_told_so(start: Start, strange: StrangeServer) -> None:
    """Through the service: each spelling is a problem of that server alone, and no socket is opened for any of them."""
    async with start(HANDMESH_OUTBOUND_ALLOW=strange.url.removeprefix("http://").removesuffix("/mcp")) as proxy:
        good = McpServer(name="good", url=strange.url)
        await proxy.tools(proxy.peer.grant(good))  # what is loaded on first use is loaded
        urls = [url for url in REFUSED_URLS if url != "https://good.example\r\nX: y/"]
        servers = [McpServer(name=f"s{at}", url=url) for at, url in enumerate(urls)]
        grant = proxy.peer.grant(*servers)
        with SOCKETS.watched() as seen:
            listed = await proxy.tools(grant)
            for at in range(len(urls)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await proxy.execute(grant, f"s{at}__echo", {"text": "x"})
                assert raised(caught.value).reason == "SERVER_ADDRESS_DENIED", urls[at]
        assert [event for event, _ in seen if event != "socket.getaddrinfo"] == []
        assert {(each.server, each.reason) for each in listed.problems} == {
            (server.name, "SERVER_ADDRESS_DENIED") for server in servers
        }
        before = len(strange.requests)
        await proxy.tools(proxy.peer.grant(good))
        assert len(strange.requests) > before, "the control: an allowed one is called"


def oauth(endpoint: str) -> pb.CredentialSecret:
    """An account's access that has run out, and where it is to be renewed."""
    fields = pb.McpOauth(access="old", refresh="refresh", client_id="c", renewal_endpoint=endpoint)
    fields.expire_time.FromJsonString(LONG_AGO)
    return pb.CredentialSecret(mcp_oauth=fields)


async def test_an_access_is_renewed_at_no_such_place(start: Start, strange: StrangeServer) -> None:
    """A client that stores an endpoint inside is refused at once, or, when it is only its scheme, port or name that
    is not let out, when the access would be renewed there."""
    allowed = strange.url.removeprefix("http://").removesuffix("/mcp")
    asked: list[str] = []
    async with start(HANDMESH_OUTBOUND_ALLOW=allowed) as proxy, strange_server() as inside:
        for url in [*REFUSED_URLS, inside.url, inside.url.replace("http:", "https:"), "https://localhost/token"]:
            vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
            origin = strange.url.removesuffix("/mcp")
            request = pb.AddCredentialRequest(vault_id=vault.vault_id, origin=origin)
            try:
                request.secret.CopyFrom(oauth(url))
                await proxy.client.AddCredential(request)
            except grpc.aio.AioRpcError as refused:
                assert raised(refused).reason == "ARGUMENT_INVALID"
                continue
            asked.append(url)
            grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault.vault_id,))
            with SOCKETS.watched() as seen, pytest.raises(grpc.aio.AioRpcError) as caught:
                await proxy.execute(grant, "strange__echo", {"text": "x"})
            assert raised(caught.value).reason == "CREDENTIAL_REFRESH_FAILED"
            assert [event for event, _ in seen if event == "socket.connect"] == [], url
        assert {"http://good.example/", "https://good.example:22/", inside.url} <= set(asked)
        assert inside.connections == 0
        vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
        await proxy.client.AddCredential(
            pb.AddCredentialRequest(vault_id=vault.vault_id, origin=origin, secret=oauth(strange.url))
        )
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault.vault_id,))
        with pytest.raises(grpc.aio.AioRpcError):
            await proxy.execute(grant, "strange__echo", {"text": "x"})
        assert any(b"grant_type" in request.body for request in strange.requests), "the control"
