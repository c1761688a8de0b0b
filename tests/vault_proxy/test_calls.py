"""Listing and calling tools, through real OpenBao and real MCP servers."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import tool_pb2
from handmesh.sandbox.v1.tool_pb2 import ToolResult
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.session.v1.event_pb2 import CredentialUsed
from services.kit.channels import raised
from services.kit.errors import Denied, Invalid, ServiceError
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, Shop, Start, put_credential, vault_settings

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
