"""A vault that is sealed, stopped or dies while sessions use tools: an error soon, and nothing to restart after.

How soon exactly is measured by bench/vault.py: 2 seconds to the error, 5 until it works again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from services.kit.channels import raised
from services.vault_proxy.mcp import connections
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Start, put_credential, vault_settings
from tests.vault_proxy.strange_server import StrangeServer, strange_server
from tests.vault_proxy.test_servers import failure

pytestmark = pytest.mark.vault
AT_ONCE = 20
SOON = 10.0  # for all of them: one after the other they would take longer

Change = Callable[[OpenBaoServer], Awaitable[None]]


async def seal(bao: OpenBaoServer) -> None:
    """Seals it."""
    await asyncio.to_thread(operator.seal, bao)


async def unseal(bao: OpenBaoServer) -> None:
    """Unseals it."""
    await asyncio.to_thread(operator.unseal, bao)


async def stop(bao: OpenBaoServer) -> None:
    """Stops its process: connections stay open, and nothing answers."""
    os.kill(bao.process.pid, signal.SIGSTOP)


async def go_on(bao: OpenBaoServer) -> None:
    """Lets it go on."""
    os.kill(bao.process.pid, signal.SIGCONT)


@pytest.fixture
async def server() -> AsyncIterator[StrangeServer]:
    """A server that takes any credential."""
    async with strange_server() as strange:
        yield strange


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [(seal, unseal), (stop, go_on), (OpenBaoServer.kill, OpenBaoServer.restart)],
    ids=["sealed", "stopped", "killed"],
)
async def test_a_vault_that_is_away(
    start: Start,
    own_openbao: OpenBaoServer,
    server: StrangeServer,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Change,
    mends: Change,
) -> None:
    """Calls that need it end as VAULT_UNAVAILABLE, many at once as soon as one; others go on; after it is back the next
    call works, in the same process, and no call was made that was told to have failed."""
    monkeypatch.setattr(connections, "CREDENTIAL_SECONDS", 0.0)  # what was looked up before does not help
    vault_id = put_credential(own_openbao, server.url.removesuffix("/mcp"), "value")
    async with start(**vault_settings(own_openbao)) as proxy:
        grant = proxy.peer.grant(McpServer(name="s", url=server.url), vault_ids=(vault_id,))
        without = proxy.peer.grant(McpServer(name="s", url=server.url))
        assert (await proxy.execute(grant, "s__echo", {"text": "1"})).output == "you said 1"
        assert (await proxy.execute(without, "s__echo", {"text": "2"})).output == "you said 2"
        await breaks(own_openbao)
        try:
            async with asyncio.timeout(SOON):
                calls = [failure(proxy.execute(grant, "s__echo", {"text": "no"})) for _ in range(AT_ONCE)]
                assert {problem.reason for problem in await asyncio.gather(*calls)} == {"VAULT_UNAVAILABLE"}
                assert (await proxy.execute(without, "s__echo", {"text": "3"})).output == "you said 3"
        finally:
            await mends(own_openbao)
        async with asyncio.timeout(SOON):
            assert await works_again(proxy, grant) == "you said 4"
    assert [call["arguments"]["text"] for call in server.calls()] == ["1", "2", "3", "4"]


async def works_again(proxy: Proxy, grant: str) -> str:
    """Calls until the vault is there again."""
    while True:
        try:
            return (await proxy.execute(grant, "s__echo", {"text": "4"})).output
        except grpc.aio.AioRpcError as error:
            assert raised(error).reason == "VAULT_UNAVAILABLE"
            await asyncio.sleep(0.05)
