"""Where the services of a mesh are, and the key that the mesh on this machine made for its clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handmesh.launcher.lock import running
from handmesh.launcher.ports import SERVICES, Ports


@dataclass(frozen=True)
class Addresses:
    """`host:port` of each service, for clients; several with commas where a service has replicas."""

    session: str
    harness: str
    sandbox: str
    vault_proxy: str

    @classmethod
    def behind(cls, address: str) -> Addresses:
        """Returns the addresses of services that one proxy stands in front of."""
        return cls(address, address, address, address)

    @classmethod
    def of_ports(cls, *replicas: Ports) -> Addresses:
        """Returns the addresses of a mesh on this machine, from the ports of each replica."""
        return cls(*(",".join(ports.client(service) for ports in replicas) for service in SERVICES))

    @classmethod
    def local(cls, data_directory: Path) -> Addresses | None:
        """Returns where the mesh of this data directory is; None when none runs."""
        mesh = running(data_directory)
        return None if mesh is None else cls.of_ports(mesh.ports, *mesh.others)


def api_key_file(data_directory: Path) -> Path:
    """Returns where the launcher keeps the clients' key."""
    return data_directory / "client" / "api_key"


def local_api_key(data_directory: Path) -> str | None:
    """Reads the clients' key of the mesh on this machine; None when no mesh has made one."""
    try:
        return api_key_file(data_directory).read_text("ascii").strip()
    except FileNotFoundError:
        return None
