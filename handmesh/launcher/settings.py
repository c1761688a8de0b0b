"""What a one-machine mesh is started with, where its files lie, and what each service is told through its environment.

Pure: values in, values out. The services' own settings modules read the names used here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from handmesh.launcher.nats import NatsFiles
from handmesh.launcher.openbao import approle_file, issuer_key_file
from handmesh.launcher.ports import DATA_DIRECTORY_VARIABLE, HOST, SERVICES, Ports, part_of
from handmesh.launcher.vault_operator import MOUNT

CONFIG_FILE = "HANDMESH_CONFIG_FILE"  # what the launcher says itself counts before what is in it
DEFAULT_CAPACITY = 100
"""Sessions that the harness works on at once."""
DEFAULTS = {"HANDMESH_CAPACITY": str(DEFAULT_CAPACITY), "HANDMESH_LOG_LEVEL": "info"}

INHERITED = ("PATH", "HOME", "LANG")
"""The variables of the caller that children get. All others, keys and tokens among them, stay with the caller."""


@dataclass(frozen=True)
class Claude:
    """The harness talks to the real model. `base_url` None means the API's own address."""

    api_key: str = field(repr=False)
    base_url: str | None = None


@dataclass(frozen=True)
class Scripted:
    """The harness talks to a local server that plays `script`, a YAML file."""

    script: Path


@dataclass(frozen=True)
class MeshSettings:
    """How to start a mesh.

    `caller_environment` is the environment of who starts it (`os.environ`), from which children inherit very little.
    `others` are the ports of the services' other replicas: as many more of each service are started. NATS, OpenBao and
    the scripted model are one each, at `ports`. `extra` adds variables to single services and operators of the store:
    {service: {name: value}}.
    """

    data_directory: Path
    model: Claude | Scripted
    caller_environment: Mapping[str, str] = field(repr=False)
    ports: Ports = field(default_factory=Ports.at)
    others: tuple[Ports, ...] = ()
    capacity: int = DEFAULT_CAPACITY
    log_level: str = "info"
    environments_file: Path | None = None
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    die_with_launcher: bool = True
    metrics: bool = False
    """Whether the services count what they do, and show it on loopback."""
    otlp: str | None = None
    """The OpenTelemetry collector that gets the services' traces, such as http://127.0.0.1:4317."""
    trace_directory: Path | None = None
    """Where each service's replica writes its traces into a file of its own, `<part>.jsonl`."""

    @property
    def replicas(self) -> tuple[Ports, ...]:
        """The ports of all replicas, the first one's first."""
        return (self.ports, *self.others)

    @property
    def services(self) -> list[str]:
        """The services' replicas, by their names as parts: `session`, `harness`, ..., `session-2`, ..."""
        return [part_of(service, replica) for replica in range(len(self.replicas)) for service in SERVICES]

    @property
    def listened_on(self) -> list[int]:
        """The ports that the mesh takes."""
        taken = [*self.ports.as_mapping().items(), *(each for ports in self.others for each in ports.of_services())]
        return [port for name, port in taken if self.metrics or not name.endswith("_metrics")]


@dataclass(frozen=True)
class MeshFiles:
    """Where things lie in the data directory, which is absolute."""

    data_directory: Path

    @property
    def tls(self) -> Path:
        """One directory per service with its certificate, its key and the authority's certificate."""
        return self.data_directory / "tls"

    @property
    def api_keys(self) -> Path:
        """The services' list of client keys."""
        return self.data_directory / "api_keys.json"

    @property
    def api_key(self) -> Path:
        """The key that the `handmesh` command reads."""
        return self.data_directory / "client" / "api_key"

    @property
    def nats(self) -> Path:
        """NATS's directory."""
        return self.data_directory / "nats"

    @property
    def openbao(self) -> Path:
        """OpenBao's directory."""
        return self.data_directory / "openbao"

    def sandbox(self, replica: int = 0) -> Path:
        """What the hands of a replica of the sandbox service keep."""
        return self.data_directory / part_of("sandbox", replica)

    @property
    def model_key(self) -> Path:
        """The model's API key, for the harness alone."""
        return self.data_directory / "model" / "key"

    def log(self, part: str) -> Path:
        """The log file of a part."""
        return self.data_directory / "logs" / f"{part}.log"


