"""A placeholder becomes its credential on the way to the credential's own hosts, in its places, and nowhere else."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from handmesh.session.v1.event_pb2 import CredentialUsed
from services.kit import ids
from services.kit.errors import Unavailable
from services.vault_proxy.core import kinds
from services.vault_proxy.core.kinds import Draft
from services.vault_proxy.core.masking import LONGEST, Mask
from services.vault_proxy.core.scrub import MARK, forms_of
from services.vault_proxy.doors import purse
from services.vault_proxy.doors.interception import BODY_BYTES
from services.vault_proxy.secret import Secret
from tests.vault_proxy.doors.egress_world import HOST, VALUE, World, egress_world, tls_of
from tests.vault_proxy.strange_server import Reply, Request

PLAIN = {"Content-Type": "text/plain"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with egress_world(tmp_path) as opened:
        yield opened


def fine(request: Request) -> Reply:
    return Reply(200, b"fine", PLAIN)


async def test_a_placeholder_in_a_header_becomes_the_credential(world: World) -> None:
    """By curl over verified TLS: as a bearer, in a header of the API's own, and inside of Basic. Each is a use."""
    server, port = await world.host(answer=fine)
    credential = await world.credential("plain-canary")
    stands = world.placeholder(credential)
    url = f"https://{HOST}:{port}/v1"
    assert await world.curl("-H", f"Authorization: Bearer {stands}", "-H", f"X-Api-Key: {stands}", url) == "fine"
    world.uses.turn()
    world.uses.turn()
    assert await world.curl("-u", f"user:{stands}", url) == "fine"
    first, second = (request.headers for request in server.requests)
    assert (first["authorization"], first["x-api-key"]) == ("Bearer plain-canary", "plain-canary")
    assert base64.b64decode(second["authorization"].removeprefix("Basic ")) == b"user:plain-canary"
    use = CredentialUsed(credential_id=credential.credential_id, vault_id=credential.vault_id, server=HOST, result="ok")
    assert world.said.uses == [(world.visit.access.session_id, use)] * 2
    assert not server.heard("hm_placeholder_")


async def test_many_uses_are_told_as_few(world: World) -> None:
    """The first at once, the others as a number each second; another end is told apart, and nothing is left out."""
    replies = [Reply(200, b"fine", PLAIN)] * 3 + [Reply(401, b"no", PLAIN)] + [Reply(200, b"fine", PLAIN)] * 3
    _, port = await world.host(answer=lambda request: replies.pop(0))
    key = f"X-Key: {world.placeholder(await world.credential('plain-canary'))}"
    url = f"https://{HOST}:{port}/"
    await world.curl("-H", key, url, url, url, url)
    assert [(use.result, use.times) for _, use in world.said.uses] == [("ok", 0), ("CREDENTIAL_REVOKED", 0)]
    world.uses.turn()
    assert [(use.result, use.times) for _, use in world.said.uses[2:]] == [("ok", 2)]
    await world.curl("-H", key, url, url)
    world.uses.turn()
    assert [(use.result, use.times) for _, use in world.said.uses[3:]] == [("ok", 2)]
    world.uses.turn()
    world.uses.turn()
    await world.curl("-H", key, url)
    assert [(use.result, use.times) for _, use in world.said.uses[4:]] == [("ok", 0)]


async def test_a_request_without_a_placeholder_uses_nothing(world: World) -> None:
    """It goes as it is, and no use is told."""
    server, port = await world.host(answer=fine)
    await world.credential("plain-canary")
    assert await world.curl("-d", "a=b", f"https://{HOST}:{port}/v1?x=y") == "fine"
    assert (server.requests[0].path, server.requests[0].body) == ("/v1?x=y", b"a=b")
    assert world.said.uses == [] and not server.heard("plain-canary")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("User-Agent", "{}"),
        ("Referer", "https://api.example/{}"),
        ("Accept", "{}"),
        ("Range", "{}"),
        ("X-Forwarded-For", "{}"),
        ("If-None-Match", "{}"),
        ("Content-Type", "text/{}"),
        ("Origin", "{}"),
    ],
)
async def test_a_header_that_carries_no_credential_is_left_alone(world: World, name: str, value: str) -> None:
    """Servers log and echo those: a placeholder there goes out as it is."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential("plain-canary"))
    assert await world.curl("-H", f"{name}: {value.format(stands)}", f"https://{HOST}:{port}/") == "fine"
    assert server.requests[0].headers[name.lower()] == value.format(stands)
    assert world.said.uses == [] and not server.heard("plain-canary")


async def test_a_placeholder_in_a_url_is_left_alone(world: World) -> None:
    """In the path and in the query, which servers log."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential("plain-canary", places="headers bodies"))
    assert await world.curl(f"https://{HOST}:{port}/{stands}?key={stands}") == "fine"
    assert server.requests[0].path == f"/{stands}?key={stands}" and world.said.uses == []


