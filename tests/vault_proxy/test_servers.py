"""Servers that are dead, forget, refuse, list nonsense, or may not be called; and whose credential is used for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1.config_pb2 import McpServer
from services.kit import ids
from services.kit.channels import raised
from services.kit.errors import Denied, Refused, ServiceError, Unavailable
from services.vault_proxy.mcp import connections
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, Shop, Start, put_credential, start_shop
from tests.vault_proxy.strange_server import Reply, error, strange_server

pytestmark = pytest.mark.vault

OK = tool_pb2.TOOL_OUTCOME_OK


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with, as the service raised it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return raised(caught.value)


async def test_a_dead_server_costs_only_its_own_tools(proxy: Proxy, shop: Shop, openbao: OpenBaoServer) -> None:
    """The other server's tools are there, and the problem says which one is missing and why."""
    vault_id = put_credential(openbao, shop.origin, shop.token)
    dead = McpServer(name="dead", url="http://127.0.0.1:9/mcp")
    grant = proxy.peer.grant(dead, McpServer(name="shop", url=shop.url), vault_ids=(vault_id,))
    listed = await proxy.tools(grant)
    assert "shop__weather" in [tool.name for tool in listed.tools]
    assert [(each.server, each.tool, each.reason) for each in listed.problems] == [("dead", "", "SERVER_UNAVAILABLE")]
    problem = await failure(proxy.execute(grant, "dead__x"))
    assert (type(problem), problem.reason, problem.metadata) == (
        Unavailable,
        "SERVER_UNAVAILABLE",
        {"server": "dead"},
    )


async def test_a_server_that_dies_and_comes_back_is_called_again(
    proxy: Proxy, tmp_path: Path, openbao: OpenBaoServer
) -> None:
    """Its end is an error of the call; its return needs nobody."""
    own = start_shop(tmp_path)
    address = own.origin.removeprefix("http://")
    vault_id = put_credential(openbao, own.origin, own.token)
    grant = proxy.peer.grant(McpServer(name="shop", url=own.url), vault_ids=(vault_id,))
    assert (await proxy.execute(grant, "shop__weather", {"city": "Rome"})).outcome == OK
    own.stop()
    problem = await failure(proxy.execute(grant, "shop__weather", {"city": "Rome"}, "toolu_again"))
    assert problem.reason == "SERVER_UNAVAILABLE"
    own = start_shop(tmp_path, address)
    assert (await proxy.execute(grant, "shop__weather", {"city": "Rome"}, "toolu_again")).outcome == OK
    own.stop()


async def test_a_server_without_its_credential_is_not_let_in(proxy: Proxy, shop: Shop, openbao: OpenBaoServer) -> None:
    """401 is CREDENTIAL_REVOKED, with the server's name: no vault, a wrong value, or one that was replaced."""
    wrong = put_credential(openbao, shop.origin, "wrong-" + shop.token)
    for vault_ids in ((), (wrong,)):
        grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=vault_ids)
        problem = await failure(proxy.execute(grant, "shop__weather", {"city": "Rome"}))
        assert (type(problem), problem.reason, problem.metadata) == (Refused, "CREDENTIAL_REVOKED", {"server": "shop"})
        assert shop.token not in str(problem)
        listed = await proxy.tools(grant)
        assert [each.reason for each in listed.problems] == ["CREDENTIAL_REVOKED"]
    uses = await proxy.peer.uses(proxy.peer.session_of(grant), 2)
    assert {event.credential_used.result for event in uses} == {"CREDENTIAL_REVOKED"}


async def test_the_first_vault_with_the_origin_counts(proxy: Proxy, shop: Shop, openbao: OpenBaoServer) -> None:
    """Vaults in the session's order; credentials of other origins, tenants, kinds and forms are passed over."""
    other = put_credential(openbao, "https://other.example", "other-credential")
    foreign = put_credential(openbao, shop.origin, "foreign-credential", tenant="other")
    good = put_credential(openbao, f"{shop.origin}/".upper().replace("HTTP", "http"), f"{shop.token}\n")
    late = put_credential(openbao, shop.origin, "late-credential")
    vault_ids = ("vault_missing", "../../other/vaults/x", ids.mint("vault"), foreign, other, good, late)
    grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=vault_ids)
    assert (await proxy.execute(grant, "shop__weather", {"city": "Rome"})).outcome == OK
    session_id = proxy.peer.session_of(grant)
    assert {event.credential_used.vault_id for event in await proxy.peer.uses(session_id, 2)} == {good}


