"""G29: after clones, pushes and calls of the web with credentials, these are nowhere but at the hosts they are for.

The placeholder of a variable is all that a sandbox has of it. What hosts say back is taken out on the way, which is a
tripwire; that a credential goes to its own host only is the boundary.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.drills.size import FULL
from tests.security.ground import VARIABLE, Ground
from tests.security.test_s01_canary_sweep import look_everywhere
from tests.support.canary import Sweep, core, hits
from tests.support.git_host import Request

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

ADVERTISED = b"001e# service=git-upload-pack\n0000"
LOUD = "export GIT_TRACE=1 GIT_TRACE_CURL=1 GIT_TRACE_PACKET=1 GIT_CURL_VERBOSE=1 GIT_TRACE_CURL_NO_DATA=0"
WORK = f"""
{LOUD}; cd ~/app && git config user.name a && git config user.email a@a && echo $RANDOM > one && git add one &&
git commit -q -m one && git push origin HEAD:refs/heads/agent/$RANDOM && git fetch && git clone $(git config \
remote.origin.url) ~/again; git credential fill < /dev/null
"""
SWEEP = """
(env; set; cat /proc/*/environ /proc/*/cmdline; find /workspace /run /tmp /etc /dev/shm -type f -exec cat {} +
) 2>/dev/null | grep -ac 'NEEDLE'
"""


async def swept(ground: Ground, sandbox_id: str, needle: str) -> int:
    """Counts what a sandbox finds of a text. What it runs for that does not have the text itself in it."""
    pattern = f"{needle[:-1]}[{needle[-1]}]"
    return int((await ground.run(sandbox_id, SWEEP.replace("NEEDLE", pattern))).split()[0])


@pytest.mark.parametrize("hand", ["open", *([pytest.param("open-docker", marks=pytest.mark.docker)] if FULL else [])])
async def test_after_work_the_credentials_are_nowhere(ground: Ground, hand: str) -> None:
    """Not in what git and curl print at their loudest, in the sandbox, in the session's log, in any sink of the mesh.
    The controls: both hosts had them; what is planted in the sandbox is found by the same sweeps."""
    session, sandbox_id = await ground.behind_doors(hand)
    before = len(ground.git.requests)
    said = await ground.run(sandbox_id, WORK)
    assert "new branch" in said, said[-2000:]
    key = f"${VARIABLE}"
    said += await ground.browse(
        sandbox_id, f"https://{ground.web_place}/", f"Authorization: Bearer {key}", f"X-Api-Key: {key}"
    )
    assert "you showed Bearer" in said
    requests = ground.git.requests[before:]
    assert len(requests) > 5 and all(ground.git.lets_in(request) for request in requests), "the control: git's host"
    shown = ground.web.requests[-1].headers
    assert ground.cores["credentials"] in shown["authorization"], "the control: the web server"
    assert ground.cores["credentials"] in shown["x-api-key"]
    assert hits(ground.cores["credentials"], said) == []
    basic = base64.b64encode(f"{ground.git.user}:{ground.git.value}".encode()).decode()
    assert basic[:24] not in said
    assert await swept(ground, sandbox_id, ground.cores["credentials"]) == 0
    sweep = Sweep(ground.cores)
    await look_everywhere(ground, sweep)
    assert sweep.found == []
    planted = core()
    await ground.run(sandbox_id, f"echo {planted} > ~/app/planted")
    assert await swept(ground, sandbox_id, planted) > 0, "the control"
    await ground.refusals(session)


async def test_a_placeholder_is_worth_nothing_elsewhere(ground: Ground) -> None:
    """At its host it becomes the secret. At another host, in a URL, and from another session it stays as it is."""
    _, mine = await ground.behind_doors()
    _, other = await ground.behind_doors()
    web, elsewhere = ground.web_place, ground.web_place.replace("localhost", "127.0.0.1")
    placeholder = await ground.run(mine, f"echo ${VARIABLE}")
    assert placeholder.startswith("hm_placeholder_")
    assert placeholder != await ground.run(other, f"echo ${VARIABLE}"), "each session has its own"
    shown, seen = f"Authorization: Bearer {placeholder}", len(ground.web.requests)
    for sandbox_id, url, header in (
        (mine, f"https://{elsewhere}/", shown),
        (mine, f"https://{web}/?key={placeholder}", "Accept: text/plain"),
        (mine, f"https://{web}/", f"Referer: {placeholder}"),
        (other, f"https://{web}/", shown),
    ):
        assert "you showed" in await ground.browse(sandbox_id, url, header), url
    assert len(ground.web.requests) == seen + 4
    assert not any(hits(ground.cores["credentials"], repr(request)) for request in ground.web.requests[seen:])
    assert all(placeholder in repr(request) for request in ground.web.requests[seen:]), "it came as it was"
    said = await ground.browse(mine, f"https://{web}/", shown)
    assert hits(ground.cores["credentials"], repr(ground.web.requests[-1])), "the control: at its host"
    assert hits(ground.cores["credentials"], said) == []


Strange = tuple[int, list[tuple[str, str]], bytes]


async def test_what_a_git_host_says_back_stays_outside(ground: Ground) -> None:
    """In a header, a page, a redirect's place, a challenge, its own protocol: git in the sandbox prints nothing of it,
    follows nothing, and keeps nothing."""
    _, sandbox_id = await ground.behind_doors()
    advertised = ("Content-Type", "application/x-git-upload-pack-advertisement")
    places: list[Any] = []

    def strange(request: Request) -> Strange | None:
        secret = request.headers.get("authorization", "")
        places.append(request.path)
        return {
            "header": (
                200,
                [advertised, ("X-Secret", secret), ("Set-Cookie", secret)],
                b"001e# service=git-upload-pack\n0000",
            ),
            "page": (200, [("Content-Type", "text/html")], secret.encode()),
            "redirect": (302, [("Location", f"http://127.0.0.1:9/{ground.git.value}")], b""),
            "challenge": (401, [("WWW-Authenticate", f'Basic realm="{secret}"')], secret.encode()),
            "error": (500, [("Content-Type", "text/plain")], secret.encode()),
            "side band": (200, [advertised], ADVERTISED + secret.encode()),
        }[where]

    try:
        ground.git.strange = strange
        for where in ("header", "page", "redirect", "challenge", "error", "side band"):
            places.clear()
            said = await ground.run(sandbox_id, f"{LOUD}; cd ~/app; git ls-remote origin 2>&1")
            assert places, f"the control: {where} was asked"
            assert hits(ground.cores["credentials"], said) == [], where
            assert "uthorization: Basic" not in said and "X-Secret" not in said
    finally:
        ground.git.strange = lambda request: None
    assert await swept(ground, sandbox_id, ground.cores["credentials"]) == 0
    assert "refs/heads/main" in await ground.run(sandbox_id, "cd ~/app; git ls-remote origin"), "the control"
