"""V19: redirects, and what else a server says of where to go next: never followed, never with a credential."""

from __future__ import annotations

import itertools

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from services.kit.channels import raised
from services.kit.origin import parse_allowed
from services.vault_proxy.outbound import Failure, Outbound, observe
from services.vault_proxy.secret import Secret
from tests.support.canary import hits
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, put_credential
from tests.vault_proxy.strange_server import OlderServer, Reply, Request, StrangeServer, strange_server
from tests.vault_proxy.test_outbound import bearer, post

REDIRECTS = [301, 302, 303, 307, 308]


@pytest.mark.parametrize("status", REDIRECTS)
async def test_no_redirect_of_a_server_is_followed(strange: StrangeServer, status: int) -> None:
    """Not to another origin, not within the same one; and where it leads is not told."""
    async with strange_server() as other:
        for location in (other.url, "/elsewhere", "https://user:pw@evil.example/"):
            strange.requests.clear()
            strange.answer = lambda request, to=location: Reply(status, b"", {"Location": to})  # type: ignore[misc]
            answer, exchange = await post(Outbound(parse_allowed("127.0.0.1")), strange.url)
            assert (answer.status_code, exchange.status) == (status, status)
            assert "location" not in answer.headers
            assert len(strange.requests) == 1
        assert other.requests == []


async def test_a_client_calls_its_own_origin_only(strange: StrangeServer) -> None:
    """Whatever asks it to, the credential goes nowhere else."""
    async with strange_server() as other:
        outbound = Outbound(parse_allowed("127.0.0.1"))
        exchange = observe()
        async with outbound.client(strange.url, bearer) as client:
            for url in (
                other.url,
                strange.url.replace("http:", "https:"),
                strange.url.replace("127.0.0.1", "localhost"),
            ):
                answer = await client.post(url, json={})
                assert (answer.status_code, exchange.failure) == (502, Failure.DENIED)
        assert other.requests == []
        assert strange.requests == []


@pytest.mark.parametrize("status", REDIRECTS)
async def test_no_redirect_of_an_endpoint_is_followed(status: int) -> None:
    """It is an answer, without the place that it names."""
    async with strange_server() as other, strange_server() as strange:
        strange.answer = lambda request: Reply(status, b"", {"Location": other.url})
        answer = await Outbound(parse_allowed("127.0.0.1")).send("POST", strange.url, body=Secret(b"x"))
        assert (answer.status, "location" in answer.headers) == (status, False)
        assert (len(strange.requests), other.requests) == (1, [])


SAID = {
    "elsewhere": "{other}",
    "in clear text": "http://public.example/",
    "inside": "http://169.254.169.254/latest/",
    "another scheme": "file:///etc/passwd",
    "with the credential": "https://{canary}@evil.example/?t={canary}",
    "itself": "{itself}",
    "no URL": "\\\\evil.example\\x",
}


@pytest.mark.vault
async def test_a_session_is_told_of_no_redirect(proxy: Proxy, openbao: OpenBaoServer, canary: str) -> None:
    """Whatever `Location` says: one request, a typed error that names the server alone, nothing sent elsewhere."""
    async with strange_server() as other, strange_server() as strange:
        vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
        for status, said in itertools.product((302, 307), SAID):
            strange.requests.clear()
            location = SAID[said].format(other=other.url, itself=strange.url, canary=canary)
            redirect = Reply(status, canary.encode(), {"Location": location})

            def answer(request: Request, redirect: Reply = redirect) -> Reply | None:
                return redirect if request.rpc.get("method") == "tools/call" else None

            strange.answer = answer
            grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await proxy.execute(grant, "strange__echo", {"text": "x"})
            problem = raised(caught.value)
            assert (problem.reason, problem.metadata) == ("SERVER_UNAVAILABLE", {"server": "strange"})
            assert "evil" not in repr(caught.value)
            assert hits(canary, repr(caught.value)) == []
            assert len(strange.calls()) == 1, said
            assert strange.heard(canary), "the control: the server itself had it"
        assert other.requests == []


@pytest.mark.vault
async def test_where_a_server_says_that_one_logs_in_is_not_asked(
    proxy: Proxy, openbao: OpenBaoServer, canary: str
) -> None:
    """401 with a protected resource's metadata: a session's call follows it nowhere, inside or outside."""
    async with strange_server() as other, strange_server() as strange:
        for place in (other.url, "http://127.0.0.1:8200/v1/sys/health", "http://169.254.169.254/"):
            told = {"WWW-Authenticate": f'Bearer resource_metadata="{place}"'}
            strange.answer = lambda request, told=told: Reply(401, b"", told)  # type: ignore[misc]
            vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
            grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await proxy.execute(grant, "strange__echo", {"text": "x"})
            assert raised(caught.value).reason == "CREDENTIAL_REVOKED"
        assert other.connections == 0
        assert {request.path for request in strange.requests} == {"/mcp"}


@pytest.mark.vault
@pytest.mark.parametrize("endpoint", ["OTHER", "https://user:pw@evil.example/", "//169.254.169.254/", "file:///x"])
async def test_an_endpoint_elsewhere_is_never_posted_to(
    proxy: Proxy, openbao: OpenBaoServer, canary: str, endpoint: str
) -> None:
    """The credential is its origin's: an endpoint of another one is refused."""
    async with strange_server() as other, strange_server(kind=OlderServer) as older:
        vault_id = put_credential(openbao, older.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="old", url=older.url), vault_ids=(vault_id,))
        assert (await proxy.execute(grant, "old__echo", {"text": "x"})).output == "you said x", "the control"
        older.end()
        grant = proxy.peer.grant(McpServer(name="old", url=older.url), vault_ids=(vault_id,))
        older.endpoint = other.url if endpoint == "OTHER" else endpoint
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await proxy.execute(grant, "old__echo", {"text": "x"})
        problem = raised(caught.value)
        assert problem.reason == "SERVER_ADDRESS_DENIED"
        assert other.requests == []
        assert older.heard(canary)
        assert "evil" not in str(problem)