def child_environment(settings: MeshSettings) -> dict[str, str]:
    """Returns what every child written in Python gets."""
    caller = settings.caller_environment
    environment = {name: caller[name] for name in INHERITED if name in caller}
    if "PYTHONPATH" in caller:
        # Children run in the data directory, where a relative entry would mean something else.
        entries = [str(Path(entry).absolute()) for entry in caller["PYTHONPATH"].split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(entries)
    if caller.get(CONFIG_FILE):
        environment[CONFIG_FILE] = str(Path(caller[CONFIG_FILE]).absolute())
    environment["PYTHONUNBUFFERED"] = "1"
    environment[DATA_DIRECTORY_VARIABLE] = str(settings.data_directory)
    return environment


def service_environment(service: str, settings: MeshSettings, replica: int = 0) -> dict[str, str]:
    """Returns the whole environment of one of the four services, of its replica of that number, from 0."""
    files = MeshFiles(settings.data_directory)
    ports = settings.replicas[replica]
    environment = child_environment(settings) | {
        "HANDMESH_LISTEN": ports.mesh(service),
        "HANDMESH_CLIENT_LISTEN": ports.client(service),
        "HANDMESH_TLS_DIR": str(files.tls / service),
        "HANDMESH_LOG_LEVEL": settings.log_level,
    }
    if settings.metrics:
        environment["HANDMESH_METRICS_LISTEN"] = ports.metrics(service)
    if settings.otlp is not None:
        environment["HANDMESH_OTLP_ENDPOINT"] = settings.otlp
    if settings.trace_directory is not None:
        file = settings.trace_directory.absolute() / f"{part_of(service, replica)}.jsonl"
        environment["HANDMESH_TRACE_FILE"] = str(file)
    match service:
        case "session":
            environment |= _session(files, settings.ports)
        case "harness":
            environment |= _harness(settings, files)
        case "sandbox":
            environment |= _sandbox(settings, files, replica)
        case "vault_proxy":
            environment |= _vault_proxy(settings, files, replica)
        case _:
            raise ValueError(f"{service!r} is none of the four services")
    if CONFIG_FILE in environment:  # what nobody asked the launcher for is the file's to say
        environment = {name: value for name, value in environment.items() if DEFAULTS.get(name) != value}
    return {**environment, **settings.extra.get(service, {})}


def operator_environment(operator: str, settings: MeshSettings) -> dict[str, str]:
    """Returns the whole environment of `migrate` or `janitor`, which log in to NATS as nobody else does."""
    files = NatsFiles(MeshFiles(settings.data_directory).nats)
    logins = {"migrate": files.migrate_credentials, "janitor": files.janitor_credentials}
    return child_environment(settings) | {
        "HANDMESH_NATS_URL": f"nats://{HOST}:{settings.ports.nats}",
        "HANDMESH_NATS_CREDENTIALS_FILE": str(logins[operator]),
        "HANDMESH_LOG_LEVEL": settings.log_level,
        **settings.extra.get(operator, {}),
    }


def _session(files: MeshFiles, ports: Ports) -> dict[str, str]:
    return {
        "HANDMESH_API_KEYS_FILE": str(files.api_keys),
        "HANDMESH_NATS_URL": f"nats://{HOST}:{ports.nats}",
        "HANDMESH_NATS_CREDENTIALS_FILE": str(NatsFiles(files.nats).session_credentials),
        "HANDMESH_NATS_MONITOR_URL": f"http://{HOST}:{ports.nats_monitor}",
        "HANDMESH_VAULT_ISSUER_KEY_FILE": str(issuer_key_file(files.openbao)),
    }


def _all(service: str, settings: MeshSettings) -> str:
    """Returns where all replicas of a service are, for the others."""
    return ",".join(ports.mesh(service) for ports in settings.replicas)


def _harness(settings: MeshSettings, files: MeshFiles) -> dict[str, str]:
    environment = {
        "HANDMESH_SESSION_ADDRESS": _all("session", settings),
        "HANDMESH_SANDBOX_ADDRESS": _all("sandbox", settings),
        "HANDMESH_VAULT_PROXY_ADDRESS": _all("vault_proxy", settings),
        "HANDMESH_MODEL_KEY_FILE": str(files.model_key),
        "HANDMESH_CAPACITY": str(settings.capacity),
    }
    match settings.model:
        case Claude(base_url=base_url):
            if base_url is not None:
                environment["HANDMESH_MODEL_BASE_URL"] = base_url
        case Scripted():
            environment["HANDMESH_MODEL_BASE_URL"] = f"http://{HOST}:{settings.ports.model}"
    return environment


def _sandbox(settings: MeshSettings, files: MeshFiles, replica: int) -> dict[str, str]:
    environment = {
        "HANDMESH_STATE_DIR": str(files.sandbox(replica)),
        "HANDMESH_SESSION_ADDRESS": _all("session", settings),
        "HANDMESH_VAULT_PROXY_ADDRESS": _all("vault_proxy", settings),
    }
    if settings.others:
        environment["HANDMESH_NODE"] = settings.replicas[replica].mesh("sandbox")
        environment["HANDMESH_SANDBOX_PEERS"] = _all("sandbox", settings)
    if settings.environments_file is not None:
        environment["HANDMESH_ENVIRONMENTS_FILE"] = str(settings.environments_file.absolute())
    return environment


def _vault_proxy(settings: MeshSettings, files: MeshFiles, replica: int) -> dict[str, str]:
    ports = settings.replicas[replica]
    others = ",".join(each.mesh("vault_proxy") for each in settings.replicas if each is not ports)
    return ({"HANDMESH_VAULT_PROXY_REPLICAS": others} if others else {}) | {
        "HANDMESH_SESSION_ADDRESS": _all("session", settings),
        "HANDMESH_VAULT_URL": f"http://{HOST}:{settings.ports.openbao}",
        "HANDMESH_VAULT_APPROLE_FILE": str(approle_file(files.openbao, replica)),
        "HANDMESH_VAULT_MOUNT": MOUNT,
        "HANDMESH_DOOR_LISTEN": f"{HOST}:{ports.vault_proxy_door}",
        "HANDMESH_VAULT_PROXY_DOOR_CA_CERT_FILE": str(files.tls / "doors" / "ca.pem"),
        "HANDMESH_VAULT_PROXY_DOOR_CA_KEY_FILE": str(files.tls / "doors" / "key.pem"),
    }
