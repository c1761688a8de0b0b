"""A whole mesh as child processes of this one: NATS, OpenBao, the four services and, without a key, the scripted model.

All parts are started at once; a service that is up before what it needs tries again until that is there. The mesh is
ready when each of the four services says over gRPC health that it serves.
"""

import asyncio
import datetime
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from handmesh.launcher.ca import ensure_api_key, ensure_certificates, ensure_door_authority
from handmesh.launcher.errors import PartFailed
from handmesh.launcher.files import private_directory, write_private
from handmesh.launcher.health import Health
from handmesh.launcher.lock import Lock
from handmesh.launcher.migration import finish_migration, start_migration
from handmesh.launcher.nats import Nats, NatsFiles, ensure_logins
from handmesh.launcher.openbao import OpenBao, approle_file, ensure_issuer_key, issue_approle, operator_of
from handmesh.launcher.ports import HOST, SERVICES, replica_of, require_free
from handmesh.launcher.processes import Command, Process, describe_exit
from handmesh.launcher.settings import (
    Claude,
    MeshFiles,
    MeshSettings,
    Scripted,
    child_environment,
    operator_environment,
    service_environment,
)
from handmesh.launcher.vault_operator import VaultOperator

SERVICE_READY_WITHIN = 30.0
"""Seconds that a service has from its start to SERVING."""

STOP_ORDER = (("harness",), ("sandbox", "vault_proxy"), ("session", "janitor"), ("model", "openbao", "nats"))
"""Who is stopped after whom, all replicas together: no part loses what it needs to end its work well."""

RENEWAL_SECONDS = 6 * 60 * 60
"""Between two looks at the certificates of a mesh that runs."""

SETTLE_SECONDS = 5.0
"""In which every service has read again whom it trusts."""

SCRIPTED_KEY = "scripted"
"""What stands in the key file for the scripted model, which takes any key."""


