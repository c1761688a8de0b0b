"""V20: a name that resolves to something else the second time, and names with many addresses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.kit.origin import Allowed, parse_allowed
from services.vault_proxy.outbound import BodyRefused, Failure, Outbound, observe
from tests.support.heard import SOCKETS
from tests.vault_proxy.strange_server import Reply, StrangeServer
from tests.vault_proxy.test_outbound import bearer, post, resolving

PUBLIC = "93.184.216.34"


async def test_a_name_that_changes_its_mind_is_judged_anew(strange: StrangeServer) -> None:
    """DNS rebinding: a name is looked up once for a connection, what was checked is what is dialled, and the next
    connection is checked again."""
    port = int(strange.url.split(":")[2].split("/")[0])
    asked = 0

    async def resolve(host: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked == 1 else ["169.254.169.254"]

    strange.answer = lambda request: Reply(200, b"{}", hang_up=True)  # each request needs a new connection
    outbound = Outbound(parse_allowed("rebind.example"), resolve=resolve)
    exchange = observe()
    url = f"http://rebind.example:{port}/mcp"
    async with outbound.client(url, bearer) as client:
        with pytest.raises(BodyRefused):
            await client.post(url, json={})
        assert (asked, len(strange.requests)) == (1, 1)
        assert strange.requests[0].headers["host"] == f"rebind.example:{port}"
        with SOCKETS.watched() as seen:
            assert (await client.post(url, json={})).status_code == 502
    assert (asked, exchange.failure, seen) == (2, Failure.DENIED, [])


ANSWERS = {
    "loopback last": [PUBLIC, "127.0.0.1"],
    "loopback first": ["127.0.0.1", PUBLIC],
    "good and bad families": [PUBLIC, "::1"],
    "forty": [*(f"93.184.216.{at}" for at in range(39)), "10.0.0.1"],
    "wrapped": [PUBLIC, "64:ff9b::7f00:1"],
    "none": [],
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_one_bad_address_refuses_a_name(answer: list[str]) -> None:
    """All of a name's addresses must pass; none of them is tried before."""
    with SOCKETS.watched() as seen:
        told, exchange = await post(Outbound(Allowed(), resolve=resolving(answer)), "https://good.example/mcp")
    assert (told.status_code, exchange.failure, exchange.sent, seen) == (502, Failure.DENIED, False, [])


async def test_what_was_checked_is_what_is_dialled(strange: StrangeServer) -> None:
    """The control: the address that the resolver gave is connected to, and no resolver is asked again by anybody; the
    host's name stays in the request."""
    port = int(strange.url.split(":")[2].split("/")[0])
    outbound = Outbound(parse_allowed("good.example"), resolve=resolving(["127.0.0.1"]))
    with SOCKETS.watched() as seen:
        answer, _ = await post(outbound, f"http://good.example:{port}/mcp")
    assert answer.status_code == 200
    assert [address for event, address in seen if event == "socket.connect"] == [("127.0.0.1", port)]
    assert "good.example" not in str(seen)
    assert strange.requests[0].headers["host"] == f"good.example:{port}"
