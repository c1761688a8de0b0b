"""Starts a mesh, keeps it whole, and stops it: the body of `handmesh up`.

A part that ends by itself is started again: everything that matters is in the log, so the sessions go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from handmesh.cli.arguments import UsageError
from handmesh.cli.printing import console
from handmesh.client import HandmeshError, connect
from handmesh.client import settings as client_settings
from handmesh.client.addresses import Addresses
from handmesh.client.health import listens
from handmesh.launcher.errors import AlreadyRunning
from handmesh.launcher.lock import running
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import DEFAULT_BASE, HOST, SERVICES, Ports, part_of
from handmesh.launcher.settings import Claude, MeshSettings, Scripted

API_KEY, BASE_URL = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
ALLOW_UNISOLATED, DOCKER_HOST = "HANDMESH_ALLOW_UNISOLATED", "DOCKER_HOST"
OUTBOUND_ALLOW = "HANDMESH_OUTBOUND_ALLOW"
PACKAGE_HOSTS = "HANDMESH_VAULT_PROXY_PACKAGE_HOSTS"
PRICES_FILE = "HANDMESH_MODEL_PRICES_FILE"
HARNESS_TYPES = "HANDMESH_HARNESS_TYPES"

LOOK_EVERY = 0.05
"""Seconds between two looks at which parts are up, while a person waits."""

MOST_RESTARTS, RESTARTS_WITHIN = 5, 60.0
"""So many ends of parts within so many seconds, and the mesh is stopped instead of mended."""

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class UpOptions:
    """What `handmesh up` was told."""

    port_base: int = DEFAULT_BASE
    model_script: Path | None = None
    environments: Path | None = None
    allow_unisolated: bool = False
    log_level: str = "info"
    replicas: int = 1
    metrics: bool = False
    otlp: str | None = None
    trace_directory: Path | None = None


def settings_of(data_directory: Path, options: UpOptions) -> MeshSettings:
    """Makes the launcher's settings from the options and the environment. Raises UsageError."""
    from handmesh.scripted_model.reading import DEFAULT_SCRIPT

    if options.log_level not in LOG_LEVELS:
        raise UsageError(f"--log-level {options.log_level!r}: expected one of {', '.join(LOG_LEVELS)}")
    try:
        ports, *others = Ports.of_replicas(options.port_base, options.replicas)
    except ValueError as problem:
        raise UsageError(f"--port-base, --replicas: {problem}") from None
    api_key = os.environ.get(API_KEY, "")
    model: Claude | Scripted = Scripted(options.model_script or DEFAULT_SCRIPT)
    if api_key and options.model_script is None:
        model = Claude(api_key, os.environ.get(BASE_URL) or None)
    return MeshSettings(
        data_directory=data_directory,
        model=model,
        caller_environment=os.environ,
        ports=ports,
        others=tuple(others),
        log_level=options.log_level,
        environments_file=options.environments,
        metrics=options.metrics,
        otlp=_collector(options.otlp),
        trace_directory=options.trace_directory,
        extra={
            "sandbox": _sandbox_variables(options),
            "vault_proxy": _handed_on(OUTBOUND_ALLOW) | _handed_on(PACKAGE_HOSTS),
            "harness": _harness_variables(),
        },
    )


def _collector(address: str | None) -> str | None:
    """Returns where the collector is: `host:port` is one in plain text. Raises UsageError."""
    if address is None or address.startswith(("http://", "https://")):
        return address
    if not address.rpartition(":")[2].isdecimal() or "/" in address:
        raise UsageError(f"--otlp {address!r}: expected HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    return f"http://{address}"


def _harness_variables() -> dict[str, str]:
    """Returns what the harness is told besides: prices, and which types it is."""
    prices = {name: str(Path(file).absolute()) for name, file in _handed_on(PRICES_FILE).items()}
    return prices | _handed_on(HARNESS_TYPES)


def _sandbox_variables(options: UpOptions) -> dict[str, str]:
    """Returns what the sandbox service is told besides: where Docker is, and whether no isolation will do."""
    variables = {ALLOW_UNISOLATED: "1"} if options.allow_unisolated or os.environ.get(ALLOW_UNISOLATED) == "1" else {}
    return variables | _handed_on(DOCKER_HOST)


def _handed_on(variable: str) -> dict[str, str]:
    """Returns a variable of the caller for a service, if it is set there: children inherit next to none."""
    return {variable: os.environ[variable]} if os.environ.get(variable) else {}


async def hold_up(settings: MeshSettings) -> int:
    """Starts the mesh, says what to do with it, and keeps it up until a signal; returns the exit code."""
    out = console(stderr=True)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told.set)
    began = loop.time()
    mesh = await _started(settings, told, out)
    if mesh is None:
        return 0
    async with mesh:
        out.print(welcome(settings, loop.time() - began), soft_wrap=True)
        try:
            await _keep_whole(mesh, told, out)
        finally:
            hands = await _hands(mesh)
            out.print("stopping ...", style="dim")
    out.print(f"stopped. The state is kept{_stay(hands, settings.data_directory)}.", style="dim")
    return 0


