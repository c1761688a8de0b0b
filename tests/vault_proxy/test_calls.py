"""Listing and calling tools, through real OpenBao and real MCP servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import tool_pb2
from handmesh.sandbox.v1.tool_pb2 import ToolResult
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.session.v1.event_pb2 import CredentialUsed
from services.kit import ids
from services.kit.channels import raised
from services.kit.errors import Denied, Invalid, Refused, ServiceError, Unavailable
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, Shop, Start, put_credential, start_shop, vault_settings
from tests.vault_proxy.strange_server import Reply, error, strange_server

pytestmark = pytest.mark.vault

OK = tool_pb2.TOOL_OUTCOME_OK


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with, as the service raised it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return raised(caught.value)


async def test_a_tool_is_listed_and_called(proxy: Proxy, shop: Shop, shop_grant: str) -> None:
    """The whole way: grant, vault, MCP server with a token, answer."""
    listed = await proxy.tools(shop_grant)
    assert list(listed.problems) == []
    tools = {tool.name: tool for tool in listed.tools}
    order = tools["shop__lookup_order"]
    assert (order.description, order.idempotent, order.read_only) == (
        "Tells what is known of an order, such as 7.",
        True,
        True,
    )
    assert json.loads(order.input_schema_json)["required"] == ["order_id"]
    assert not tools["shop__refund_order"].idempotent
    answer = await proxy.execute(shop_grant, "shop__lookup_order", {"order_id": "7"}, "toolu_listed")
    assert answer == ToolResult(
        output="Order 7: two blue kettles, 58.00 EUR, sent on 3 March, arrives on 7 March.", outcome=OK
    )
    assert {"order_id": "7"} in shop.calls("lookup_order")


async def test_a_root_combinator_is_mended_and_the_tool_works(proxy: Proxy, shop_grant: str) -> None:
    """The model's API takes the mended schema, the server takes the call."""
    [find] = [tool for tool in (await proxy.tools(shop_grant)).tools if tool.name == "shop__find_customer"]
    schema = json.loads(find.input_schema_json)
    assert schema["type"] == "object"
    assert set(schema["properties"]) == {"email", "customer_id"}
    assert "anyOf" not in schema
    answer = await proxy.execute(shop_grant, "shop__find_customer", {"email": "ada@shop.example"})
    assert answer.output == "Customer c-1: ada@shop.example"


async def test_a_failing_tool_is_a_value(proxy: Proxy, shop_grant: str) -> None:
    """The call is OK, its outcome is not."""
    answer = await proxy.execute(shop_grant, "shop__fail")
    assert answer.outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR
    assert "The warehouse is closed." in answer.output
    wrong = await proxy.execute(shop_grant, "shop__lookup_order", {"order": 7})
    assert wrong.outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR


async def test_images_and_objects_become_blocks(proxy: Proxy, shop_grant: str) -> None:
    """In the form of the model's API; an object that is said as text already is not said again."""
    picture = await proxy.execute(shop_grant, "shop__picture")
    assert picture.output == "The shop, from far away:"
    assert [block["type"] for block in json.loads(picture.content_json)] == ["text", "image"]
    stock = await proxy.execute(shop_grant, "shop__stock")
    assert json.loads(stock.output) == {"kettle": 12, "teapot": 0, "cup": 60}
    assert stock.content_json == ""