async def test_a_replaced_credential_is_taken_up(proxy: Proxy, openbao: OpenBaoServer) -> None:
    """The server refuses the old one: it is looked up again, the call is made once more, and nobody notices."""
    valid = "first"

    def gate(request: Any) -> Any:
        return None if request.headers.get("authorization") == f"Bearer {valid}" else Reply(401, b"no")

    async with strange_server(answer=gate) as strange:
        origin = strange.url.removesuffix("/mcp")
        vault_id, credential_id = ids.mint("vault"), ids.mint("cred")
        openbao.operator.put_bearer(vault_id, credential_id, origin, "first", "", "default")
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        assert (await proxy.execute(grant, "strange__echo", {"text": "1"})).output == "you said 1"
        valid = "second"
        openbao.operator.put_bearer(vault_id, credential_id, origin, "second", "", "default")
        assert (await proxy.execute(grant, "strange__echo", {"text": "2"})).output == "you said 2"
        valid = "third"
        problem = await failure(proxy.execute(grant, "strange__echo", {"text": "3"}))
        assert problem.reason == "CREDENTIAL_REVOKED"


async def test_a_lost_session_is_made_anew(proxy: Proxy) -> None:
    """404 for a session that the server has forgotten: connect again and repeat; forgetting for ever is an error."""
    forget = 0

    def forgetful(request: Any) -> Any:
        nonlocal forget
        if request.rpc.get("method") == "tools/call" and forget:
            forget -= 1
            return error(request, -32001, "Session not found", 404)
        return None

    async with strange_server(answer=forgetful) as strange:
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url))
        await proxy.tools(grant)
        forget = 1
        assert (await proxy.execute(grant, "strange__echo", {"text": "1"})).output == "you said 1"
        assert sum(each.rpc.get("method") == "initialize" for each in strange.requests) == 2
        forget = 100
        problem = await failure(proxy.execute(grant, "strange__echo", {"text": "2"}))
        assert problem.reason == "SERVER_UNAVAILABLE"


async def test_what_a_server_refuses_in_its_protocol_is_the_tools_error(proxy: Proxy) -> None:
    """A JSON-RPC error is the tool's failure: the model may mend its call."""
    async with strange_server(call=lambda request: error(request, -32602, "text is too short")) as strange:
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url))
        answer = await proxy.execute(grant, "strange__echo", {"text": ""})
    assert answer.outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR
    assert answer.output == "the server answered with error -32602: text is too short"


async def test_one_wrong_tool_costs_only_itself(proxy: Proxy) -> None:
    """Two servers with the same tool, odd names, wrong schemas, five hundred tools: what can be called is offered."""
    tools: list[Any] = [{"name": f"tool.{number}", "inputSchema": {"type": "object"}} for number in range(500)]
    tools[7:7] = [{"name": "text", "inputSchema": {"type": "string"}}, "no tool", {"name": "naked"}, {"nothing": 1}]
    tools.append({"name": "wetter_für_" + "x" * 200, "inputSchema": {"anyOf": [{"type": "object"}]}})
    async with strange_server(tools=tools) as one, strange_server(tools=tools[-3:]) as two:
        grant = proxy.peer.grant(McpServer(name="one", url=one.url), McpServer(name="two", url=two.url))
        listed = await proxy.tools(grant)
        names = [tool.name for tool in listed.tools]
        assert (len(names), len(set(names))) == (504, 504)
        assert [name.partition("__")[0] for name in names] == ["one"] * 501 + ["two"] * 3
        assert {(each.server, each.tool) for each in listed.problems} == {
            ("one", "text"),
            ("one", "naked"),
            ("one", ""),
        }
        answer = await proxy.execute(grant, names[-1], {"text": "hi"})
        assert answer.output == "you said hi"
        assert two.calls()[0]["name"] == "wetter_für_" + "x" * 200


