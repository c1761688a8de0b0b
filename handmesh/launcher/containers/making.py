"""Makes what the parts log in and listen with, in a data directory like the launcher's, and gives each part its own."""

from __future__ import annotations

import datetime
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handmesh.launcher.ca import ensure_api_key, ensure_certificates, ensure_door_authority
from handmesh.launcher.containers import parts
from handmesh.launcher.files import private_directory, write_private, write_private_json
from handmesh.launcher.nats import Clustered, Listening, NatsFiles, write_configuration
from handmesh.launcher.openbao import configuration, ensure_issuer_key
from handmesh.launcher.ports import SERVICES
from handmesh.launcher.settings import MeshFiles


@dataclass(frozen=True)
class Plan:
    """What to make. `data_directory` is kept from all parts; a folder of `gifts` is mounted in each of them.

    Of the data directory the vault's keeper alone has a folder, `openbao`. `owner` is the user of every part,
    `hosts` are names by which clients come. `stores` are folders that parts keep things in, made theirs here.
    """

    data_directory: Path
    gifts: Path
    owner: int
    hosts: Sequence[str] = ()
    nats_nodes: int = 1
    stores: Sequence[Path] = ()


def make(plan: Plan, now: datetime.datetime) -> None:
    """Makes what is missing and gives it out. May be repeated: what is there and still good stays as it is."""
    files = MeshFiles(private_directory(plan.data_directory))
    ensure_certificates(files.tls, (*SERVICES, parts.OPENBAO), now, parts.hosts(plan.hosts))
    ensure_door_authority(files.tls, now)
    ensure_api_key(files.data_directory)
    ensure_issuer_key(private_directory(files.openbao))
    nodes = parts.NATS_NODES[: plan.nats_nodes]
    _configure_nats(private_directory(files.nats), nodes)
    _configure_vaults(files.openbao)
    for part, wanted in parts.given(nodes).items():
        for name, source in wanted.items():
            give(plan.gifts / part / name, (plan.data_directory / source).read_bytes(), plan.owner)
    for each in (files.openbao, *files.openbao.iterdir(), *map(private_directory, plan.stores)):
        os.chown(each, plan.owner, -1)


def give(file: Path, content: bytes, owner: int) -> None:
    """Writes a file that only its new owner reads, unless it is there already. Whoever has it open is not disturbed."""
    if not file.exists() or file.read_bytes() != content:
        write_private(file, content)
    for each in (file, file.parent):
        if each.stat().st_uid != owner:
            os.chown(each, owner, -1)


def _configure_nats(directory: Path, nodes: Sequence[str]) -> None:
    """Writes a configuration for each node; those of a cluster know each other by a password of their own."""
    files = NatsFiles(directory)
    listening = Listening(parts.NATS_PORT, parts.NATS_MONITOR_PORT, parts.EVERYWHERE, parts.DATA)
    route = directory / "route.json"
    if not route.exists():
        write_private_json(route, {"password": secrets.token_hex(24)})
    password = json.loads(route.read_text())["password"]
    members = [f"{node}:{parts.NATS_ROUTE_PORT}" for node in nodes]
    for node in nodes:
        clustered = Clustered(node, parts.NATS_ROUTE_PORT, members, password) if len(nodes) > 1 else None
        write_configuration(files, listening, clustered)
        (directory / f"{node}.conf").write_bytes(files.configuration.read_bytes())
        (directory / f"{node}.conf").chmod(0o600)


def _configure_vaults(directory: Path) -> None:
    """Writes the same configuration for OpenBao and for HashiCorp Vault, whichever will run."""
    where = f"https://{parts.OPENBAO}"
    listener: dict[str, object] = {
        "address": f"{parts.EVERYWHERE}:{parts.OPENBAO_PORT}",
        "cluster_address": f"{parts.EVERYWHERE}:{parts.OPENBAO_CLUSTER_PORT}",
        "tls_cert_file": str(parts.GIVEN / "cert.pem"),
        "tls_key_file": str(parts.GIVEN / "key.pem"),
    }
    written = configuration(
        parts.DATA / "store",
        listener,
        f"{where}:{parts.OPENBAO_PORT}",
        f"{where}:{parts.OPENBAO_CLUSTER_PORT}",
    )
    write_private_json(directory / "openbao.json", written)
    # Vault is told over its API what to log (`VaultOperator.log_requests`), and that nothing locks its memory here.
    vault = {key: value for key, value in written.items() if key != "audit"} | {"disable_mlock": True}
    write_private_json(directory / "vault.json", vault)
