"""G25: a sandbox asks its git door for what is not its session's: other repositories, other hosts, other protocols.

Said from inside of a sandbox, on a whole mesh. The door's own words for each are `tests/vault_proxy/doors`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, Resource
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from tests.security.ground import APP, Ground
from tests.security.inside import EGRESS_PORT, get, says, status

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

REFERENCES = "/info/refs?service=git-upload-pack"
BATCH = b'{"operation": "download", "objects": [{"oid": "' + b"0" * 64 + b'", "size": 1}]}'


def post(target: str, body: bytes = b"0000") -> bytes:
    head = get(target, f"Content-Length: {len(body)}", "Content-Type: application/vnd.git-lfs+json", method="POST")
    return head + body


WAYS: dict[str, Callable[[str], bytes]] = {
    "another repository of the owner": lambda host: get(f"/{host}/acme/other{REFERENCES}"),
    "one whose name begins the same": lambda host: get(f"/{host}/acme/app-other{REFERENCES}"),
    "its objects": lambda host: post(f"/{host}/acme/other/git-upload-pack"),
    "a push to it": lambda host: post(f"/{host}/acme/other/git-receive-pack"),
    "its large objects": lambda host: post(f"/{host}/acme/other/info/lfs/objects/batch", BATCH),
    "by dots": lambda host: get(f"/{host}/acme/app/../other{REFERENCES}"),
    "by coded dots": lambda host: get(f"/{host}/acme/app/%2e%2e/other{REFERENCES}"),
    "by a coded slash": lambda host: get(f"/{host}/acme%2fother{REFERENCES}"),
    "by two slashes": lambda host: get(f"//{host}/acme/other{REFERENCES}"),
    "by a backslash": lambda host: get(f"/{host}/acme\\other{REFERENCES}"),
    "by another case": lambda host: get(f"/{host}/Acme/App{REFERENCES}"),
    "by a NUL": lambda host: get(f"/{host}/acme/app\x00/../other{REFERENCES}"),
    "by a semicolon": lambda host: get(f"/{host}/acme/app;/../other{REFERENCES}"),
    "in absolute form": lambda host: get(f"http://{host}/acme/other{REFERENCES}"),
    "in absolute form, its own": lambda host: get(f"http://{host}/{APP}{REFERENCES}"),
    "by another Host": lambda host: get(f"/{host}/acme/other{REFERENCES}", f"X-Forwarded-Host: {host}"),
    "its configuration": lambda host: get(f"/{host}/{APP}/.git/config"),
    "the host's own pages": lambda host: get(f"/{host}/{APP}"),
    "the dumb protocol": lambda host: get(f"/{host}/{APP}/info/refs"),
    "the dumb protocol's objects": lambda host: get(f"/{host}/{APP}/objects/info/packs"),
    "HEAD": lambda host: get(f"/{host}/{APP}/HEAD"),
    "an archive": lambda host: post(f"/{host}/{APP}/git-upload-archive"),
    "another service": lambda host: get(f"/{host}/{APP}/info/refs?service=git-upload-archive"),
    "two services": lambda host: get(f"/{host}/{APP}{REFERENCES}&service=git-receive-pack"),
    "another host": lambda host: get(f"/127.0.0.1:4222/{APP}{REFERENCES}"),
    "the metadata of a cloud": lambda host: get(f"/169.254.169.254/latest/meta-data{REFERENCES}"),
    "a host with a user": lambda host: get(f"/x@{host}/{APP}{REFERENCES}"),
    "another port": lambda host: get(f"/{host.partition(':')[0]}:1/{APP}{REFERENCES}"),
    "a large object of nobody": lambda host: get("/.lfs/" + "A" * 43),
}


async def test_only_the_session_s_repository_is_there(ground: Ground) -> None:
    """Each way is refused with a status, and the host hears nothing of it. The control: the session's own repository is
    cloned through the same door. The session's log says what was refused, for people to see."""
    session, sandbox_id = await ground.behind_doors()
    host = ground.git.authority
    before = len(ground.git.requests)
    answers = await says(ground, sandbox_id, {name: way(host) for name, way in WAYS.items()})
    assert {name: answer[:60] for name, answer in answers.items() if status(answer) not in (400, 403, 404, 405)} == {}
    assert len(ground.git.requests) == before
    assert ground.git.value not in str(answers)
    control = await says(ground, sandbox_id, {"its own": get(f"/{host}/{APP}{REFERENCES}")})
    assert status(control["its own"]) == 200
    assert len(ground.git.requests) == before + 1
    assert ground.git.lets_in(ground.git.requests[-1]), "with the session's credential"
    told = await ground.refusals(session, "REPOSITORY_DENIED")
    assert f"http://{host}/acme/other" in {each.target.replace("https://", "http://") for each in told}


async def test_a_session_without_repositories_has_no_git_door(ground: Ground) -> None:
    """Nobody listens there; and what has no network has no way out either. The control: a session that has both."""
    session = await ground.work("start", hands=("default",), mcp_servers=[])
    [sandbox] = await ground.me.client.sandboxes(session.id)
    ports = "for port in 8417 8418; do (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && echo open; done; echo done"
    assert await ground.run(sandbox.sandbox_id, ports) == "done"
    _, sandbox_id = await ground.behind_doors()
    assert (await ground.run(sandbox_id, ports)).split() == ["open", "open", "done"], "the control"


async def test_another_tenant_s_session_gets_nothing_with_my_repository(ground: Ground) -> None:
    """It names my repository and my vault: no credential, so no sandbox; and the host heard no credential of mine."""
    resource = Resource(mount_path="/workspace/app", git_repository=GitRepository(url=ground.git.url(APP)))
    config = SessionConfig(
        hands={"main": HandSpec(environment="open", resources=[resource])}, vault_ids=[ground.vault_id]
    )
    before = len(ground.git.requests)
    session = await ground.neighbour.client.create_session(config, "start")
    events = await ground.turn(session)
    assert not any(event.HasField("sandbox_provisioned") for event in events)
    assert not any(event.HasField("credential_used") for event in events)
    assert not any(ground.git.lets_in(request) for request in ground.git.requests[before:])


async def test_the_egress_door_leads_to_allowed_hosts_only(ground: Ground) -> None:
    """The counterpart: by CONNECT and by URL, to places inside, to the mesh's own ports, to spellings of loopback."""
    session, sandbox_id = await ground.behind_doors()
    ports = ground.mesh.settings.ports
    inside = [f"127.0.0.1:{ports.openbao}", f"127.0.0.1:{ports.nats}", ports.client("session"), ground.git.authority]
    inside += [
        "169.254.169.254:80",
        "[::1]:443",
        "2130706433:443",
        "127.1:443",
        "localhost.:443",
        f"x@{ground.web_place}",
    ]
    requests = {f"CONNECT {place}": get(place, method="CONNECT") for place in inside}
    requests |= {f"GET {place}": get(f"http://{place}/") for place in inside}
    answers = await says(ground, sandbox_id, requests, EGRESS_PORT)
    assert {name: answer[:60] for name, answer in answers.items() if status(answer) not in (400, 403, 405)} == {}
    assert "you showed" in await ground.browse(sandbox_id, f"https://{ground.web_place}/"), "the control"
    await ground.refusals(session, "HOST_DENIED")
