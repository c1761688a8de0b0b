"""A mesh whose parts can be taken away, and whose links run through relays; and sessions full of canaries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from handmesh.cli import trace_drawing
from handmesh.cli.trace_json import as_json
from handmesh.client import Client, HandmeshError, Session, connect
from handmesh.diagnosis.gathering import gather
from handmesh.diagnosis.verdict import Diagnosis, diagnosed
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import HOST, Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.session.v1 import config_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from tests.crash.crew import Shop, shop
from tests.support.cut_link import CutLink, cut_link

FOLDER = Path(__file__).parent
CANARY = "canary7f3a9c"
"""In every field that a person or a model fills; some of the script's are in capitals."""
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 40.0


@dataclass
class Ground:
    """The mesh, a client, an MCP server, and the links between services by (caller, callee)."""

    mesh: Mesh
    client: Client
    shop: Shop
    links: dict[tuple[str, str], CutLink]
    vault_id: str
    wrong_vault_id: str

    async def session(self, text: str, **config: object) -> Session:
        """Starts a session with a message and canaries wherever a person may write."""
        made = config_pb2.SessionConfig(
            system=f"{CANARY} system",
            title=f"{CANARY} title",
            labels={f"{CANARY}-label": f"{CANARY} value"},
            hands={f"hand-{CANARY}": config_pb2.HandSpec(description=f"{CANARY} description")},
        )
        made.MergeFrom(config_pb2.SessionConfig(**config))  # type: ignore[arg-type]
        if made.no_hands:
            made.ClearField("hands")
        return await self.client.create_session(made, f"{text}, {CANARY}")

    def servers(self, url: str = "", vault_id: str = "") -> dict[str, object]:
        """Returns the configuration of a session with one MCP server and no hand."""
        server = config_pb2.McpServer(name=f"srv-{CANARY}", url=url or self.shop.url)
        return {"no_hands": True, "mcp_servers": [server], "vault_ids": [vault_id or self.vault_id]}

    async def diagnosis(self, session: Session, turn: int = 0) -> Diagnosis:
        """Asks what is wrong, and proves that no form of the answer shows what somebody wrote."""
        seen = diagnosed(await gather(self.client, session.id), turn)
        await asyncio.to_thread(check_clean, seen)  # not here: the links' relays run in this loop
        return seen

    async def until(self, session: Session, wanted: Callable[[Diagnosis], bool]) -> Diagnosis:
        """Asks again until the answer is the wanted one, and returns it; the last one when that takes too long."""
        seen = diagnosed(await gather(self.client, session.id))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not wanted(seen):
                    await asyncio.sleep(LOOK_SECONDS)
                    seen = diagnosed(await gather(self.client, session.id))
        await asyncio.to_thread(check_clean, seen)
        return seen

    async def logged(self, session: Session, *kinds: str) -> None:
        """Waits until the log has had an event of one of these kinds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in session.watch():
                if event.WhichOneof("kind") in kinds:
                    return

    async def command(self, *arguments: str) -> tuple[int, str]:
        """Runs `handmesh trace`, and returns its exit code and what it printed."""
        data = str(self.mesh.files.data_directory)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "handmesh.cli", "trace", *arguments, "--data-dir", data),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    def signal(self, part: str, number: int) -> None:
        """Sends a part a signal."""
        os.kill(self.mesh.pids[part], number)

    @asynccontextmanager
    async def stopped(self, part: str) -> AsyncIterator[None]:
        """Stops a part, as a machine that stands still does, and lets it go on."""
        self.signal(part, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(part, signal.SIGCONT)

    @asynccontextmanager
    async def killed(self, part: str) -> AsyncIterator[None]:
        """Kills a part, and starts it again."""
        await self.mesh.kill(part)
        try:
            yield
        finally:
            await self.mesh.restart(part)
            await self.whole()

    async def whole(self) -> None:
        """Waits until the client is answered by all services again."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with contextlib.suppress(HandmeshError):
                    await self.client.served_types()
                    await self.client.harness_types()
                    await self.client.sandboxes()
                    return
                await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def cut(self, caller: str, callee: str) -> AsyncIterator[None]:
        """Cuts a link, and mends it."""
        link = self.links[caller, callee]
        link.cut()
        try:
            yield
        finally:
            link.mend()


