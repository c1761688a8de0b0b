"""Runs a step: `files` and ends, or `vault` until SIGTERM."""

from __future__ import annotations

import argparse
import datetime
import signal
from pathlib import Path
from threading import Event

from handmesh.launcher.containers.making import Plan, make
from handmesh.launcher.containers.parts import NATS_NODES
from handmesh.launcher.containers.vault_keeper import Keeper
from handmesh.launcher.settings import MeshFiles

DATA_DIRECTORY, GIFTS = Path("/handmesh/authority"), Path("/handmesh/gifts")
OWNER = 10001


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m handmesh.launcher.containers", description=__doc__)
    parser.add_argument("--owner", type=int, default=OWNER, metavar="ID", help="user of every part")
    steps = parser.add_subparsers(dest="step", required=True)
    files = steps.add_parser("files", help="make what the parts log in and listen with, and give it out")
    files.add_argument("--hosts", default="", metavar="NAME,...", help="names and addresses by which clients come")
    files.add_argument("--nats-nodes", type=int, choices=(1, len(NATS_NODES)), default=1)
    files.add_argument("--store", type=Path, action="append", default=[], metavar="DIR", help="a folder for parts")
    vault = steps.add_parser("vault", help="initialise, lay out and unseal the vault, again whenever it has to be")
    vault.add_argument("--program", choices=("bao", "vault"), default="bao", help="which one it is")
    return parser.parse_args()


def main() -> None:
    """Does what the arguments say."""
    told = _arguments()
    if told.step == "files":
        hosts = [each.strip() for each in told.hosts.split(",") if each.strip()]
        plan = Plan(DATA_DIRECTORY, GIFTS, told.owner, hosts, told.nats_nodes, told.store)
        make(plan, datetime.datetime.now(datetime.UTC))  # noqa: TID251 - time enters here
        return
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    Keeper(MeshFiles(DATA_DIRECTORY).openbao, GIFTS / "vault_proxy", told.owner, told.program == "vault").keep(stop)


if __name__ == "__main__":
    main()