class Mesh:
    """A running mesh. `await Mesh.start(settings)` gives one; it is also an async context that stops it at the end."""

    def __init__(self, settings: MeshSettings, lock: Lock) -> None:
        self.settings = settings
        self.files = MeshFiles(settings.data_directory)
        self._lock: Lock | None = lock
        self._processes: dict[str, Process] = {}
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: MeshSettings) -> Self:
        """Starts everything and returns when all four services serve. Call it on the main thread.

        Raises AlreadyRunning when another launcher has the data directory, PortTaken, NotInstalled, VaultRefused, and
        PartFailed when a part ends or is not ready in time. Then nothing is left running.
        """
        mesh = cls(*_claim(settings))
        try:
            await mesh._start_all()
            mesh._renewing = asyncio.create_task(mesh._renew(), name="certificates")
        except BaseException:
            await mesh.stop()
            raise
        return mesh

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pids(self) -> Mapping[str, int]:
        """Returns {part: process id} of the parts that run now."""
        return {name: process.pid for name, process in self._processes.items() if process.exit_code is None}

    @property
    def vault(self) -> VaultOperator:
        """Returns an operator of this mesh's OpenBao, to put secrets."""
        return operator_of(self.files.openbao, self.settings.ports.openbao)

    async def kill(self, part: str) -> None:
        """Kills one part with SIGKILL, as a crash would, and returns when it is gone. Nothing restarts it by itself."""
        await self._processes.pop(part).kill()

    async def restart(self, part: str) -> None:
        """Starts one part again, stopping it first if it runs, and returns when it is ready. Raises as `start`."""
        if part in self._processes:
            await self._processes[part].stop()
        await self._start(part)

    async def lost(self) -> PartFailed:
        """Waits until a part has ended by itself and returns what happened to it.

        A part that `kill` ended does not count. The same part is returned again until it is restarted.
        """
        tasks = {asyncio.create_task(process.ended()): process for process in self._processes.values()}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        first = done.pop()
        return tasks[first].failure(f"ended ({describe_exit(first.result())})")

    async def stop(self) -> None:
        """Stops all parts, the brains first and the stores last, and lets go of the data directory. May be repeated."""
        if self._renewing is not None:
            self._renewing.cancel()
        for names in STOP_ORDER:
            stopping = [each.stop() for part, each in self._processes.items() if replica_of(part)[0] in names]
            await asyncio.gather(*stopping)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def _renew(self) -> None:
        """Renews certificates before they expire, for ever. The services read them again by themselves."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - time enters here
            await asyncio.to_thread(ensure_certificates, self.files.tls, SERVICES, now, None, _settle)

    async def _start_all(self) -> None:
        parts = ["nats", "openbao", *self.settings.services]
        if isinstance(self.settings.model, Scripted):
            parts.append("model")
        try:
            async with asyncio.TaskGroup() as starts:
                for part in parts:
                    starts.create_task(self._start(part))
            await self._start("janitor")
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _start(self, part: str) -> None:
        ports, log = self.settings.ports, self.files.log(part)
        service, replica = replica_of(part)
        dies_with_us = self.settings.die_with_launcher
        match part:
            case "nats":
                await self._start_nats(log)
            case "openbao":
                bao = await OpenBao.start(
                    self.files.openbao, log, ports.openbao, ports.openbao_cluster, die_with_launcher=dies_with_us
                )
                self._processes[part] = bao.process
                for each in range(len(self.settings.replicas)):
                    await self._issue_approle(each)  # a vault_proxy that starts beside it waits for that
            case "model":
                await self._start_scripted_model()
            case "janitor":
                self._run(part, ["services.session.janitor"], operator_environment(part, self.settings))
            case _:
                if service == "vault_proxy" and "openbao" in self.pids:
                    await self._issue_approle(replica)
                environment = service_environment(service, self.settings, replica)
                process = self._run(part, [f"services.{service}"], environment)
                async with Health(process, self.settings.replicas[replica].as_mapping()[service]) as health:
                    await process.ready(health.serving, within=SERVICE_READY_WITHIN)

    async def _issue_approle(self, replica: int) -> None:
        await asyncio.to_thread(issue_approle, self.files.openbao, self.vault, replica)

    async def _start_nats(self, log: Path) -> None:
        """Starts NATS, and beside it what makes its streams: that waits for NATS, and ends by itself."""
        ports = self.settings.ports
        migration = start_migration(self.settings)
        try:
            nats = await Nats.start(
                self.files.nats,
                log,
                ports.nats,
                ports.nats_monitor,
                die_with_launcher=self.settings.die_with_launcher,
            )
            self._processes["nats"] = nats.process
            await finish_migration(migration)
        finally:
            await migration.stop()

    async def _start_scripted_model(self) -> None:
        process = self._run_scripted_model()

        async def listens() -> bool:
            return process.listens(self.settings.ports.model)

        await process.ready(listens, within=SERVICE_READY_WITHIN)

    def _run_scripted_model(self) -> Process:
        match self.settings.model:
            case Scripted(script):
                listen = f"{HOST}:{self.settings.ports.model}"
                arguments = ["handmesh.scripted_model", "--script", str(script.absolute()), "--listen", listen]
                return self._run("model", arguments, child_environment(self.settings))
            case Claude():
                raise ValueError("this mesh talks to the real model")

    def _run(self, part: str, module: list[str], environment: Mapping[str, str]) -> Process:
        """Starts a Python module as a part. -P: what lies in the working directory is never imported."""
        command = Command(
            name=part,
            arguments=[sys.executable, "-P", "-m", *module],
            environment=environment,
            log=self.files.log(part),
            directory=self.files.data_directory,
        )
        process = Process.start(command, die_with_launcher=self.settings.die_with_launcher)
        self._processes[part] = process
        return process


def _settle() -> None:
    """Waits, in a thread, until the services have read certificates of both authorities."""
    threading.Event().wait(SETTLE_SECONDS)


def _claim(settings: MeshSettings) -> tuple[MeshSettings, Lock]:
    """Takes the data directory and writes what the parts will read; returns the settings with an absolute directory."""
    settings = replace(settings, data_directory=settings.data_directory.absolute())
    files = MeshFiles(settings.data_directory)
    lock = Lock.acquire(settings.data_directory, settings.ports, settings.others)
    try:
        require_free(settings.listened_on)
        now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - time enters here
        ensure_certificates(files.tls, SERVICES, now)
        ensure_door_authority(files.tls, now)
        ensure_api_key(files.data_directory)
        for replica in range(len(settings.replicas)):
            private_directory(files.sandbox(replica))
            approle_file(files.openbao, replica).unlink(missing_ok=True)  # it worked once, for one that is gone
        ensure_issuer_key(private_directory(files.openbao))
        ensure_logins(NatsFiles(private_directory(files.nats)))
        key = settings.model.api_key if isinstance(settings.model, Claude) else SCRIPTED_KEY
        write_private(files.model_key, key.encode())
    except BaseException:
        lock.release()
        raise
    return settings, lock
