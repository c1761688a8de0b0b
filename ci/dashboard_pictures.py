"""Draws the dashboards of dashboards/ as pictures, from their own queries over a mesh that works. By hand, not in CI.

python ci/dashboard_pictures.py --prometheus PROGRAM [--seconds 90] [--sessions 12] [--out docs/pictures]

Starts a mesh with metrics and the scripted model, Prometheus (any 3.x) with dashboards/prometheus.yaml for its ports,
and so many sessions that talk one turn after the other; then asks Prometheus what each panel asks, and draws it. Takes
matplotlib and prometheus-client (the extras `bench` and `telemetry`). How to get Prometheus: docs/metrics.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handmesh.client import Client, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import SERVICES, Ports, free_ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.session.v1.config_pb2 import McpServer, SessionConfig
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "dashboards"
SCRAPE_SECONDS, RATE_SECONDS, STEP_SECONDS = 1, 15, 2
READY_SECONDS = 30.0
SCRIPT = """\
conversations:
  - name: work
    when: {user: work}
    steps:
      - say:
          - text: I look around, and write it down.
          - tool_use: {tool: bash, input: {command: "sleep 0.3; ls -la"}}
          - tool_use: {tool: write, input: {file_path: a.txt, content: hello}}
        chunk_delay_ms: 60
      - say:
          - tool_use: {tool: grep, input: {pattern: hello}}
      - say: [{text: "There is a file now, and it says hello. That is all that there is to be said of it."}]
        chunk_delay_ms: 40
  - name: shop
    when: {user: shop}
    steps:
      - say: [{tool_use: {tool: lookup_order, input: {order_id: "7"}}}]
      - say: [{text: "{last_tool_result}"}]
  - name: overloaded
    when: {user: overloaded}
    steps:
      - cases:
          - times: 1
            error: {status: 529, type: overloaded_error, message: Overloaded}
          - say: [{text: There you are.}]
            chunk_delay_ms: 40
"""


@dataclass(frozen=True)
class Asked:
    """What the picture is drawn of."""

    url: str
    start: float
    end: float
    caption: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, help="the program")
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(_pictures(options))


async def _pictures(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "script.yaml").write_text(SCRIPT)
        settings = MeshSettings(
            folder / "mesh",
            Scripted(folder / "script.yaml"),
            os.environ,
            Ports.free(),
            metrics=True,
            extra={"vault_proxy": {"HANDMESH_OUTBOUND_ALLOW": "127.0.0.1"}},
        )
        async with (
            await Mesh.start(settings) as mesh,
            _prometheus(options.prometheus, folder, settings.ports) as url,
            connect(data_directory=mesh.files.data_directory) as client,
            _shop(client, folder) as shop,
        ):
            start = time.time()
            turns = await _work(client, shop, options.sessions, options.seconds)
            await asyncio.sleep(2 * SCRAPE_SECONDS)
            caption = (
                f"Drawn from the dashboard's queries over {options.seconds} s in which {options.sessions} sessions "
                f"ended {turns} turns on one machine, with the scripted model"
            )
            asked = Asked(url, start, time.time(), caption)
            for file in sorted(FOLDER.glob("*.json")):
                await asyncio.to_thread(_draw, json.loads(file.read_text()), asked, options.out / file.stem)
            for sandbox in await client.sandboxes():
                await client.release(sandbox.sandbox_id)


@asynccontextmanager
async def _prometheus(program: str, folder: Path, ports: Ports) -> AsyncIterator[str]:
    """Runs Prometheus with the example's configuration, but for the ports and how often it looks."""
    text = (
        (FOLDER / "prometheus.yaml").read_text().replace("scrape_interval: 5s", f"scrape_interval: {SCRAPE_SECONDS}s")
    )
    for service, port in zip(SERVICES, (7445, 7446, 7447, 7448), strict=True):
        text = text.replace(f"127.0.0.1:{port}", ports.metrics(service))
    (folder / "prometheus.yaml").write_text(text)
    (folder / "alerts.yaml").write_text((FOLDER / "alerts.yaml").read_text())
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    arguments = ["--config.file=prometheus.yaml", f"--web.listen-address={address}", "--log.level=warn"]
    process = await asyncio.create_subprocess_exec(
        program, *arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://{address}"
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not await asyncio.to_thread(_is_ready, url):  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.2)
        yield url
    finally:
        process.terminate()
        await process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@asynccontextmanager
