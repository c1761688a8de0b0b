"""The parts of a mesh in containers: how they are called, where they listen, and which files each gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from handmesh.launcher.ports import SERVICES

REPLICAS = 9
"""Of a service, for whose names its certificate is good: `session`, `session-2`, ..., `session-9`."""

EVERYWHERE = "0.0.0.0"
GIVEN = Path("/run/handmesh")
"""Where each container finds what it was given."""

DATA = Path("/data")
"""Where the stores' containers keep theirs."""

NATS_NODES = ("nats-1", "nats-2", "nats-3")
NATS_PORT, NATS_MONITOR_PORT, NATS_ROUTE_PORT = 4222, 8222, 6222
OPENBAO, OPENBAO_PORT, OPENBAO_CLUSTER_PORT = "openbao", 8200, 8201

TLS_FILES = ("ca.pem", "cert.pem", "key.pem")


def host(service: str) -> str:
    """Returns a service's name in the network: an underscore is none of a host's characters."""
    return service.replace("_", "-")


def hosts(extra: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Returns the names that each certificate is good for. `extra` are names and addresses that clients use."""
    replicas = {each: [host(each), *(f"{host(each)}-{at}" for at in range(2, REPLICAS + 1))] for each in SERVICES}
    return {each: [*names, *extra] for each, names in replicas.items()} | {OPENBAO: [OPENBAO]}


def given(nodes: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Returns what each part gets: {part: {name of its file: where that lies in the data directory}}.

    Nobody gets another's key. `nodes` are those of NATS, which have the same users.
    """
    tls = {part: {name: f"tls/{part}/{name}" for name in TLS_FILES} for part in (*SERVICES, OPENBAO)}
    log = {"nats.json": "nats/session.json", "issuer.pem": "openbao/issuer.pem", "api_keys.json": "api_keys.json"}
    doors = {"doors-ca.pem": "tls/doors/ca.pem", "doors-key.pem": "tls/doors/key.pem"}
    return {
        "session": tls["session"] | log,
        "harness": tls["harness"],
        "sandbox": tls["sandbox"],
        "vault_proxy": tls["vault_proxy"] | doors,
        "migrate": {"nats.json": "nats/migrate.json"},
        "janitor": {"nats.json": "nats/janitor.json"},
        "nats": {f"{node}.conf": f"nats/{node}.conf" for node in nodes},
        OPENBAO: tls[OPENBAO] | {"openbao.json": "openbao/openbao.json", "vault.json": "openbao/vault.json"},
        "client": {"ca.pem": "tls/ca/ca.pem", "api_key": "client/api_key"},
    }
