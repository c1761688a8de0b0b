"""Execute of an MCP tool through the vault proxy, beside the same call on a kept MCP session and an echo.

A real mesh, and the demo's shop, which wants a token that only the vault has. Interleaved blocks, one call at a time.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.hands.world import p50, start, timed
from handmesh.demo.stage import SERVER, Stage, mesh_of_its_own, server_address, set_up
from handmesh.launcher.settings import MeshFiles
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import connect
from services.kit.grants import GRANT_KEY

CALLS = 40  # of a block
BLOCKS = {"ci": 6, "full": 30}
ALLOWED_MS = 2.0  # beside the direct call and the echo
BOUND = 1.0
TOOL, ARGUMENTS, INPUT = "weather", {"city": "Rome"}, '{"city": "Rome"}'

Call = Callable[[], Awaitable[Any]]


async def measure(size: str, only: str) -> AsyncIterator[Figure]:
    """Yields the figure."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        server = server_address()
        mesh = await stack.enter_async_context(mesh_of_its_own(folder, server))
        stage = await stack.enter_async_context(set_up(folder, mesh, server))
        world = await stack.enter_async_context(start())
        calls = {
            "execute": await _executes(stage, stack),
            "direct": await _direct(stage, stack),
            "echo": world.echoed,
        }
        rows: dict[str, list[float]] = {name: [] for name in calls}
        for block in range(BLOCKS[size] + 1):
            for name, call in calls.items():
                took = p50(await timed(call, CALLS))
                if block:  # the first one warms up
                    rows[name].append(took)
    allowed = [direct + echo + ALLOWED_MS for direct, echo in zip(rows["direct"], rows["echo"], strict=True)]
    ratios = tuple(took / most for took, most in zip(rows["execute"], allowed, strict=True))
    shown = {f"{name}_p50_ms": round(statistics.median(values), 3) for name, values in rows.items()}
    yield Figure(f"Execute of an MCP tool p50 : direct + echo + {ALLOWED_MS:g} ms", "ratio", ratios, BOUND, more=shown)


async def _executes(stage: Stage, stack: AsyncExitStack) -> Call:
    """Returns a call through the vault proxy, each with an id of its own, as a harness that has woken makes it."""
    files, ports = MeshFiles(stage.data_directory), stage.mesh.settings.ports
    channels = {
        service: await stack.enter_async_context(connect(ports.mesh(service), files.tls / "harness"))
        for service in ("session", "vault_proxy")
    }
    config = config_pb2.SessionConfig(
        mcp_servers=[config_pb2.McpServer(name=SERVER, url=stage.server_url)], vault_ids=[stage.vault_id]
    )
    session = await stage.client.create_session(config)
    woke = event_pb2.Event(
        event_id="bench-woke", harness_woke=event_pb2.HarnessWoke(harness="messages", instance="bench")
    )
    request = session_pb2.EmitEventRequest(session_id=session.id, event=woke, expected_position=1)
    emitting = SessionServiceStub(channels["session"]).EmitEvent(request)  # type: ignore[arg-type]
    await emitting
    grant = next(value for key, value in await emitting.trailing_metadata() if key == GRANT_KEY)
    stub = VaultProxyServiceStub(channels["vault_proxy"])  # type: ignore[arg-type]

    async def call() -> None:
        asked = pb.ExecuteRequest(name=f"{SERVER}__{TOOL}", input=INPUT, execution_id=f"toolu_{uuid.uuid4().hex}")
        said = (await stub.Execute(asked, metadata=((GRANT_KEY, grant),))).result.output
        if "Rome" not in said:
            raise RuntimeError(f"Execute said {said!r}")

    return call


async def _direct(stage: Stage, stack: AsyncExitStack) -> Call:
    """Returns the same call on a session of the MCP library that stays open."""
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    http = await stack.enter_async_context(
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {stage.token}"}, timeout=30)
    )
    client = await stack.enter_async_context(Client(streamable_http_client(stage.server_url, http_client=http)))

    async def call() -> None:
        await client.call_tool(TOOL, ARGUMENTS)

    return call