async def test_a_placeholder_in_a_body_is_written_as_the_format_wants_it(world: World) -> None:
    """JSON, a form, text and XML: the server reads the value, and nothing around it; the length is right."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential(places="bodies"))
    url = f"https://{HOST}:{port}/"
    bodies = {
        "application/json; charset=utf-8": json.dumps({"key": stands, "n": 1}),
        "application/vnd.api+json": json.dumps([stands]),
        "application/x-www-form-urlencoded": f"key={stands}&n=1",
        "text/plain": f"<{stands}>",
        "application/xml": f"<key>{stands}</key>",
        "application/octet-stream": stands,
    }
    for kind, body in bodies.items():
        assert await world.curl("-H", f"Content-Type: {kind}", "--data-binary", body, url) == "fine"
    took = [request.body.decode() for request in server.requests]
    assert json.loads(took[0]) == {"key": VALUE, "n": 1} and json.loads(took[1]) == [VALUE]
    assert parse_qs(took[2]) == {"key": [VALUE], "n": ["1"]}
    assert took[3] == f"<{VALUE}>"
    assert took[4] == "<key>canary &quot;of/egress&quot; &amp; more</key>"
    assert took[5] == stands
    world.uses.turn()
    assert [use.times for _, use in world.said.uses] == [0, 4]


@pytest.mark.parametrize(("places", "header", "body"), [("headers", True, False), ("bodies", False, True)])
async def test_it_is_replaced_in_its_places_only(world: World, places: str, header: bool, body: bool) -> None:
    """A credential for headers is not put into a body, and the other way round; another one's places do not count."""
    server, port = await world.host(answer=fine)
    await world.credential("other-canary", variable="OTHER", places="headers bodies")
    stands = world.placeholder(await world.credential("plain-canary", places=places))
    await world.curl("-H", f"X-Key: {stands}", "-d", f"key={stands}", f"https://{HOST}:{port}/")
    [request] = server.requests
    assert (request.headers["x-key"] == "plain-canary") is header
    assert (request.body == b"key=plain-canary") is body


