"""What the client takes from its environment. The only reader of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DATA_DIRECTORY = "HANDMESH_DATA_DIR"
ADDRESS = "HANDMESH_ADDRESS"
HARNESS_ADDRESS = "HANDMESH_HARNESS_ADDRESS"
SANDBOX_ADDRESS = "HANDMESH_SANDBOX_ADDRESS"
VAULT_PROXY_ADDRESS = "HANDMESH_VAULT_PROXY_ADDRESS"
API_KEY = "HANDMESH_API_KEY"
CA_FILE = "HANDMESH_CA_FILE"
MEANINGS = {
    DATA_DIRECTORY: "The data directory of the mesh on this machine. Without it `handmesh` below `$XDG_STATE_HOME`, "
    "else below `~/.local/state`.",
    ADDRESS: "host:port of a mesh elsewhere: its session service, or a proxy in front of all services. Replicas with "
    "commas, here and in the next three.",
    HARNESS_ADDRESS: "host:port of its harness, where that is another.",
    SANDBOX_ADDRESS: "host:port of its sandbox service, where that is another.",
    VAULT_PROXY_ADDRESS: "host:port of its vault proxy, where that is another.",
    API_KEY: "The API key. Without it that of the mesh on this machine.",
    CA_FILE: "PEM of the authority that signed the certificates of a mesh elsewhere.",
    "HANDMESH_HAND_TOKEN": "`handmesh hand serve`: the token that the hand connects with.",
    "HANDMESH_CONFIG_FILE": "`handmesh up`: handed on to the services.",
    "HANDMESH_HARNESS_TYPES": "`handmesh up`: handed on to the harness. So is `HANDMESH_MODEL_PRICES_FILE`.",
    "HANDMESH_ALLOW_UNISOLATED": "`handmesh up`: as `--allow-unisolated`.",
    "ANTHROPIC_API_KEY": "`handmesh up`: the model's key, which becomes a file that the harness alone reads.",
    "ANTHROPIC_BASE_URL": "`handmesh up`: another address of the model's API.",
    "DOCKER_HOST": "`handmesh up` and `doctor`: where the Docker Engine is.",
}
"""What each variable of the client and of the command is, for the docs."""


@dataclass(frozen=True)
class Settings:
    """Where the mesh is and who the caller is. None means: the mesh on this machine.

    `address` (host:port, or several of replicas with commas) is the session service's, or that of a proxy in front of
    all services; `harness_address` and the two after it are the other services' where they are others. `ca_file` holds
    the authority that signed their certificates (PEM): with it even a mesh on this machine is spoken to in TLS.
    """

    data_directory: Path
    address: str | None = None
    harness_address: str | None = None
    sandbox_address: str | None = None
    vault_proxy_address: str | None = None
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None


def read(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings. An empty variable counts as one that is not set."""
    source = os.environ if environment is None else environment  # noqa: TID251 - the one reader
    ca_file = source.get(CA_FILE)
    return Settings(
        data_directory=data_directory(source),
        address=source.get(ADDRESS) or None,
        harness_address=source.get(HARNESS_ADDRESS) or None,
        sandbox_address=source.get(SANDBOX_ADDRESS) or None,
        vault_proxy_address=source.get(VAULT_PROXY_ADDRESS) or None,
        api_key=source.get(API_KEY) or None,
        ca_file=Path(ca_file) if ca_file else None,
    )


def data_directory(environment: Mapping[str, str]) -> Path:
    """Returns the data directory of the mesh on this machine: HANDMESH_DATA_DIR, else below the user's state folder."""
    chosen = environment.get(DATA_DIRECTORY)
    if chosen:
        return Path(chosen).expanduser().absolute()
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "handmesh"
