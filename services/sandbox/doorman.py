"""Gives sandboxes their doors, and keeps the doors of those that live open.

A sandbox has doors when its environment may reach something, or its session has repositories. What there is to tell it
the vault proxy says, asked with the session's own grant; so a sandbox of no session has none.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from services.kit.errors import Gone, Refused, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox import doors_core, doors_gate
from services.sandbox.doors_core import EGRESS, GIT
from services.sandbox.doors_relay import Relay, Seats
from services.sandbox.environments import Environments
from services.sandbox.hand import Doors, Hand, Labels, Network, SandboxInfo, Trust
from services.sandbox.passes import Passes
from services.sandbox.vault_proxy import Stream, VaultProxy

MOST_CONNECTIONS = 1000  # of all sandboxes
AGAIN_SECONDS = 10.0  # between two attempts to give a sandbox its doors when the first has failed
_log = Log("services.sandbox.doorman")


class Doorman:
    """The doors of all sandboxes. Without a vault proxy there are none."""

    def __init__(
        self,
        environments: Environments,
        vault: VaultProxy | None = None,
        passes: Passes | None = None,
        connections: int = MOST_CONNECTIONS,
    ) -> None:
        """Takes the grants of sessions, where somebody notes them, and how many connections to carry at once."""
        self._seats = Seats(connections)
        self._environments = environments
        self._vault = vault
        self._passes = passes or Passes()
        self._relays: dict[str, Relay | None] = {}  # of the sandboxes that are settled; None for one without doors
        self._generations: dict[str, int] = {}  # of those: whom their doors speak for
        self._again: dict[str, float] = {}  # when to try again, of time.monotonic()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def check(self, network: Network) -> None:
        """Raises Unavailable (`VAULT_UNAVAILABLE`) when there is none who could let sandboxes reach anything."""
        if network and self._vault is None:
            raise Unavailable(
                "VAULT_UNAVAILABLE",
                "only the vault proxy reaches a network: set HANDMESH_VAULT_PROXY_ADDRESS for this sandbox service",
            )

    async def provide(self, hand: Hand, info: SandboxInfo, repositories: bool) -> None:
        """Gives a sandbox its doors, before its tools run. `repositories` says whether it is to have some. Idempotent.

        Raises Unavailable when its environment may reach something and it cannot be had; without a git door a sandbox
        is still of use, and gets it by `keep` later.
        """
        network = self._network(info)
        if not network and (not repositories or self._vault is None):
            if not self._is_settled(info):
                self._relays[info.labels.sandbox_id] = None
                self._generations[info.labels.sandbox_id] = info.labels.generation
            return
        self.check(network)
        assert self._vault is not None
        try:
            await self._settle(self._vault, hand, info, repositories)
        except ServiceError as error:
            if network or isinstance(error, Gone):
                raise
            self._put_off(info, error)

    async def keep(self, hand: Hand, info: SandboxInfo, repositories: Callable[[], bool]) -> None:
        """Opens the doors of a sandbox again after a restart of this service, or those that it could not be given."""
        sandbox_id = info.labels.sandbox_id
        if self._vault is None or self._is_settled(info) or not self.speaks_for(info.labels.session_id):
            return
        if time.monotonic() < self._again.get(sandbox_id, 0.0):
            return
        try:
            await self._settle(self._vault, hand, info, repositories())
        except ServiceError as error:
            self._put_off(info, error)

    def _put_off(self, info: SandboxInfo, error: ServiceError) -> None:
        self._again[info.labels.sandbox_id] = time.monotonic() + AGAIN_SECONDS
        _log.warning("doors not open", sandbox_id=info.labels.sandbox_id, reason=error.reason, message=error.message)

    async def _settle(self, vault: VaultProxy, hand: Hand, info: SandboxInfo, repositories: bool) -> None:
        labels = info.labels
        grant = self._passes.of(labels.session_id)
        if not labels.session_id or grant is None:
            return  # a client's call: the session's harness brings it
        async with self._locks.setdefault(labels.sandbox_id, asyncio.Lock()):  # two would give it the same twice
            if self._generations.get(labels.sandbox_id, labels.generation) < labels.generation:
                await self.forget(labels.sandbox_id)  # it had another owner
            doors = await hand.open_doors(labels.sandbox_id, ())
            network = self._network(info)
            wanted = {*([EGRESS] if network else []), *([GIT] if repositories else [])}
            if not wanted <= doors.ports.keys() or (wanted and not doors.outfitted):
                prepared = await vault.prepare(grant, labels.sandbox_id, network)
                doors = await self._furnish(hand, labels, prepared, network)
            self._keep_open(vault, hand, info, doors.ports)

    async def _furnish(self, hand: Hand, labels: Labels, prepared: doors_core.Prepared, network: Network) -> Doors:
        names = [*([GIT] if prepared.repositories else []), *([EGRESS] if network else [])]
        try:
            doors = await hand.open_doors(labels.sandbox_id, names)
        except Refused as error:  # it has the network of this machine, so nothing would come through a door
            _log.info("sandbox without doors", sandbox_id=labels.sandbox_id, reason=error.reason)
            return Doors({}, "")
        trust = Trust(await asyncio.to_thread(_system), prepared.ca_certificate) if network else None
        await hand.outfit(labels.sandbox_id, doors_core.outfit(prepared, doors), trust, labels.generation)
        return doors

    def _keep_open(self, vault: VaultProxy, hand: Hand, info: SandboxInfo, names: Iterable[str]) -> None:
        sandbox_id = info.labels.sandbox_id
        relay = self._relays.get(sandbox_id)
        if relay is None and names:
            relay = Relay(hand, sandbox_id, lambda door: self._way_out(vault, info, door), self._seats)
        if relay is not None:
            relay.open(names)
        self._relays[sandbox_id] = relay
        self._generations[sandbox_id] = info.labels.generation
        self._again.pop(sandbox_id, None)

    def _is_settled(self, info: SandboxInfo) -> bool:
        sandbox_id = info.labels.sandbox_id
        if sandbox_id not in self._relays or self._generations.get(sandbox_id) != info.labels.generation:
            return False
        relay = self._relays[sandbox_id]
        return relay is None or not relay.ended

    async def _way_out(self, vault: VaultProxy, info: SandboxInfo, door: str) -> Stream:
        grant = self._passes.of(info.labels.session_id)
        if grant is None:
            raise Unavailable("GRANT_INVALID", "the session's harness has not called this service since it started")
        return await vault.connect(grant, info.labels.sandbox_id, door, self._network(info))

    def speaks_for(self, session_id: str) -> bool:
        """Says whether the doors of a session's sandboxes lead anywhere now."""
        return self._vault is not None and self._passes.of(session_id) is not None

    def gate(self, info: SandboxInfo) -> doors_gate.Gate | None:
        """Returns the way to a session's repositories for git outside of sandboxes. None when there is none."""
        vault = self._vault
        if vault is None or not self.speaks_for(info.labels.session_id):
            return None

        @asynccontextmanager
        async def opened() -> AsyncIterator[str]:
            async with doors_gate.listening(lambda: self._way_out(vault, info, GIT)) as address:
                yield address

        return opened

    def _network(self, info: SandboxInfo) -> Network:
        """Returns what an environment may reach as its operator says now; nothing when there is none such any more."""
        recipe = self._environments.recipes.get(info.labels.environment)
        return Network() if recipe is None else recipe.network

    async def forget(self, sandbox_id: str) -> None:
        """Closes the doors of a sandbox that goes. Idempotent."""
        self._again.pop(sandbox_id, None)
        self._generations.pop(sandbox_id, None)
        relay = self._relays.pop(sandbox_id, None)
        if relay is not None:
            await relay.close()

    async def tidy(self, living: set[str]) -> None:
        """Forgets the sandboxes that are gone. One that is younger than the list of those that live is kept."""
        for sandbox_id, relay in list(self._relays.items()):
            if sandbox_id not in living and (relay is None or relay.ended):
                await self.forget(sandbox_id)

    async def close(self) -> None:
        """Lets go of all connections. The doors stay, for the service that comes after."""
        for sandbox_id in list(self._relays):
            await self.forget(sandbox_id)


def _system() -> str:
    """Returns the authorities that this machine trusts, as PEM."""
    found = ssl.get_default_verify_paths().cafile
    for path in (found, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"):
        if path is not None and Path(path).is_file():
            return Path(path).read_text(errors="replace")
    return ""