async def test_a_credential_that_a_server_repeats_is_removed(
    proxy: Proxy, shop: Shop, shop_grant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model never reads it; the log says which server to distrust, without the value."""
    caplog.set_level("DEBUG")
    answer = await proxy.execute(shop_grant, "shop__who_am_i")
    assert answer.output == "You sent: Bearer [credential removed]"
    assert shop.token not in str(answer)
    [warning] = [each for each in caplog.records if each.getMessage() == "a server said its credential"]
    assert warning.levelname == "WARNING"
    assert warning.keys["server"] == "shop"


async def test_each_use_of_a_credential_is_an_event(proxy: Proxy, shop_grant: str) -> None:
    """Who used which for what and how it ended; told behind the answer, and told again until it is taken."""
    proxy.peer.refuse_events = 2
    await proxy.execute(shop_grant, "shop__weather", {"city": "Oslo"}, "toolu_used")
    session_id = proxy.peer.session_of(shop_grant)
    uses = await proxy.peer.uses(session_id, 2)
    listed, called = uses
    assert all(event.ignorable for event in uses)
    assert called.event_id == "credential-toolu_used"
    vault_id = proxy.peer.grants[shop_grant].vault_ids[0]
    credential_id = called.credential_used.credential_id
    assert called.credential_used == CredentialUsed(
        credential_id=credential_id, vault_id=vault_id, server="shop", execution_id="toolu_used", result="ok"
    )
    assert listed.credential_used == CredentialUsed(
        credential_id=credential_id, vault_id=vault_id, server="shop", result="ok"
    )


async def test_uses_are_told_before_the_service_ends(start: Start, openbao: OpenBaoServer, shop: Shop) -> None:
    """What waits to be told is told at the end."""
    vault_id = put_credential(openbao, shop.origin, shop.token)
    async with start(**vault_settings(openbao)) as proxy:
        grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault_id,))
        for number in range(20):
            await proxy.execute(grant, "shop__weather", {"city": "Rome"}, f"toolu_{number}")
        await proxy.stop()
        told = [event.event_id for _, event in proxy.peer.events]
    assert [each for each in told if "toolu" in each] == [f"credential-toolu_{number}" for number in range(20)]


WRONG = [
    ("shop__no_such_tool", "{}", Invalid, "TOOL_UNKNOWN"),
    ("lookup_order", "{}", Invalid, "TOOL_UNKNOWN"),
    ("", "{}", Invalid, "TOOL_UNKNOWN"),
    ("bank__pay", "{}", Denied, "SERVER_DENIED"),
    ("shop__lookup_order", "no json", Invalid, "TOOL_INPUT_INVALID"),
    ("shop__lookup_order", "[]", Invalid, "TOOL_INPUT_INVALID"),
]


@pytest.mark.parametrize(("name", "given", "kind", "reason"), WRONG)
async def test_a_wrong_call_gets_its_reason(
    proxy: Proxy, shop_grant: str, name: str, given: str, kind: type[ServiceError], reason: str
) -> None:
    """Wrong calls are errors that callers can branch on, and harm nothing."""
    problem = await failure(proxy.execute(shop_grant, name, given))
    assert (type(problem), problem.reason) == (kind, reason)
    assert (await proxy.execute(shop_grant, "shop__weather", {"city": "Bern"})).outcome == OK


async def test_only_allowed_tools_are_offered_and_called(proxy: Proxy, shop: Shop, openbao: OpenBaoServer) -> None:
    """What the session's configuration does not name is neither listed nor called."""
    vault_id = put_credential(openbao, shop.origin, shop.token)
    server = McpServer(name="shop", url=shop.url, allowed_tools=["weather"])
    grant = proxy.peer.grant(server, vault_ids=(vault_id,))
    assert [tool.name for tool in (await proxy.tools(grant)).tools] == ["shop__weather"]
    problem = await failure(proxy.execute(grant, "shop__add_note", {"text": "not allowed"}))
    assert problem.reason == "TOOL_UNKNOWN"
    assert {"text": "not allowed"} not in shop.calls("add_note")


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
        path = f"tenants/default/vaults/{vault_id}/credentials/{credential_id}"
        openbao.operator.put_secret(path, {"kind": "static_bearer", "origin": origin, "value": "first"})
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        assert (await proxy.execute(grant, "strange__echo", {"text": "1"})).output == "you said 1"
        valid = "second"
        openbao.operator.put_secret(path, {"kind": "static_bearer", "origin": origin, "value": "second"})
        assert (await proxy.execute(grant, "strange__echo", {"text": "2"})).output == "you said 2"
        valid = "third"
        problem = await failure(proxy.execute(grant, "strange__echo", {"text": "3"}))
        assert problem.reason == "CREDENTIAL_REVOKED"


async def test_a_lost_session_is_made_anew_once(proxy: Proxy) -> None:
    """404 for a session that the server has forgotten: connect again and repeat; forgetting again is an error."""
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
        forget = 2
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
