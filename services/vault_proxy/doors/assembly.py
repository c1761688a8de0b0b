"""Puts the doors together: what they share, what runs behind them, and how they end."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from services.kit.identity import Peers
from services.vault_proxy.audit import Audit
from services.vault_proxy.credentials import Credentials
from services.vault_proxy.doors.authority import Authority
from services.vault_proxy.doors.egress import EgressDoor
from services.vault_proxy.doors.git import GitDoor
from services.vault_proxy.doors.git_upstream import Upstream
from services.vault_proxy.doors.listener import Listener
from services.vault_proxy.doors.purse import Purse
from services.vault_proxy.doors.reception import Reception
from services.vault_proxy.doors.refusals import Refusals
from services.vault_proxy.doors.tickets import Tickets
from services.vault_proxy.doors.uses import Uses
from services.vault_proxy.doors.visit import Door
from services.vault_proxy.doors.wires import Limits
from services.vault_proxy.github_app import Api, GithubApps
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.settings import Settings
from services.vault_proxy.wallet import Wallet

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub
    from services.vault_proxy.outbound.dial import Dialler
    from services.vault_proxy.outbound.streams import Streams


class Doors:
    """All doors of the service. `reception` is what the service asks."""

    def __init__(
        self,
        settings: Settings,
        session: SessionServiceAsyncStub,
        store: CredentialStore,
        credentials: Credentials,
        wallet: Wallet,
        audit: Audit,
    ) -> None:
        """Makes them, closed. Raises SettingsError for an authority that is none."""
        self._where = settings.door_listen, settings.tls_dir
        self._purse = Purse(store, credentials)
        self._refusals = Refusals(Audit(session))  # one of its own: no flood of refusals pushes out a use
        self._uses = Uses(audit)
        egress = _egress(settings, self._purse, self._uses, self._refusals)
        self._git = _git(settings, wallet, audit, self._refusals)
        doors: dict[str, Door] = {"git": self._git, "egress": egress}
        tickets = Tickets(time.monotonic)
        self._listener = Listener(doors, tickets, Peers.of_file(settings.identities_file))
        self.reception = Reception(doors, tickets, self._listener, egress, settings.door_address)

    def behind(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Returns what runs for as long as the service does."""
        looking = self._listener.keep_looking()
        return self._refusals.tell_on(), self._uses.keep_turning(), self._purse.keep_tidy(), looking

    def doubt(self) -> None:
        """Has all connections looked at: revocations may have been missed."""
        self._listener.doubt()

    def changed(self, credential_id: str) -> None:
        """Forgets a credential that was replaced or purged."""
        self._purse.changed(credential_id)

    def end_session(self, session_id: str) -> None:
        """Cuts a session's connections, and forgets all that is known of it."""
        self.reception.end_session(session_id)
        self._refusals.forget(session_id)
        self._purse.forget(session_id)
        self._git.forget(session_id)

    async def start(self) -> None:
        """Lets connections in."""
        await self._listener.start(*self._where)

    async def stop(self) -> None:
        """Cuts all connections, and hands on the uses that were counted so far."""
        await self._listener.stop()
        self._uses.turn()

    async def flush(self) -> None:
        """Waits until what was refused is told, for a few seconds at most."""
        await self._refusals.flush()


def _egress(settings: Settings, purse: Purse, uses: Uses, refusals: Refusals) -> EgressDoor:
    """Makes the egress door. Raises SettingsError for an authority that is none."""

    def dialler() -> Dialler:  # imported on first use: see outbound
        from services.vault_proxy.outbound.dial import Dialler

        return Dialler(settings.outbound_allow, settings.outbound_ca_file)

    authority = None
    if settings.door_ca_cert_file is not None and settings.door_ca_key_file is not None:
        authority = Authority(settings.door_ca_cert_file, settings.door_ca_key_file)
    limits = Limits(settings.egress_idle_seconds, settings.egress_seconds, settings.egress_mib * 1024 * 1024)
    hosts, most = settings.package_hosts, settings.egress_connections
    return EgressDoor(dialler, purse, authority, uses, refusals, hosts, limits, most)


def _git(settings: Settings, wallet: Wallet, audit: Audit, refusals: Refusals) -> GitDoor:
    """Makes the git door."""
    reach = settings.outbound_allow, settings.outbound_ca_file

    def streams() -> Streams:
        from services.vault_proxy.outbound.streams import Streams

        return Streams(*reach)

    apps = GithubApps(Api(*reach).post, time.time)
    return GitDoor(Upstream(wallet, apps, audit, streams), refusals, settings.git_push_mib * 1024 * 1024)