async def _hands(mesh: Mesh) -> int:
    """Returns how many hands stand now, which the end of the mesh does not end; 0 when the service does not say."""
    try:
        async with connect(data_directory=mesh.settings.data_directory) as client:
            return len(await client.sandboxes())
    except HandmeshError:
        return 0


def _stay(hands: int, data_directory: Path) -> str:
    if not hands:
        return ""
    ending = f"`handmesh down --release{option_of(data_directory)}` would have ended them"
    return f", and its hands ({hands}) stand for the next up; {ending}"


async def _started(settings: MeshSettings, told: asyncio.Event, out: Console) -> Mesh | None:
    """Starts the mesh and shows how far it is; None when a signal came first, and then nothing runs."""
    starting = asyncio.create_task(_start(settings))
    showing = asyncio.create_task(_show_progress(settings, out))
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (showing, waiting):
            task.cancel()
        await asyncio.gather(showing, waiting, return_exceptions=True)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    return None if starting.cancelled() else starting.result()


async def _start(settings: MeshSettings) -> Mesh:
    try:
        return await Mesh.start(settings)
    except AlreadyRunning as holder:
        mesh = running(settings.data_directory)
        where = f", sessions at {mesh.ports.client('session')}" if mesh is not None else ""
        text = f"{holder}{where}. Use it, or stop it with: handmesh down{option_of(settings.data_directory)}"
        raise AlreadyRunning(text, holder.pid) from None


async def _show_progress(settings: MeshSettings, out: Console) -> None:
    """Shows which parts listen already, until cancelled."""
    ports = dict(settings.ports.as_mapping()) | {
        part_of(service, at): each.as_mapping()[service]
        for at, each in enumerate(settings.replicas)
        for service in SERVICES
    }
    left = ["nats", "openbao", *settings.services, *(["model"] if isinstance(settings.model, Scripted) else [])]
    with out.status("starting") as status:
        while left:
            status.update(f"starting {', '.join(left)}")
            left = [part for part in left if not await listens(f"{HOST}:{ports[part]}")]
            await asyncio.sleep(LOOK_EVERY)


async def _keep_whole(mesh: Mesh, told: asyncio.Event, out: Console) -> None:
    """Starts parts again that end, until told to stop. Raises PartFailed when they end too often."""
    loop = asyncio.get_running_loop()
    ends = deque[float](maxlen=MOST_RESTARTS)
    waiting = asyncio.create_task(told.wait())
    try:
        while not told.is_set():
            losing = asyncio.create_task(mesh.lost())
            await asyncio.wait({losing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not losing.done():
                losing.cancel()
                await asyncio.gather(losing, return_exceptions=True)
                return
            lost = losing.result()
            ends.append(loop.time())
            if len(ends) == MOST_RESTARTS and ends[-1] - ends[0] < RESTARTS_WITHIN:
                raise lost
            out.print(f"{lost.part} has ended; starting it again (its log: {lost.log})", style="yellow")
            await mesh.restart(lost.part)
            out.print(f"{lost.part} is up again", style="yellow")
    finally:
        waiting.cancel()


def option_of(data_directory: Path) -> str:
    """Returns what a command must be told to find this data directory; nothing when it is the default."""
    return "" if data_directory == client_settings.read().data_directory else f" --data-dir {data_directory}"


def welcome(settings: MeshSettings, seconds: float) -> str:
    """Returns what a person wants to know when the mesh is up."""
    ports, option = settings.ports, option_of(settings.data_directory)
    match settings.model:
        case Claude(base_url=base_url):
            model = f"Claude{f' at {base_url}' if base_url else ''}"
        case Scripted(script=script):
            model = f"scripted: {script.name} (set {API_KEY} to talk to Claude)"
    found = Addresses.of_ports(*settings.replicas)
    services = "\n".join(f"  {service:<12} {getattr(found, service).replace(',', ', ')}" for service in SERVICES)
    counted = ", ".join(f"http://{each.metrics(service)}/metrics" for each in settings.replicas for service in SERVICES)
    metrics = f"\n  {'metrics':<12} {counted}" if settings.metrics else ""
    return f"""\
handmesh is up after {seconds:.1f} s
{services}
  {"model":<12} {model}
  {"data":<12} {settings.data_directory}{metrics}
Now, in another terminal:
  handmesh run "list the files"{option}
  handmesh sessions{option}
  grpcurl -plaintext -H "authorization: Bearer $(handmesh key{option})" {ports.client("session")} list
Ctrl-C stops it."""
