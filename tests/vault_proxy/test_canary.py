"""A fresh canary in every credential, every layer made to fail, every log at its loudest: it shows nowhere."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.launcher.files import read_strings
from handmesh.session.v1.config_pb2 import McpServer
from services.kit import ids
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Start, put_credential, vault_settings
from tests.vault_proxy.strange_server import TOOL, Reply, Request, error, result, strange_server

pytestmark = pytest.mark.vault

JSON = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream"}


@pytest.fixture
def canary() -> str:
    """A credential of this run."""
    return f"canary-{os.urandom(12).hex()}+/=~x"


def forms(canary: str) -> list[str]:
    """Returns what to look for: the canary as it is and encoded."""
    data = canary.encode()
    return [canary, data.hex(), json.dumps(canary)[1:-1], canary.replace("+", "%2B").replace("/", "%2F")] + [
        base64.b64encode(b"x" * shift + data)[4:-4].decode() for shift in range(3)
    ]


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything that any logger says at any level, with tracebacks and with what records carry beside their text."""
    said = io.StringIO()

    class Everything(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.write(f"{record.name} {self.format(record)} {record.__dict__}\n")

    root = logging.getLogger()
    handler, level = Everything(), root.level
    root.addHandler(handler)
    root.setLevel(logging.NOTSET)
    names = [*logging.Logger.manager.loggerDict, "httpx2", "httpcore2", "hvac", "urllib3", "mcp", "client", "services"]
    before = {name: logging.getLogger(name).level for name in names}
    loud = {name: level for name, level in before.items() if level <= logging.CRITICAL}  # what is silenced stays so
    for name in loud:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield said
    root.removeHandler(handler)
    root.setLevel(level)
    for name, was in loud.items():
        logging.getLogger(name).setLevel(was)


def reflections(canary: str) -> dict[str, Any]:
    """Ways in which a server may say what it was sent, or fail with it in its hands."""

    def text(said: str) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": said}], "structuredContent": {canary: [said]}}

    header = f"Authorization: Bearer {canary}"
    broken_sse = b"event: message\ndata: {" + canary.encode() + b"\n\n"
    return {
        "text": lambda request: result(request, text(header)),
        "json in text": lambda request: result(request, text(json.dumps({"h": header}))),
        "base64": lambda request: result(request, text(base64.b64encode(header.encode()).decode())),
        "hex": lambda request: result(request, text(canary.encode().hex())),
        "failing tool": lambda request: result(request, {**text(header), "isError": True}),
        "image": lambda request: result(
            request,
            {
                "content": [
                    {"type": "image", "data": base64.b64encode(header.encode()).decode(), "mimeType": "image/png"}
                ]
            },
        ),
        "link": lambda request: result(
            request, {"content": [{"type": "resource_link", "name": canary, "uri": f"a://{canary}"}]}
        ),
        "unknown block": lambda request: result(request, {"content": [{"type": canary}]}),
        "rpc error": lambda request: error(request, -32000 - 50, header),
        "rpc error with status": lambda request: error(request, -32602, header, 400),
        "401": lambda request: Reply(401, header.encode(), {"WWW-Authenticate": f'Bearer realm="{canary}"'}),
        "403": lambda request: Reply(403, header.encode(), {"X-Canary": canary}),
        "500": lambda request: Reply(500, header.encode()),
        "redirect": lambda request: Reply(307, b"", {"Location": f"https://{canary}@evil.example/?{canary}"}),
        "no JSON": lambda request: Reply(200, b"{" + header.encode(), JSON),
        "no MCP": lambda request: Reply(200, json.dumps({canary: canary}).encode(), JSON),
        "wrong result": lambda request: result(request, {"content": canary}),
        "another type": lambda request: Reply(200, header.encode(), {"Content-Type": canary}),
        "broken stream": lambda request: Reply(200, broken_sse, SSE),
        "hangs up": lambda request: Reply(200, header.encode(), JSON, hang_up=True),
        "session id": lambda request: Reply(404, header.encode(), {"Mcp-Session-Id": canary}),
        "header too long": lambda request: Reply(200, b"{}", {"X": canary * 4000}),
        "forged status": lambda request: Reply(999, header.encode()),
    }


NAMES = list(reflections("x"))


def everything_in(problem: grpc.aio.AioRpcError) -> str:
    """Returns all that a caller can see of an error."""
    metadata = [*(problem.initial_metadata() or ()), *(problem.trailing_metadata() or ())]
    return f"{problem!r} {problem.code()} {problem.details()} {problem.debug_error_string()} {metadata}"


@pytest.mark.parametrize("name", NAMES)
async def test_no_way_of_failing_shows_the_credential(
    proxy: Proxy, openbao: OpenBaoServer, canary: str, logs: io.StringIO, name: str
) -> None:
    """Not in results, errors, events or logs, whether a tool is called or tools are listed."""
    answer = reflections(canary)[name]
    seen: list[str] = []
    for method in ("tools/call", "tools/list", "initialize"):

        def reply(request: Request, method: str = method) -> Reply | None:
            said: Reply | None = answer(request) if request.rpc.get("method") == method else None
            return said

        async with strange_server(answer=reply) as strange:
            vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
            grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
            for call in (proxy.tools(grant), proxy.execute(grant, "strange__echo", {"text": "x"}, "toolu_1")):
                try:
                    seen.append(repr(await call))
                except grpc.aio.AioRpcError as problem:
                    seen.append(everything_in(problem))
            assert strange.heard(canary), "the control: the server had it"
    await proxy.stop()
    seen += [repr(event) for event in proxy.peer.events]
    text = "\n".join(seen) + logs.getvalue()
    assert len(seen) > 6
    assert [form for form in forms(canary) if form in text] == []


async def test_a_tool_list_that_repeats_the_credential_is_cleaned(
    proxy: Proxy, openbao: OpenBaoServer, canary: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Names, descriptions and schemas are what a server says, too; the others of its tools work."""
    tools = [
        TOOL,
        {"name": "a", "description": f"Send {canary}", "inputSchema": {"type": "object", "title": canary}},
        {"name": canary, "inputSchema": {"type": "object"}},
        {"name": "c", "inputSchema": {"type": canary}},
    ]
    async with strange_server(tools=tools) as strange:
        vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        listed = await proxy.tools(grant)
        assert [tool.name for tool in listed.tools][:2] == ["strange__echo", "strange__a"]
        assert canary not in str(listed)
        assert (await proxy.execute(grant, "strange__echo", {"text": "x"})).output == "you said x"
    assert "a server said its credential" in caplog.text


async def test_the_credential_is_sent_to_its_origin_only(proxy: Proxy, openbao: OpenBaoServer, canary: str) -> None:
    """Another port, another server of the session, a redirect: none of them ever sees it."""
    async with strange_server() as bound, strange_server() as other:
        vault_id = put_credential(openbao, bound.url.removesuffix("/mcp"), canary)
        servers = (McpServer(name="bound", url=bound.url), McpServer(name="other", url=other.url))
        grant = proxy.peer.grant(*servers, vault_ids=(vault_id,))
        await proxy.tools(grant)
        for name in ("bound__echo", "other__echo"):
            assert (await proxy.execute(grant, name, {"text": "x"})).output == "you said x"
        bound.answer = lambda request: Reply(307, b"", {"Location": other.url})
        with pytest.raises(grpc.aio.AioRpcError):
            await proxy.execute(grant, "bound__echo", {"text": "y"})
        assert bound.heard(canary)
        assert not other.heard(canary)
        assert not other.heard('"y"')


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
    assert [secret for secret in (*role.values(), own_openbao.root_token, *forms(canary)) if secret in text] == []


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