async def test_a_chunked_body_is_replaced_and_a_long_one_goes_as_it_is(world: World) -> None:
    """Up to BODY_BYTES a body is read whole; a longer one streams on, whole and unchanged. A packed one too."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential("plain-canary", places="bodies"))
    url, file = f"https://{HOST}:{port}/", world.directory / "body"
    chunked = ("-H", "Transfer-Encoding: chunked", "-H", "Content-Type: text/plain", "--data-binary", f"@{file}")
    for content in (f"a {stands} b", stands + "x" * BODY_BYTES):
        file.write_text(content)
        assert await world.curl(*chunked, url) == "fine"
        assert await world.curl("-H", "Expect: 100-continue", *chunked[2:], url) == "fine"
    file.write_text(stands)
    assert await world.curl("-H", "Content-Encoding: gzip", *chunked[2:], url) == "fine"
    bodies = [request.body for request in server.requests]
    assert bodies[:2] == [b"a plain-canary b"] * 2
    assert bodies[2:4] == [stands.encode() + b"x" * BODY_BYTES] * 2
    assert bodies[4] == stands.encode()


async def test_another_host_gets_the_placeholder(world: World) -> None:
    """Where the credential may not go TLS is not looked into, and what arrives is worth nothing."""
    other, port = await world.host("other.example", answer=fine)
    stands = world.placeholder(
        await world.credential("plain-canary", hosts=f"{HOST} *.{HOST}", places="headers bodies")
    )
    url = f"https://other.example:{port}/"
    assert (
        await world.curl("--cacert", str(world.directory / "world/ca/ca.pem"), "-H", f"X-Key: {stands}", url) == "fine"
    )
    assert other.requests[0].headers["x-key"] == stands and world.said.uses == []


@pytest.mark.parametrize(
    ("hosts", "host", "goes"),
    [
        ("api.example", "api.example", True),
        ("api.example", "x.api.example", False),
        ("*.api.example", "x.api.example", True),
        ("*.api.example", "api.example", False),
        ("*.api.example", "xapi.example", False),
    ],
)
async def test_a_credential_goes_to_its_hosts(world: World, hosts: str, host: str, goes: bool) -> None:
    """A name whole, or every name below one."""
    server, port = await world.host(host, answer=fine)
    stands = world.placeholder(await world.credential("plain-canary", hosts=hosts))
    assert await world.curl("-H", f"X-Key: {stands}", f"https://{host}:{port}/") == "fine"
    assert server.requests[0].headers["x-key"] == ("plain-canary" if goes else stands)


async def test_plain_http_never_gets_a_credential(world: World) -> None:
    """By URL, and inside of a tunnel without TLS."""
    server, port = await world.host(None, answer=fine)
    stands = world.placeholder(await world.credential("plain-canary", places="headers bodies"))
    assert await world.curl("-H", f"X-Key: {stands}", "-d", stands, f"http://{HOST}:{port}/") == "fine"
    assert await world.curl("-p", "-H", f"X-Key: {stands}", "-d", stands, f"http://{HOST}:{port}/") == "fine"
    assert [request.headers["x-key"] for request in server.requests] == [stands, stands]
    assert not server.heard("plain-canary") and world.said.uses == []


async def test_another_sessions_placeholder_is_worth_nothing(world: World) -> None:
    """Even for the very same credential and host."""
    server, port = await world.host(answer=fine)
    credential = await world.credential("plain-canary")
    theirs = world.placeholder(credential, ids.mint("sess"))
    assert theirs != world.placeholder(credential)
    assert await world.curl("-H", f"X-Key: {theirs}", f"https://{HOST}:{port}/") == "fine"
    assert server.requests[0].headers["x-key"] == theirs and world.said.uses == []


async def test_a_session_without_the_vault_has_no_placeholder(world: World) -> None:
    """Its connections are not looked into: the host's own certificate is what it sees."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential("plain-canary"))
    access = replace(world.visit.access, vault_ids=())
    world.visit = replace(world.visit, access=access)
    assert await world.door.placeholders(access) == []
    ca = str(world.directory / "world/ca/ca.pem")
    assert await world.curl("--cacert", ca, "-H", f"X-Key: {stands}", f"https://{HOST}:{port}/") == "fine"
    assert server.requests[0].headers["x-key"] == stands


async def test_what_a_sandbox_is_told(world: World) -> None:
    """Each variable and its placeholder, the same each time; of two vaults the first counts; and whom to trust."""
    first = await world.credential("one", variable="A_KEY")
    second = await world.credential("two", variable="B_KEY")
    access = world.visit.access
    told = [("A_KEY", world.placeholder(first)), ("B_KEY", world.placeholder(second))]
    assert sorted(await world.door.placeholders(access)) == told
    assert all(value.startswith("hm_placeholder_") and len(value) == 41 for _, value in told)
    other = ids.mint("vault")
    draft = Draft(kinds.ENVIRONMENT_VARIABLE, Secret({"value": "x"}), {**first.facts})
    await world.credentials.add("default", other, "", "", draft)
    both = replace(access, session_id=ids.mint("sess"), vault_ids=(*access.vault_ids, other))
    told = [("A_KEY", world.placeholder(first, both.session_id)), ("B_KEY", world.placeholder(second, both.session_id))]
    assert sorted(await world.door.placeholders(both)) == told
    assert world.door.ca_certificate.startswith("-----BEGIN CERTIFICATE-----")


