"""Large objects through the git door: by the protocol, and by the real git-lfs."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vault_proxy.core import git_lfs
from services.vault_proxy.core.git_lfs import Action, Batch, BatchRefused, Entry, batch_of, entries_of
from services.vault_proxy.doors import git_lfs as large_objects
from tests.vault_proxy.doors.conftest import NAME, World

CONTENT = b"a large object\n" * 1000
OID = hashlib.sha256(CONTENT).hexdigest()
MEDIA = "application/vnd.git-lfs+json"


async def batch(world: World, operation: str, oid: str = OID, size: int = len(CONTENT)) -> tuple[int, Any]:
    """Asks the door for an object, as git-lfs does."""
    said = {"operation": operation, "transfers": ["basic", "x"], "objects": [{"oid": oid, "size": size}]}
    at = f"/{world.host.authority}/{NAME}.git/info/lfs/objects/batch"
    types = (f"Accept: {MEDIA}", f"Content-Type: {MEDIA}")
    status, body = await world.box.ask("POST", at, json.dumps(said).encode(), *types)
    return status, json.loads(body) if status == 200 else body


def place(answer: Any, name: str) -> str:
    """Returns the path of an action's place, which is at the door."""
    href = answer["objects"][0]["actions"][name]["href"]
    assert href.startswith("http://127.0.0.1:8417/.lfs/")
    return str(href.removeprefix("http://127.0.0.1:8417"))


def chunks(body: bytes) -> bytes:
    """Puts a chunked body together."""
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return whole


async def test_an_object_is_put_verified_and_got(small_world: World) -> None:
    """At places of the door: what the host hands out for them stays outside."""
    world = small_world
    status, answer = await batch(world, "upload")
    assert status == 200 and world.host.large_value not in json.dumps(answer)
    assert (await world.box.ask("PUT", place(answer, "upload"), CONTENT))[0] == 200
    said = json.dumps({"oid": OID, "size": len(CONTENT)}).encode()
    assert (await world.box.ask("POST", place(answer, "verify"), said))[0] == 200
    assert world.host.large == {OID: CONTENT}
    _, answer = await batch(world, "download")
    status, got = await world.box.ask("GET", place(answer, "download"))
    assert status == 200 and chunks(got) == CONTENT
    authorizations = {request.headers["authorization"] for request in world.host.requests if "/large/" in request.path}
    assert authorizations == {f"RemoteAuth {world.host.large_value}"}


async def test_an_object_is_put_as_large_as_was_said(small_world: World) -> None:
    """Another length, another method, another session and an id that never was are refused."""
    world = small_world
    _, answer = await batch(world, "upload")
    at = place(answer, "upload")
    assert (await world.box.ask("PUT", at, CONTENT + b"x"))[0] == 400
    assert (await world.box.ask("GET", at))[0] == 405
    assert (await world.box.ask("GET", "/.lfs/" + "a" * 43))[0] == 404
    mine = world.box.grant
    world.box.grant = world.proxy.peer.grant(git_rules=tuple(world.proxy.peer.grants[mine].git_rules))
    assert (await world.box.ask("PUT", at, CONTENT))[0] == 404
    world.box.grant = mine
    assert world.host.large == {}
    assert (await world.box.ask("PUT", at, CONTENT))[0] == 200


