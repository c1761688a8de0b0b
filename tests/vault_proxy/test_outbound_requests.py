"""Single requests, as OAuth needs them: the same rules as for MCP servers, other headers, and an end."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from services.kit.origin import parse_allowed
from services.vault_proxy.outbound import BODY_BYTES, Failure, NoAnswer, Outbound
from services.vault_proxy.secret import Secret
from tests.vault_proxy.strange_server import Reply, strange_server
from tests.vault_proxy.test_outbound import KEY

LOCAL = parse_allowed("127.0.0.1")


async def refused(outbound: Outbound, url: str, **more: Any) -> NoAnswer:
    """Returns what a request fails with; the secret is in no part of it."""
    with pytest.raises(NoAnswer) as caught:
        await outbound.send("POST", url, body=Secret(KEY.encode()), authorization=Secret(f"Basic {KEY}"), **more)
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown
    return caught.value


async def test_only_known_headers_pass() -> None:
    """The caller's credential is sent; of the answer, what OAuth needs gets in."""
    told = {"Content-Type": "application/json", "WWW-Authenticate": "Bearer", "Set-Cookie": "a=b", "Location": "/x"}
    async with strange_server(answer=lambda request: Reply(401, b"{}", told)) as strange:
        sent = {"Accept": "application/json", "Authorization": "Bearer other", "Mcp-Session-Id": "s", "Cookie": "c"}
        answer = await Outbound(LOCAL).send("POST", strange.url, sent, Secret(b"grant_type=x"), Secret(f"Basic {KEY}"))
    [request] = strange.requests
    assert set(request.headers) == {
        "host",
        "accept",
        "user-agent",
        "content-length",
        "accept-encoding",
        "authorization",
    }
    assert (request.headers["authorization"], request.body) == (f"Basic {KEY}", b"grant_type=x")
    assert (answer.status, answer.body.reveal()) == (401, b"{}")
    assert set(answer.headers) == {"content-type", "content-length", "www-authenticate"}
    assert "{}" not in repr(answer)


async def test_a_request_has_an_end() -> None:
    """In bytes, packed bytes and time; and what was lost on the way is said to have been sent."""
    replies = {
        Failure.TOO_LARGE: Reply(200, b"x" * (BODY_BYTES + 1)),
        Failure.BROKEN: Reply(200, b"\x1f\x8b", {"Content-Encoding": "gzip"}),
    }
    outbound = Outbound(LOCAL)
    async with strange_server() as strange:
        for failure, reply in replies.items():
            strange.answer = lambda request, told=reply: told  # type: ignore[misc]
            problem = await refused(outbound, strange.url)
            assert (problem.failure, problem.sent) == (failure, True)
        for reply in (Reply(200, b"{", hold=True), Reply(200, b"{", hang_up=True)):
            strange.answer = lambda request, told=reply: told  # type: ignore[misc]
            problem = await refused(outbound, strange.url, seconds=0.2)
            assert (problem.failure, problem.sent) == (Failure.BROKEN, True)
    problem = await refused(outbound, "http://127.0.0.1:9/")
    assert (problem.failure, problem.sent) == (Failure.UNREACHABLE, False)


async def test_a_credential_that_is_no_ascii_is_not_shown() -> None:
    """The error of encoding it would hold it."""
    with pytest.raises(NoAnswer) as caught:
        await Outbound(LOCAL).send("GET", "http://127.0.0.1:9/", authorization=Secret(f"Bearer {KEY}\u20ac"))
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert caught.value.failure is Failure.DENIED