async def test_without_an_authority_nothing_is_replaced(tmp_path: Path) -> None:
    """No placeholder is promised, and no TLS is looked into."""
    async with egress_world(tmp_path, intercepts=False) as world:
        server, port = await world.host(answer=fine)
        stands = world.placeholder(await world.credential("plain-canary"))
        assert await world.door.placeholders(world.visit.access) == [] and world.door.ca_certificate == ""
        assert await world.curl("-H", f"X-Key: {stands}", f"https://{HOST}:{port}/") == "fine"
        assert server.requests[0].headers["x-key"] == stands


async def inside(world: World, port: int, *requests: bytes) -> bytes:
    """Sends requests as they are inside of TLS that ends at the door, and returns all answers."""
    reader, writer = await world.tunnel(port)
    writer.write(b"".join(requests))
    return await reader.read()


@pytest.mark.parametrize(
    "host", ["evil.example", "x.api.example", "api.example:1", "api.example.", "", "a@api.example"]
)
async def test_a_request_inside_is_for_the_host_of_the_tunnel(world: World, host: str) -> None:
    """Else a credential would reach whom the front of many hosts hands the request to. Refused, and told."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential("plain-canary"))
    answer = await inside(world, port, f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Key: {stands}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 421 ") and server.connections <= 1 and server.requests == []
    assert world.refused() == [(host or f"{HOST}:{port}", "HOST_DENIED")]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("CONNECT api.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: api.example\r\n\r\n", 405),
        ("GET https://evil.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
        ("GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 421),
        (
            "POST / HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nHost: evil.example\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nX: a\x00b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.example\r\nX: " + "x" * 70_000 + "\r\n\r\n", 431),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
async def test_what_is_no_proper_request_inside_is_refused(world: World, request_text: str, status: int) -> None:
    """With one answer; the host hears nothing."""
    server, port = await world.host(answer=fine)
    await world.credential("plain-canary")
    answer = await inside(world, port, request_text.encode())
    assert int(answer.split(b" ")[1]) == status and answer.count(b"HTTP/1.1 ") == 1
    assert server.requests == [] and len(world.refused()) == 1


async def test_one_connection_carries_many_requests(world: World) -> None:
    """Kept alive on both sides, pipelined or not; HTTP/1.1 is what TLS agrees on; hop-by-hop headers stay here."""
    server, port = await world.host(answer=lambda request: Reply(200, request.path.encode(), {**PLAIN, "Alt-Svc": "x"}))
    stands = world.placeholder(await world.credential("plain-canary"))
    head = f"Host: {HOST}:{port}\r\nX-Key: {stands}\r\nUpgrade: websocket\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1"
    one, two = (f"GET /{n} HTTP/1.1\r\n{head}\r\n\r\n".encode() for n in (1, 2))
    last = f"GET /3 HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
    answer = await inside(world, port, one, two, last)
    assert [part.rpartition(b"\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"/1", b"/2", b"/3"]
    assert b"alt-svc" not in answer.lower()
    assert server.connections == 1 and [request.headers.get("x-key") for request in server.requests] == [
        "plain-canary",
        "plain-canary",
        None,
    ]
    assert not {"upgrade", "x-hop"} & server.requests[0].headers.keys()
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_an_answer_streams(world: World) -> None:
    """Each part gets through when it comes, not when all is there."""
    parts: asyncio.Queue[bytes | None] = asyncio.Queue()
    kind = {"Content-Type": "text/event-stream"}
    _, port = await world.host(answer=lambda request: Reply(200, b"data: 1\n\n", kind, parts=parts))
    await world.credential("plain-canary")
    reader, writer = await world.tunnel(port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    await reader.readuntil(b"data: 1\n\n")
    parts.put_nowait(b"data: 2\n\n")
    await reader.readuntil(b"data: 2\n\n")
    parts.put_nowait(None)
    await reader.readuntil(b"\r\n0\r\n\r\n")


def reflections() -> list[tuple[str, str]]:
    value = "plain/canary+01"
    return [("raw", value), ("base64", base64.b64encode(value.encode()).decode()), ("hex", value.encode().hex())]


@pytest.mark.parametrize(("_", "form"), reflections())
async def test_a_reflected_credential_is_taken_out(world: World, _: str, form: str) -> None:
    """Out of headers and of text, also cut in two parts, with the length unchanged; the use is told so. A tripwire."""
    parts: asyncio.Queue[bytes | None] = asyncio.Queue()
    for part in (f"<{form[:5]}".encode(), form[5:].encode() + b">", None):
        parts.put_nowait(part)
    replies = [
        Reply(200, f"<{form}>".encode(), {**PLAIN, "X-Echo": f"={form}", "Location": f"/{form}"}),
        Reply(200, b"", PLAIN, parts=parts),
    ]
    _, port = await world.host(answer=lambda request: replies.pop(0))
    stands = world.placeholder(await world.credential("plain/canary+01"))
    arguments = ("-i", "-H", f"X-Key: {stands}", f"https://{HOST}:{port}/")
    for answer in (await world.curl(*arguments), await world.curl(*arguments)):
        assert form not in answer and "<[credential rem" in answer, answer
        assert answer.rpartition("<")[2].rstrip(">") == (MARK + "*" * 99)[: len(form)]
    world.uses.turn()
    assert {use.result for _, use in world.said.uses} == {"CREDENTIAL_REFLECTED"}


async def test_what_is_no_text_is_left_alone(world: World) -> None:
    """A download gets through byte by byte, whatever is in it."""
    data = bytes(range(256)) * 2000 + b"plain-canary"
    _, port = await world.host(answer=lambda request: Reply(200, data, {"Content-Type": "application/zip"}))
    stands = world.placeholder(await world.credential("plain-canary"))
    file = world.directory / "download"
    await world.curl("-o", str(file), "-H", f"X-Key: {stands}", f"https://{HOST}:{port}/")
    assert file.read_bytes() == data


def test_a_mask_holds_back_no_more_than_what_may_begin_a_form() -> None:
    """Fed byte by byte it finds every form of a value, and gives everything else unchanged."""
    value = "plain/canary+01"
    for form in forms_of(value):
        mask = Mask([value])
        text = f"a{form[:3]}b{form}c{form}{form[:-1]}".encode()
        out = b"".join(mask.feed(text[at : at + 1]) for at in range(len(text))) + mask.rest()
        assert mask.found >= 2 and form.encode() not in out and len(out) == len(text)
        assert Mask([value]).feed(b"nothing of it, pl") == b"nothing of it, "
    assert all(len(form) <= LONGEST for form in forms_of(value)) and "canary" not in repr(Mask([value]))


async def test_a_changed_credential_is_used_from_the_next_request_on(world: World) -> None:
    """On a connection that is open: replaced, then archived. The placeholder stays the same."""
    server, port = await world.host(answer=fine)
    credential = await world.credential("canary-one")
    stands = world.placeholder(credential)
    reader, writer = await world.tunnel(port)

    async def ask() -> str:
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Key: {stands}\r\n\r\n".encode())
        await reader.readuntil(b"fine")
        return server.requests[-1].headers["x-key"]

    assert await ask() == "canary-one"
    newer = Draft(kinds.ENVIRONMENT_VARIABLE, Secret({"value": "canary-two"}))
    await world.credentials.update("default", replace(credential, version=1), newer, 0)
    world.purse.changed(credential.credential_id)
    assert await ask() == "canary-two"
    await world.credentials.purge("default", credential.vault_id, credential.credential_id)
    world.purse.changed(credential.credential_id)
    assert await ask() == stands


async def test_a_refused_credential_is_looked_up_again(world: World) -> None:
    """After a 401 the next request has what is in the vault by then; the use says that it was refused."""
    replies = [Reply(401, b"no", PLAIN), Reply(200, b"fine", PLAIN)]
    server, port = await world.host(answer=lambda request: replies.pop(0))
    credential = await world.credential("canary-one")
    arguments = ("-H", f"X-Key: {world.placeholder(credential)}", f"https://{HOST}:{port}/")
    assert await world.curl(*arguments) == "no"
    newer = Draft(kinds.ENVIRONMENT_VARIABLE, Secret({"value": "canary-two"}))
    await world.credentials.update("default", replace(credential, version=1), newer, 0)
    assert await world.curl(*arguments) == "fine"
    assert [request.headers["x-key"] for request in server.requests] == ["canary-one", "canary-two"]
    assert [use.result for _, use in world.said.uses] == ["CREDENTIAL_REVOKED", "ok"]


async def test_no_secret_stays_in_the_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too old to be used goes, although nobody asks for it; what a session had goes at its end."""
    monkeypatch.setattr(purse, "SWEEP_SECONDS", 0.01)
    await world.credential("plain-canary")
    access = world.visit.access
    assert [swap.value.reveal() for swap in await world.purse.swaps(access, HOST)] == ["plain-canary"]
    assert "plain-canary" not in repr(world.purse._kept)
    world.purse.forget(access.session_id)
    assert not world.purse._kept
    monkeypatch.setattr(purse, "KEPT_SECONDS", 0.0)
    await world.purse.swaps(access, HOST)
    assert world.purse._kept
    tidying = asyncio.create_task(world.purse.keep_tidy())
    while world.purse._kept:
        await asyncio.sleep(0.01)
    tidying.cancel()


