"""The reference MCP servers, as their makers publish them: their own streamable HTTP and SSE, and those of a bridge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from handmesh.launcher.ports import free_ports
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1.config_pb2 import McpServer
from tests.support.peers import peer
from tests.support.requirements import PEERS
from tests.vault_proxy.conftest import Proxy, Start

pytestmark = pytest.mark.peers

OK = tool_pb2.TOOL_OUTCOME_OK
BIN = PEERS / "bin"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file and a repository."""
    made = tmp_path_factory.mktemp("peers")
    (made / "note.txt").write_text("remember the milk")
    quiet = {"cwd": made, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", "repo"], **quiet)  # type: ignore[call-overload]
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", "repo", *who, "commit", "--quiet", "--allow-empty", "-m", "first of all"], **quiet)  # type: ignore[call-overload]
    return made


@pytest.fixture(scope="module")
def bridge(directory: Path) -> Iterator[str]:
    """`git`, `time`, `fetch` and `filesystem` speak to pipes only: a bridge serves them over both HTTP transports."""
    [port] = free_ports(1)
    # What `fetch` fetches is the bridge's own page: it refuses loopback unless it is told to.
    files = PEERS / "node_modules" / ".bin" / "mcp-server-filesystem"
    named = {
        "git": f"{BIN}/mcp-server-git --repository {directory}/repo",
        "time": f"{BIN}/mcp-server-time --local-timezone UTC",
        "fetch": f"{BIN}/mcp-server-fetch --ignore-robots-txt --allow-private-ips",
        "filesystem": f"{files} {directory}",
    }
    options = [word for name, command in named.items() for word in ("--named-server", name, command)]
    command = [str(BIN / "mcp-proxy"), "--port", str(port), "--pass-environment", *options]
    with peer(port, command, directory):
        yield f"http://127.0.0.1:{port}/servers"


@pytest.fixture(scope="module", params=["streamableHttp", "sse"])
def everything(request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """The server that has one of everything, over one of its own transports."""
    [port] = free_ports(1)
    program = PEERS / "node_modules" / ".bin" / "mcp-server-everything"
    with peer(port, [str(program), request.param], directory):
        yield f"http://127.0.0.1:{port}/{'sse' if request.param == 'sse' else 'mcp'}"


@pytest.fixture
async def proxy(start: Start) -> AsyncIterator[Proxy]:
    """A vault_proxy with its secrets in memory."""
    async with start() as started:
        yield started


def servers(bridge: str, transport: str) -> list[McpServer]:
    """Returns the bridge's servers over a transport of it."""
    return [McpServer(name=name, url=f"{bridge}/{name}/{transport}") for name in ("git", "time", "fetch", "filesystem")]


@pytest.mark.parametrize("transport", ["mcp", "sse"])
async def test_git_time_fetch_and_filesystem(proxy: Proxy, bridge: str, directory: Path, transport: str) -> None:
    """All are listed in one answer and called at once, in one session."""
    grant = proxy.peer.grant(*servers(bridge, transport))
    listed = await proxy.tools(grant)
    assert list(listed.problems) == []
    names = {tool.name for tool in listed.tools}
    assert {"git__git_log", "time__get_current_time", "fetch__fetch", "filesystem__read_text_file"} <= names
    log, time, page, note, outside = await asyncio.gather(
        proxy.execute(grant, "git__git_log", {"repo_path": f"{directory}/repo"}),
        proxy.execute(grant, "time__get_current_time", {"timezone": "Asia/Tokyo"}),
        proxy.execute(grant, "fetch__fetch", {"url": f"{bridge.removesuffix('/servers')}/status"}),
        proxy.execute(grant, "filesystem__read_text_file", {"path": f"{directory}/note.txt"}),
        proxy.execute(grant, "filesystem__read_text_file", {"path": "/etc/passwd"}),
    )
    assert "first of all" in log.output
    assert "Asia/Tokyo" in time.output
    assert "api_last_activity" in page.output
    assert "remember the milk" in note.output
    assert [each.outcome for each in (log, time, page, note)] == [OK] * 4
    assert outside.outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR


def one(listed: list[str], *names: str) -> str:
    """Returns the tool that is there: its makers have renamed some."""
    return next(name for name in names if name in listed)


async def test_everything(proxy: Proxy, everything: str) -> None:
    """Text, a wrong input, structure and a picture."""
    grant = proxy.peer.grant(McpServer(name="all", url=everything))
    listed = [tool.name for tool in (await proxy.tools(grant)).tools]
    assert (await proxy.execute(grant, "all__echo", {"message": "hi"})).output == "Echo: hi"
    assert (await proxy.execute(grant, "all__echo", {})).outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR
    structured = one(listed, "all__get-structured-content", "all__structuredContent")
    assert "temperature" in json.loads((await proxy.execute(grant, structured, {"location": "New York"})).output)
    picture = await proxy.execute(grant, one(listed, "all__get-tiny-image", "all__getTinyImage"))
    assert "image" in [block["type"] for block in json.loads(picture.content_json)]


async def test_progress_of_everything(proxy: Proxy, everything: str) -> None:
    """A long call is followed while it runs."""
    grant = proxy.peer.grant(McpServer(name="all", url=everything))
    listed = [tool.name for tool in (await proxy.tools(grant)).tools]
    name = one(listed, "all__trigger-long-running-operation", "all__longRunningOperation")
    running = asyncio.ensure_future(proxy.execute(grant, name, {"duration": 0.4, "steps": 4}, "toolu_1"))
    await asyncio.sleep(0)
    said = ""
    while not said:
        with contextlib.suppress(Exception):  # until the call is known
            async for each in proxy.watch(grant, "toolu_1"):
                said += each.chunk
        await asyncio.sleep(0.01)
    assert (await running).outcome == OK
    assert said.startswith("[1/4]")