async def _shop(client: Client, folder: Path) -> AsyncIterator[SessionConfig]:
    """Runs an MCP server that wants a credential, and gives the configuration of sessions that use it."""
    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    arguments = ("-m", "handmesh.demo_mcp", "--listen", "127.0.0.1:0", "--token-file", str(folder / "token"))
    server = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = json.loads(await server.stdout.readline())["url"]
        link, stub = client.vault_proxy_link, VaultProxyServiceStub(client.vault_proxy_link.channel)
        vault = (await link.call(stub.CreateVault, pb.CreateVaultRequest(name="shop"))).vault
        secret = pb.CredentialSecret(static_bearer=pb.StaticBearer(value=token))
        origin = url.removesuffix("/mcp")
        add = pb.AddCredentialRequest(vault_id=vault.vault_id, name="shop", origin=origin, secret=secret)
        await link.call(stub.AddCredential, add)
        yield SessionConfig(no_hands=True, mcp_servers=[McpServer(name="shop", url=url)], vault_ids=[vault.vault_id])
    finally:
        server.terminate()
        await server.wait()


async def _work(client: Client, shop: SessionConfig, sessions: int, seconds: float) -> int:
    """Lets sessions work, one turn after the other, a second apart. Returns how many turns ended."""
    ends = time.monotonic() + seconds

    async def one(number: int) -> int:
        await asyncio.sleep(number * seconds / 3 / sessions)  # the load grows
        shops = number % 4 == 3
        said = "shop" if shops else "work"
        first = "overloaded" if number % 6 == 5 else said
        session = await client.create_session(shop if shops else None, first)
        turns = 0
        async for event in session.watch():
            if event.HasField("turn_ended"):
                turns += 1
                if time.monotonic() > ends:
                    break
                await asyncio.sleep(1.0)
                await session.send(said)
        return turns

    return sum(await asyncio.gather(*map(one, range(sessions))))


def _draw(dashboard: dict[str, Any], asked: Asked, out: Path) -> None:
    """Draws one dashboard, as its panels lie."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = dashboard["panels"]
    columns = max(panel["gridPos"]["x"] for panel in panels) // panels[0]["gridPos"]["w"] + 1
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 2.9 * rows), squeeze=False)
    for panel, axis in zip(panels, axes.flat, strict=False):
        _panel(panel, axis, asked)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    figure.suptitle(dashboard["title"], fontsize=15, x=0.01, ha="left", weight="bold")
    figure.text(0.01, 0.004, asked.caption, fontsize=9, color="#666")
    figure.tight_layout(rect=(0, 0.02, 1, 0.985))
    figure.savefig(out.with_suffix(".png"), dpi=70)
    pyplot.close(figure)


def _panel(panel: dict[str, Any], axis: Any, asked: Asked) -> None:
    axis.set_title(f"{panel['title']} [{panel['fieldConfig']['defaults']['unit']}]", fontsize=10, loc="left")
    lines = [line for target in panel["targets"] for line in _lines(target, asked)]
    for legend, times, values in sorted(lines):
        axis.plot([moment - asked.start for moment in times], values, label=legend, linewidth=1.3)
    axis.set_xlim(0, asked.end - asked.start)
    axis.set_ylim(bottom=0)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)
    if lines:
        axis.legend(fontsize=6, loc="upper left", ncols=2 if len(lines) > 4 else 1, framealpha=0.7)
    else:
        axis.text(0.5, 0.5, "nothing to count in this run", ha="center", transform=axis.transAxes, color="#999")


def _lines(target: dict[str, Any], asked: Asked) -> Sequence[tuple[str, list[float], list[float]]]:
    """Asks a panel's query; returns (legend, times, values) of each series that has values."""
    query = target["expr"].replace("$__rate_interval", f"{RATE_SECONDS}s")
    wanted = {"query": query, "start": asked.start, "end": asked.end, "step": STEP_SECONDS}
    with urllib.request.urlopen(f"{asked.url}/api/v1/query_range?{urllib.parse.urlencode(wanted)}") as answer:
        found = json.load(answer)["data"]["result"]
    lines = []
    for series in found:
        points = [(float(at), float(value)) for at, value in series["values"] if value != "NaN"]
        if any(value for _, value in points):
            legend = target["legendFormat"]
            for label, value in series["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            lines.append((legend, [at for at, _ in points], [value for _, value in points]))
    return lines


if __name__ == "__main__":
    main()
