"""G30: a sandbox abuses its doors' protocol: refused with a status, within bounds, and nobody else notices.

Each form against the git door alone, with its bounds made small, is `tests/vault_proxy/doors/test_git_abuse.py`; the
egress door's are `test_egress.py` beside it.
"""

from __future__ import annotations

import asyncio

import pytest

from handmesh.sandbox.v1 import sandbox_pb2
from tests.drills.size import size
from tests.security.ground import APP, Ground
from tests.security.inside import EGRESS_PORT, get, says, status

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

IDLE = size(80, 500)
BYTES = size(1_000_000, 20_000_000)


def abuses(target: str) -> dict[str, bytes]:
    """Returns requests that no honest client makes, for a target."""
    line, post = f"GET {target} HTTP/1.1\r\nHost: a\r\n", f"POST {target} HTTP/1.1\r\nHost: a\r\n"
    return {
        name: text.encode("latin-1")
        for name, text in {
            "two lengths": f"{post}Content-Length: 4\r\nContent-Length: 5\r\n\r\n0000",
            "length and chunks": f"{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "chunks, spelled oddly": f"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            "chunks twice": f"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "a length that is none": f"{post}Content-Length: +4\r\n\r\n0000",
            "a length below nothing": f"{post}Content-Length: -1\r\n\r\n",
            "ten gigabytes": f"{post}Content-Length: 10000000000\r\n\r\n",
            "a line that folds": f"{line}X: a\r\n b\r\n\r\n",
            "bare line feeds": f"GET {target} HTTP/1.1\nHost: a\n\n\r\n\r\n",
            "two hosts": f"{line}Host: b\r\n\r\n",
            "a space before the colon": f"{line}X : a\r\n\r\n",
            "HTTP/0.9": f"GET {target}\r\n\r\n",
            "HTTP/1.0": f"GET {target} HTTP/1.0\r\n\r\n",
            "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "TRACE": f"TRACE {target} HTTP/1.1\r\nHost: a\r\n\r\n",
            "a head without end": line + "X: " + "x" * BYTES + "\r\n\r\n",
            "no text at all": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\x00" * 60 + "\r\n\r\n",
        }.items()
    }


# What an allowed host may be told: its answer counts, and what a connection carries is limited as it goes. What is
# read leniently is written anew, so that the host reads the same.
ALLOWED_OUT = {"ten gigabytes", "HTTP/1.0", "TRACE", "a line that folds", "bare line feeds"}
REFUSALS = {400, 403, 404, 405, 408, 411, 413, 414, 417, 431, 501, 505}


def refused(name: str, answer: str) -> bool:
    """Says whether a door refused: with a status, which one that does not stop to speak may lose by a reset."""
    return status(answer) in REFUSALS or (name == "a head without end" and answer.endswith("Error"))


async def test_what_no_honest_client_says_is_refused_by_the_git_door(ground: Ground) -> None:
    """With a status, by a door that goes on: the host hears nothing. The control: what follows is served, one request
    for each connection, whatever is said behind it."""
    _, sandbox_id = await ground.behind_doors()
    references = f"/{ground.git.authority}/{APP}/info/refs?service=git-upload-pack"
    before = len(ground.git.requests)
    wrong = abuses(references)
    wrong["CONNECT"] = get(ground.git.authority, method="CONNECT")
    answers = await says(ground, sandbox_id, wrong)
    assert {name: answer[:80] for name, answer in answers.items() if not refused(name, answer)} == {}
    assert len(ground.git.requests) == before
    pipelined = await says(ground, sandbox_id, {"three": get(references) * 3})
    assert pipelined["three"].count("HTTP/1.1 ") == 1, "the control"
    assert len(ground.git.requests) == before + 1


async def test_what_no_honest_client_says_is_refused_by_the_egress_door(ground: Ground) -> None:
    """The counterpart, for a host that is allowed; it hears nothing."""
    _, sandbox_id = await ground.behind_doors()
    web = ground.web.url.removeprefix("https://").removesuffix("/mcp")
    before = ground.web.connections
    wrong = {name: said for name, said in abuses(f"http://{web}/").items() if name not in ALLOWED_OUT}
    answers = await says(ground, sandbox_id, wrong, EGRESS_PORT)
    assert {name: answer[:80] for name, answer in answers.items() if not refused(name, answer)} == {}
    assert ground.web.connections == before
    assert "you showed" in await ground.browse(sandbox_id, f"https://{ground.web_place}/"), "the control"


HOLD = f"""
python3 - <<'END'
import os, socket, time
held = []
for port in (8417, 8418):
    for _ in range({IDLE}):
        try: held.append(socket.create_connection(("127.0.0.1", port), 2))
        except OSError: break
print(len(held), flush=True)
open("/workspace/held", "w").close()
while not os.path.exists("/workspace/go"): time.sleep(0.05)
END
"""


async def test_idle_connections_hold_up_nobody_else(ground: Ground) -> None:
    """One sandbox holds hundreds of connections that say nothing: another session fetches and asks the web meanwhile,
    and the first one's doors work again when they are gone."""
    _, first = await ground.behind_doors()
    _, second = await ground.behind_doors()
    fetch, url = "cd ~/app && git fetch -q && git ls-remote origin HEAD", f"https://{ground.web_place}/"
    holding = asyncio.ensure_future(ground.run(first, HOLD))
    while "held" not in [each.path.rpartition("/")[2] for each in (await ground.me.client.files(first)).files]:
        await asyncio.sleep(0.05)
    assert "HEAD" in await ground.run(second, fetch)
    assert "you showed" in await ground.browse(second, url)
    call = sandbox_pb2.ExecuteRequest(sandbox_id=first, name="write", input='{"file_path": "go", "content": "x"}')
    await ground.me.client.sandbox_link.call(ground.me.client.sandbox_stub.Execute, call)
    assert int((await holding).split()[0]) > 0, "the control: connections were held"
    assert "HEAD" in await ground.run(first, fetch)
    assert "you showed" in await ground.browse(first, url)