def forms(seen: Diagnosis) -> dict[str, str]:
    """Returns all forms in which a diagnosis is shown."""
    wide = trace_drawing.recorded(trace_drawing.drawing(seen, 120, every=True, zone=UTC), 120)
    narrow = trace_drawing.recorded(trace_drawing.drawing(seen, 60, every=True, ascii=True, zone=UTC), 60)
    return {
        "120 columns": wide.export_text(clear=False),
        "60 columns in ASCII": narrow.export_text(),
        "svg": trace_drawing.svg_of(wide, "a session"),
        "html": trace_drawing.html_of(wide),
        "json": json.dumps(as_json(seen)),
    }


def check_clean(seen: Diagnosis) -> None:
    """Fails when any form shows a canary: in capitals it is the model's or a tool's, else a person's."""
    for form, text in forms(seen).items():
        assert "canary" not in text.lower(), f"{form} shows what somebody wrote"


@asynccontextmanager
async def ground(directory: Path) -> AsyncIterator[Ground]:
    """Starts all of it, and leaves nothing behind."""
    ports = Ports.free()
    pairs = [("harness", "session"), ("harness", "sandbox"), ("harness", "vault_proxy"), ("sandbox", "session")]
    async with contextlib.AsyncExitStack() as stack:
        links = {pair: await stack.enter_async_context(cut_link(getattr(ports, f"{pair[1]}_mesh"))) for pair in pairs}
        extra: dict[str, dict[str, str]] = {"vault_proxy": {"HANDMESH_OUTBOUND_ALLOW": HOST}}
        for (caller, callee), link in links.items():
            address = f"HANDMESH_{callee.upper()}_ADDRESS"
            extra.setdefault(caller, {})[address] = f"{HOST}:{link.port}"
        extra["harness"] |= {
            "HANDMESH_MODEL_SILENCE_SECONDS": "3",
            "HANDMESH_MODEL_PRELOAD": "1",
            "HANDMESH_LINGER_SECONDS": "0",
        }
        environments = FOLDER / "environments.toml"
        script = Scripted(FOLDER / "script.yaml")
        settings = MeshSettings(
            directory / "mesh", script, os.environ, ports, environments_file=environments, extra=extra
        )
        server = await stack.enter_async_context(shop(directory))
        mesh = await stack.enter_async_context(await Mesh.start(settings))
        client = await stack.enter_async_context(connect(data_directory=settings.data_directory))
        vaults = [await _vault(client, server, value) for value in (server.token, "wrong")]
        yield Ground(mesh, client, server, links, *vaults)
        for sandbox in await client.sandboxes():
            await client.release(sandbox.sandbox_id)  # hands outlive their mesh


async def _vault(client: Client, server: Shop, token: str) -> str:
    made = await client.vaults.create(f"{CANARY} vault {token[:5]}")
    secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=token))
    origin = server.url.removesuffix("/mcp")
    await client.vaults.add(made.vault_id, secret, origin=origin, name=f"{CANARY} credential")
    return made.vault_id


def kill_sandbox_of(argument: str) -> None:
    """Kills the first process of the sandbox in which one with this argument runs, and so all that is in it."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                os.kill(_first_of(int(entry.name)), signal.SIGKILL)
                return
    raise AssertionError(f"no process has the argument {argument}")


def _first_of(pid: int) -> int:
    """Returns the first process of a sandbox: the one right below bubblewrap."""
    while pid > 1:
        above = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"bwrap" in Path(f"/proc/{above}/cmdline").read_bytes().split(b"\0")[0]:
            return pid
        pid = above
    raise AssertionError("no bubblewrap is around it")