async def test_tools_are_asked_again_only_on_request(proxy: Proxy) -> None:
    """A list is kept for its session until `refresh`; another session asks for itself."""
    async with strange_server() as strange:
        server = McpServer(name="strange", url=strange.url)
        grant, other = proxy.peer.grant(server), proxy.peer.grant(server)

        def asked() -> int:
            return sum(each.rpc.get("method") == "tools/list" for each in strange.requests)

        await proxy.tools(grant)
        await proxy.tools(grant)
        assert asked() == 1
        strange.tools.append({"name": "more", "inputSchema": {"type": "object"}})
        assert len((await proxy.tools(grant)).tools) == 1
        assert len((await proxy.tools(grant, refresh=True)).tools) == 2
        assert asked() == 2
        await proxy.tools(other)
        assert asked() == 3
        strange.tools.append({"name": "new", "inputSchema": {"type": "object"}})
        assert (await proxy.execute(grant, "strange__new", {"text": "x"})).output == "you said x"


async def test_sessions_share_no_connection(proxy: Proxy) -> None:
    """Each session has connections and an MCP session of its own, and keeps them from call to call."""
    async with strange_server() as strange:
        server = McpServer(name="strange", url=strange.url)
        for session in "abc":
            grant = proxy.peer.grant(server)
            for _ in range(5):
                await proxy.execute(grant, "strange__echo", {"text": session})
        calls = [each for each in strange.requests if each.rpc.get("method") == "tools/call"]
        used = {
            session: {each.connection for each in calls if session in each.body.decode()[-12:]} for session in "abc"
        }
        assert sum(len(each) for each in used.values()) == len(set().union(*used.values()))
        assert sum(each.rpc.get("method") == "initialize" for each in strange.requests) == 3
        assert strange.connections <= 9  # and not one for each of the 27 requests


async def test_an_address_that_may_not_be_called_is_said(start: Start) -> None:
    """Loopback without the allow-list: listed as a problem, refused as a call."""
    async with strange_server() as strange, start(HANDMESH_OUTBOUND_ALLOW="127.0.0.1:1") as proxy:
        inside = McpServer(name="inside", url=strange.url.replace("http:", "https:"))
        odd = McpServer(name="odd", url="https://user@good.example/")
        grant = proxy.peer.grant(inside, odd)
        listed = await proxy.tools(grant)
        assert [(each.server, each.reason) for each in listed.problems] == [
            ("inside", "SERVER_ADDRESS_DENIED"),
            ("odd", "SERVER_ADDRESS_DENIED"),
        ]
        problem = await failure(proxy.execute(grant, "inside__echo"))
        assert (type(problem), problem.reason, problem.metadata) == (
            Denied,
            "SERVER_ADDRESS_DENIED",
            {"server": "inside"},
        )
        assert strange.connections == 0


async def test_an_idle_connection_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is told; the next call opens another."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.01)
    async with strange_server() as strange, start(HANDMESH_MCP_IDLE_SECONDS="1") as proxy:
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url))
        await proxy.execute(grant, "strange__echo", {"text": "1"})
        while not any(request.method == "DELETE" for request in strange.requests):
            await asyncio.sleep(0.01)
        assert (await proxy.execute(grant, "strange__echo", {"text": "2"})).output == "you said 2"


async def test_a_server_that_says_nothing_costs_its_time(start: Start) -> None:
    """Connecting has an end of its own, long before a call's."""
    async with (
        strange_server(
            answer=lambda request: Reply(200, b": wait\n\n", {"Content-Type": "text/event-stream"}, hold=True)
        ) as strange,
        start(HANDMESH_MCP_CONNECT_SECONDS="1") as proxy,
    ):
        grant = proxy.peer.grant(McpServer(name="slow", url=strange.url))
        assert [each.reason for each in (await proxy.tools(grant)).problems] == ["SERVER_UNAVAILABLE"]