async def test_an_object_is_for_a_while(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the client asks anew."""
    monkeypatch.setattr(large_objects, "ACTION_SECONDS", -1.0)
    _, answer = await batch(small_world, "upload")
    assert (await small_world.box.ask("PUT", place(answer, "upload"), CONTENT))[0] == 404


async def test_a_session_that_may_not_push_uploads_nothing(small_world: World) -> None:
    """It may download, and is told of what is not there in the protocol's own words."""
    world = small_world
    world.proxy.peer.grants[world.box.grant].git_rules[0].ClearField("push_patterns")
    status, said = await batch(world, "upload")
    assert status == 403 and b"REFERENCE_DENIED" in said
    _, answer = await batch(world, "download")
    assert answer["objects"][0]["error"]["code"] == 404


@pytest.mark.parametrize(
    "href", ["http://127.0.0.1:9/x", "http://169.254.169.254/x", "file:///etc/passwd", "https://[::1]/"]
)
async def test_a_place_that_may_not_be_called_is_not_called(small_world: World, href: str) -> None:
    """Whatever the host says: the rules for addresses hold for large objects, too."""
    told = {"oid": OID, "size": len(CONTENT), "actions": {"download": {"href": href}}}
    said = json.dumps({"objects": [told]}).encode()
    small_world.host.strange = lambda request: (200, [("Content-Type", MEDIA)], said)
    _, answer = await batch(small_world, "download")
    status, _ = await small_world.box.ask("GET", place(answer, "download"))
    assert status in (403, 502)


async def test_the_credential_is_for_its_own_host_alone(small_world: World) -> None:
    """A place on the repository's host without a header gets the session's credential; one elsewhere does not."""
    world = small_world
    seen = []

    def strange(request: Any) -> tuple[int, list[tuple[str, str]], bytes]:
        seen.append((request.path, "authorization" in request.headers))
        where = world.host.origin if len(seen) < 3 else world.host.origin.replace("127.0.0.1", "localhost")
        told = {"oid": OID, "size": len(CONTENT), "actions": {"download": {"href": f"{where}/elsewhere"}}}
        return 200, [("Content-Type", MEDIA)], json.dumps({"objects": [told]}).encode()

    world.host.strange = strange
    for _ in range(2):
        _, answer = await batch(world, "download")
        await world.box.ask("GET", place(answer, "download"))
    assert [shown for path, shown in seen if path == "/elsewhere"] in ([True, False], [True])


SOME = {"oid": OID, "size": 3}


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        {"operation": "delete", "objects": [SOME]},
        {"operation": "download", "objects": []},
        {"operation": "download", "objects": [SOME] * (git_lfs.MOST_OBJECTS + 1)},
        {"operation": "download", "objects": [{"oid": "../" + OID[3:], "size": 3}]},
        {"operation": "download", "objects": [{"oid": OID, "size": -1}]},
        {"operation": "download", "objects": [{"oid": OID, "size": True}]},
        {"operation": "download", "objects": [SOME], "hash_algo": "md5"},
    ],
)
def test_what_is_no_batch_is_refused(said: Any) -> None:
    """Before the host hears of it."""
    with pytest.raises(BatchRefused):
        batch_of(said if isinstance(said, bytes) else json.dumps(said).encode())


def test_a_host_answers_what_was_asked_and_nothing_else() -> None:
    """Objects that nobody asked for, actions that have no meaning, and headers that are none do not count."""
    asked = Batch("download", {OID: 3})
    where = {"href": "https://x.example/y", "header": {"Authorization": "z"}, "expires_in": 5}
    told = [{**SOME, "actions": {"download": where, "upload": where}}, {"oid": "0" * 64, "size": 1}]
    found = list(entries_of(json.dumps({"objects": told}).encode(), asked))
    assert found == [Entry(OID, 3, (Action("download", OID, 3, "https://x.example/y", (("Authorization", "z"),)),))]
    assert "Authorization" not in repr(found) and "x.example" not in repr(found)
    for header in ({"A b": "c"}, {"A": "b\r\nC: d"}, {"A": 1}, {str(at): "" for at in range(40)}, []):
        bad = {**SOME, "actions": {"download": {"href": "https://x.example/y", "header": header}}}
        with pytest.raises(BatchRefused):
            list(entries_of(json.dumps({"objects": [bad]}).encode(), asked))


@given(
    st.binary(max_size=100)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_whatever_a_host_says_is_read_or_refused(data: bytes) -> None:
    """Nothing else is raised."""
    try:
        list(entries_of(data, Batch("download", {OID: 3})))
    except BatchRefused:
        return


@pytest.mark.lfs
async def test_the_real_client(small_world: World) -> None:
    """Pushes a large object and clones it: what is checked out is what was committed."""
    world = small_world
    (world.box.folder / "tmp").mkdir()
    world.box.environment["TMPDIR"] = str(world.box.folder / "tmp")
    await world.box.ok("lfs", "install", "--skip-repo")
    await world.box.ok("clone", "--quiet", world.host.url(NAME), "app")
    await world.box.ok("lfs", "track", "*.bin", cwd="app")
    content = os.urandom(1 << 20)
    await world.box.commit("app", "large.bin", content)
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/large", cwd="app")
    assert list(world.host.large.values()) == [content]
    await world.box.ok("clone", "--quiet", "--branch", "agent/large", world.host.url(NAME), "again")
    assert (world.box.folder / "again" / "large.bin").read_bytes() == content