async def test_a_secret_that_is_bound_to_something_else_is_not_sent(world: World) -> None:
    """Facts that were changed in the vault do not lead a secret to another host."""
    server, port = await world.host("other.example", answer=fine)
    credential = await world.credential("plain-canary")
    path = f"tenants/default/vaults/{credential.vault_id}/credentials/{credential.credential_id}"
    document = await world.store.read(path)
    assert document is not None
    await world.store.write(path, {**document.fields.reveal(), "allowed_hosts": "other.example"}, document.version)
    stands = world.placeholder(credential)
    assert await world.curl("-H", f"X-Key: {stands}", f"https://other.example:{port}/") == "fine"
    assert server.requests[0].headers["x-key"] == stands


async def test_a_vault_that_is_sealed_is_a_503(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For hosts that may have a placeholder or not: nobody can know. It works again without a restart."""
    server, port = await world.host(answer=fine)
    stands = world.placeholder(await world.credential("plain-canary"))

    async def sealed(*_: Any) -> Any:
        raise Unavailable("VAULT_UNAVAILABLE", "the vault is sealed or cannot be reached")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "list", sealed)
        answer = await world.raw(f"CONNECT {HOST}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 503 ") and b"VAULT_UNAVAILABLE" in answer and world.refused() == []
    assert await world.curl("-H", f"X-Key: {stands}", f"https://{HOST}:{port}/") == "fine"
    assert server.requests[0].headers["x-key"] == "plain-canary"


async def test_a_host_with_a_bad_certificate_gets_nothing(world: World, tmp_path: Path) -> None:
    """Of another name, and of an authority that nobody knows: 502 inside, and no credential leaves."""
    server, port = await world.host("wrong.example", answer=fine)
    world.allow(f"{HOST}:{port}")
    stands = world.placeholder(await world.credential("plain-canary"))
    answer = await inside(world, port, f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Key: {stands}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ") and server.requests == [] and world.said.uses == []


async def test_a_host_that_breaks_off_is_a_502(world: World) -> None:
    """The use is told as one without an answer."""
    _, port = await world.host(answer=lambda request: Reply(0, hang_up=True, headers={"\r\n": ""}))
    stands = world.placeholder(await world.credential("plain-canary"))
    answer = await inside(world, port, f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Key: {stands}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert [use.result for _, use in world.said.uses] == ["SERVER_UNAVAILABLE"]


async def test_a_connection_that_its_host_ends_is_ended(world: World) -> None:
    """Between two requests, and under the second one: clients then make it again on a new connection."""
    seen = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")
        if reads_on:
            await reader.readuntil(b"\r\n\r\n")
            seen.set()
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0, ssl=tls_of(world.signer, HOST))
    port = server.sockets[0].getsockname()[1]
    world.allow(f"{HOST}:{port}")
    await world.credential("plain-canary")
    ask = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    for reads_on in (False, True):
        reader, writer = await world.tunnel(port)
        writer.write(ask)
        await reader.readuntil(b"fine")
        if reads_on:
            writer.write(ask)
        assert await reader.read() == b""
    assert seen.is_set()
    server.close()


async def test_tls_inside_names_the_host_of_the_tunnel(world: World) -> None:
    """Where TLS ends at the door too."""
    server, port = await world.host(answer=fine)
    await world.credential("plain-canary")
    with pytest.raises(OSError, match=r"(?i)unrecognized.name"):
        await world.tunnel(port, name="hidden.example")
    assert server.requests == [] and world.refused() == [("hidden.example", "HOST_DENIED")]
