"""Who owns the hands of a test's backends."""

from __future__ import annotations

from services.sandbox.backends import Backends
from services.sandbox.doorman import Doorman
from services.sandbox.environments import BUILT_IN
from services.sandbox.mounts import Mounts
from services.sandbox.owners import Owners
from services.sandbox.owners_core import SessionSeen
from services.sandbox.owners_log import Logs, Said
from services.sandbox.owners_records import OwnerRecords
from services.sandbox.resources import Resources


def owners(backends: Backends, logs: Logs | None = None, doorman: Doorman | None = None) -> Owners:
    """Makes the part that hands over, without mounts; without logs no session can be given a hand."""
    resources = Resources(None, Mounts(backends.state_dir / "mounts"))
    return Owners(OwnerRecords(backends, logs), resources, doorman or Doorman(BUILT_IN))


class MemoryLogs:
    """Sessions of one tenant, all of which live, and what their logs were told (see `Logs`)."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, Said]] = []  # session, event id, what

    async def seen(self, session_id: str) -> SessionSeen:
        return SessionSeen("default")

    async def say(self, session_id: str, tenant: str, event_id: str, said: Said) -> None:
        self.said.append((session_id, event_id, said))
