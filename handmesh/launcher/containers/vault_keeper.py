"""Keeps OpenBao, or HashiCorp Vault, usable: initialises it once, lays it out, unseals it when it was started again.

With what it keeps one can do anything to that vault: see docs/compose.md for one that people open.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import struct
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from handmesh.launcher.containers import parts
from handmesh.launcher.containers.making import give
from handmesh.launcher.errors import VaultRefused
from handmesh.launcher.openbao import AUDIT_LOGS, issuer_key_file, open_up, public_key
from handmesh.launcher.vault_operator import ACTIVE, ALWAYS, NOT_INITIALISED, SEALED, VaultOperator

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Keeper:
    """What it works with: the vault's folder of the data directory, and the one that is mounted in vault_proxy.

    `logs_by_api` is for HashiCorp Vault.
    """

    directory: Path
    gift: Path
    owner: int
    logs_by_api: bool = False

    def keep(self, stop: Event) -> None:
        """Looks after the vault until it is told to stop. What fails is said and tried again."""
        laid_out = False
        while not stop.wait(LOOK_SECONDS):
            try:
                laid_out = self.look(laid_out)
            except (VaultRefused, OSError, http.client.HTTPException) as problem:
                sys.stderr.write(f"vault-keeper: {problem}\n")

    def look(self, laid_out: bool) -> bool:
        """Does what there is to do now; returns whether all is laid out. An active, laid out vault is left alone."""
        operator = VaultOperator(parts.OPENBAO, parts.OPENBAO_PORT, ca_file=self.gift / "ca.pem")
        status = operator.health()
        if status in (NOT_INITIALISED, SEALED):
            open_up(self.directory, operator, status)
            sys.stderr.write("vault-keeper: unsealed\n")
            return False
        if status != ACTIVE or laid_out:
            return laid_out
        operator = replace(operator, token=open_up(self.directory, operator, status).root_token)
        callers = [network_to(parts.OPENBAO, Path("/proc/net/route").read_text())]
        if self.logs_by_api:
            operator.log_requests(AUDIT_LOGS)
        operator.lay_out(public_key(issuer_key_file(self.directory)), callers, ALWAYS)
        role_id, secret_id = operator.issue_lasting_approle()
        login = json.dumps({"role_id": role_id, "secret_id": secret_id})
        give(self.gift / "approle.json", login.encode(), self.owner)
        sys.stderr.write(f"vault-keeper: laid out for {callers[0]}\n")
        return True


def network_to(name: str, routes: str) -> str:
    """Returns the network that this container shares with a host. `routes` is what /proc/net/route says."""
    address = ipaddress.ip_address(socket.gethostbyname(name))
    for line in routes.splitlines()[1:]:
        _, destination, gateway, *_, mask = line.split()[:8]
        if gateway == "00000000" and destination != "00000000":
            network = ipaddress.ip_network(f"{_dotted(destination)}/{_dotted(mask)}")
            if address in network:
                return str(network)
    raise OSError(f"{name} is not in a network of this container's")


def _dotted(hexadecimal: str) -> str:
    return socket.inet_ntoa(struct.pack("<I", int(hexadecimal, 16)))
