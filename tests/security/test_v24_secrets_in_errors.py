"""V24: a fresh canary in every credential, every layer made to fail, every log at its loudest: it shows nowhere."""

from __future__ import annotations

import asyncio
import gc
import io
import json
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from handmesh.launcher.files import read_strings
from handmesh.session.v1.config_pb2 import McpServer
from services.kit import ids
from tests.security.reflecting import everything_in, seen_of
from tests.support.canary import hits
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Start, put_credential, vault_settings
from tests.vault_proxy.strange_server import Reply, Request, strange_server

pytestmark = pytest.mark.vault

JSON = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream"}


FAILURES: dict[str, Callable[[str, Request], Reply]] = {
    "401": lambda secret, _: Reply(401, secret.encode(), {"WWW-Authenticate": f'Bearer realm="{secret}"'}),
    "403": lambda secret, _: Reply(403, secret.encode(), {"X-Canary": secret}),
    "500": lambda secret, _: Reply(500, secret.encode()),
    "no JSON": lambda secret, _: Reply(200, b"{" + secret.encode(), JSON),
    "no MCP": lambda secret, _: Reply(200, json.dumps({secret: secret}).encode(), JSON),
    "another type": lambda secret, _: Reply(200, secret.encode(), {"Content-Type": secret}),
    "broken stream": lambda secret, _: Reply(200, b"event: message\ndata: {" + secret.encode() + b"\n\n", SSE),
    "hangs up": lambda secret, _: Reply(200, secret.encode(), JSON, hang_up=True),
    "session id": lambda secret, _: Reply(404, secret.encode(), {"Mcp-Session-Id": secret}),
    "header too long": lambda secret, _: Reply(200, b"{}", {"X": secret * 4000}),
    "forged status": lambda secret, _: Reply(999, secret.encode()),
    "packed": lambda secret, _: Reply(200, secret.encode(), {**JSON, "Content-Encoding": secret}),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_no_way_of_failing_shows_the_credential(
    proxy: Proxy, openbao: OpenBaoServer, canary: str, logs: io.StringIO, name: str
) -> None:
    """Not in results, errors, events or logs, whether a tool is called or tools are listed."""
    seen = await seen_of(proxy, openbao, canary, lambda request: FAILURES[name](canary, request))
    assert hits(canary, "\n".join(seen) + logs.getvalue()) == []
    assert "httpcore2" not in logs.getvalue(), "what is silenced stays so, whatever else is at DEBUG"
    assert "services.vault_proxy" in logs.getvalue(), "the control: logs were heard"


async def test_a_grant_is_in_no_log(logs: io.StringIO, proxy: Proxy, shop_grant: str) -> None:
    """Used, refused, revoked: its value is nowhere, and neither is it in an error."""
    await proxy.execute(shop_grant, "shop__weather", {"city": "Rome"})
    proxy.peer.revoke(shop_grant)
    told = ""
    while not told:
        try:
            await proxy.tools(shop_grant)
        except grpc.aio.AioRpcError as problem:
            told = everything_in(problem)
    assert shop_grant not in told + logs.getvalue()
    assert "services.kit.grants" in logs.getvalue(), "the control: logs were heard"


async def test_a_vault_that_fails_shows_nothing(
    start: Start, own_openbao: OpenBaoServer, canary: str, logs: io.StringIO
) -> None:
    """Sealed, dead, logged out: VAULT_UNAVAILABLE, and neither the secret id, a token nor the credential in it. The
    session goes on by itself when the vault is back."""
    settings = vault_settings(own_openbao)
    role = read_strings(Path(settings["HANDMESH_VAULT_APPROLE_FILE"]))
    async with strange_server() as strange, start(**settings) as proxy:
        vault_id = put_credential(own_openbao, strange.url.removesuffix("/mcp"), canary)
        server = McpServer(name="strange", url=strange.url)
        told = ""

        async def refused() -> None:
            nonlocal told
            grant = proxy.peer.grant(server, vault_ids=(vault_id,))
            for call in (lambda: proxy.execute(grant, "strange__echo"), lambda: proxy.tools(grant)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call()
                told += everything_in(caught.value)
                assert "VAULT_UNAVAILABLE" in told

        async def works() -> None:
            grant = proxy.peer.grant(server, vault_ids=(vault_id,))
            assert (await proxy.execute(grant, "strange__echo", {"text": "x"})).output == "you said x"

        await works()
        await asyncio.to_thread(operator.seal, own_openbao)
        await refused()
        without = proxy.peer.grant(server)  # the control: a session without vaults needs none
        assert (await proxy.execute(without, "strange__echo", {"text": "x"})).output == "you said x"
        await asyncio.to_thread(operator.unseal, own_openbao)
        await works()
        await own_openbao.kill()
        await refused()
        await own_openbao.restart()
        await works()
    text = told + logs.getvalue()
    assert [secret for secret in (*role.values(), own_openbao.root_token, canary) if hits(secret, text)] == []


async def test_a_session_keeps_working_while_its_credential_is_fresh(
    start: Start, own_openbao: OpenBaoServer, canary: str
) -> None:
    """A sealed vault does not stop what was looked up less than 30 seconds ago."""
    async with strange_server() as strange, start(**vault_settings(own_openbao)) as proxy:
        vault_id = put_credential(own_openbao, strange.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        await proxy.execute(grant, "strange__echo", {"text": "x"})
        await asyncio.to_thread(operator.seal, own_openbao)
        assert (await proxy.execute(grant, "strange__echo", {"text": "y"})).output == "you said y"


async def test_the_credential_is_held_by_secrets_alone(proxy: Proxy, openbao: OpenBaoServer, canary: str) -> None:
    """After a call nothing but `Secret` and what an HTTP request was made of has had it: no request object of a
    library that keeps requests, no header list of a client."""
    async with strange_server() as strange:
        vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        await proxy.execute(grant, "strange__echo", {"text": ids.mint("x")})
        # What the session asks of a server by itself may be on its way: it holds it that long.
        while not any(request.method == "GET" for request in strange.requests):
            await asyncio.sleep(0.01)
        for _ in range(100):
            if not (held := _holders(canary)):
                break
            await asyncio.sleep(0.01)
        assert held == []


def _holders(canary: str) -> list[str]:
    gc.collect()
    found = [each for each in gc.get_objects() if type(each).__name__ in ("Headers", "AsyncClient", "Request")]
    assert found
    return [
        type(each).__module__
        for each in found
        if type(each).__module__ != "tests.vault_proxy.strange_server"
        and canary in repr(each) + repr(getattr(each, "__dict__", ""))
    ]
