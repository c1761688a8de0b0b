"""V14: a server answers with the credential that it was sent, in every form that careless servers use.

This is a tripwire. What it lets pass is a test here, too: the boundary is that a credential is only ever sent to its
own origin, which the last test and V19 hold.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from services.vault_proxy.core.scrub import MARK
from tests.security.reflecting import seen_of
from tests.support.canary import hits
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, put_credential
from tests.vault_proxy.strange_server import TOOL, Reply, Request, error, result, strange_server

pytestmark = pytest.mark.vault

SSE = {"Content-Type": "text/event-stream"}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def base64_of(said: bytes) -> str:
    return base64.b64encode(said).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "raw": lambda secret: secret,
    "in JSON": lambda secret: json.dumps({"authorization": f"Bearer {secret}"}),
    "in JSON in JSON": lambda secret: json.dumps({"a": json.dumps([secret])}),
    "JSON with escaped slashes": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "JSON of code points": lambda secret: "".join(f"\\u{ord(each):04x}" for each in secret),
    "base64 of the header": lambda secret: base64_of(f"Bearer {secret}".encode()),
    "base64, alignment 0": lambda secret: base64_of(secret.encode() + b"after"),
    "base64, alignment 1": lambda secret: base64_of(b"a" + secret.encode() + b"after"),
    "base64, alignment 2": lambda secret: base64_of(b"ab" + secret.encode()),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(b"ab" + secret.encode()).decode(),
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "percent": lambda secret: quote(secret, safe=""),
    "percent in lower case": lambda secret: quote(secret, safe="").lower(),  # the canary has no capitals
    "percent of every byte": lambda secret: "".join(f"%{each:02x}" for each in secret.encode()),
    "a form": lambda secret: quote_plus(secret),
    "a URL": lambda secret: f"https://x.example/{quote(secret)}?t={quote_plus(secret)}",
}


async def test_every_form_is_taken_out_of_a_result(
    proxy: Proxy, openbao: OpenBaoServer, canary: str, logs: io.StringIO
) -> None:
    """As the whole text, in the middle of one, as the tool's error; the model reads that something was removed, and
    the service's log and the session's name the server and the credential's id."""
    said: dict[str, Any] = {}

    def call(request: Request) -> Reply:
        return result(request, said)

    async with strange_server(call=call) as strange:
        vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        for name, form in FORMS.items():
            for failing in (False, True):
                said = text(f"<{form(canary)}> and {form(canary)}", isError=failing)
                answer = await proxy.execute(grant, "strange__echo", {"text": name})
                assert MARK in answer.output, name
                assert hits(canary, repr(answer)) == [], name
                assert form(canary) not in answer.output, name
        said = text(f"not {canary[:-1]} nor {canary[1:]}")
        plain = await proxy.execute(grant, "strange__echo", {"text": "control"})
        assert MARK not in plain.output, "the control: what is not the credential stays"
        assert strange.heard(canary), "the control: the server had it"
    lines = [line for line in logs.getvalue().splitlines() if "a server said its credential" in line]
    assert len(lines) == 2 * len(FORMS)
    await proxy.stop()  # what is told behind the answers is told now
    told = [event.credential_used.result for _, event in proxy.peer.events if event.HasField("credential_used")]
    assert (told.count("CREDENTIAL_REFLECTED"), set(told)) == (2 * len(FORMS), {"CREDENTIAL_REFLECTED", "ok"})
    assert hits(canary, logs.getvalue()) == []


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "structured": lambda secret: text("x", structuredContent={secret: [secret]}),
    "an image": lambda secret: {
        "content": [{"type": "image", "data": base64_of(f"Bearer {secret}".encode()), "mimeType": "image/png"}]
    },
    "a link": lambda secret: {"content": [{"type": "resource_link", "name": secret, "uri": f"a://{secret}"}]},
    "a resource": lambda secret: {"content": [{"type": "resource", "resource": {"uri": "a://b", "text": secret}}]},
    "a block's type": lambda secret: {"content": [{"type": secret}]},
    "no list": lambda secret: {"content": secret},
    "an annotation": lambda secret: text("x", _meta={secret: secret}),
}


@pytest.mark.parametrize("place", PLACES)
async def test_no_place_in_a_result_shows_it(proxy: Proxy, openbao: OpenBaoServer, canary: str, place: str) -> None:
    """Nor does a tool list, or a handshake, that says such a thing: to nobody who called, in no event."""
    seen = await seen_of(proxy, openbao, canary, lambda request: result(request, PLACES[place](canary)))
    assert hits(canary, "\n".join(seen)) == []


@pytest.mark.parametrize("status", [200, 400])
async def test_an_error_of_the_protocol_shows_nothing(
    proxy: Proxy, openbao: OpenBaoServer, canary: str, status: int
) -> None:
    """Its message reaches the model, without the credential."""
    header = f"Authorization: Bearer {canary}"
    seen = await seen_of(proxy, openbao, canary, lambda request: error(request, -32050, header, status))
    assert hits(canary, "\n".join(seen)) == []
    assert any(MARK in each for each in seen)


async def test_a_credential_over_two_chunks_of_a_stream_is_one(
    proxy: Proxy, openbao: OpenBaoServer, canary: str
) -> None:
    """Cut in half on the wire, in a word of progress and in the result: whole again before it is looked for."""
    parts: asyncio.Queue[bytes | None] = asyncio.Queue()

    def call(request: Request) -> Reply:
        rpc = request.rpc
        meta = rpc["params"].get("_meta") or {}
        progress = {"progressToken": meta.get("progressToken"), "progress": 1, "message": canary}
        told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        answer = {"jsonrpc": "2.0", "id": rpc["id"], "result": text(f"you sent {canary}")}
        for each in (told, answer):
            event = f"event: message\ndata: {json.dumps(each)}\n\n".encode()
            middle = event.index(canary.encode()) + len(canary) // 2
            parts.put_nowait(event[:middle])
            parts.put_nowait(event[middle:])
        parts.put_nowait(None)
        return Reply(200, b": \n\n", SSE, parts=parts)

    async with strange_server(call=call) as strange:
        vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        answer = await proxy.execute(grant, "strange__echo", {"text": "x"}, "toolu_1")
        followed = [each async for each in proxy.watch(grant, "toolu_1")]
    assert answer.output == f"you sent {MARK}"
    assert hits(canary, repr(followed)) == []
    assert MARK in followed[0].chunk, "the control: progress was heard"


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


CLEVER: dict[str, Callable[[str], str]] = {
    "reversed": lambda secret: secret[::-1],
    "cut in half": lambda secret: f"{secret[:12]} {secret[12:]}",
    "spaced": " ".join,
    "turned by 13": lambda secret: secret.translate({each: each + 1 for each in range(33, 126)}),
}


@pytest.mark.parametrize("form", CLEVER)
async def test_what_a_clever_server_says_passes(proxy: Proxy, openbao: OpenBaoServer, canary: str, form: str) -> None:
    """What SECURITY.md says of a tripwire is so: a server that means it can say what it was sent. It was sent nothing
    but its own credential."""
    said = CLEVER[form](canary)
    async with strange_server(call=lambda request: result(request, text(said))) as strange:
        vault_id = put_credential(openbao, strange.url.removesuffix("/mcp"), canary)
        grant = proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        assert (await proxy.execute(grant, "strange__echo", {"text": "x"})).output == said


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
