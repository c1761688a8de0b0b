"""Who owns the hands of a test's backends."""

from __future__ import annotations

from services.sandbox.backends import Backends
from services.sandbox.doorman import Doorman
from services.sandbox.environments import BUILT_IN
from services.sandbox.mounts import Mounts
from services.sandbox.owners import Owners
from services.sandbox.owners_log import Logs
from services.sandbox.owners_records import OwnerRecords
from services.sandbox.resources import Resources


def owners(backends: Backends, logs: Logs | None = None) -> Owners:
    """Makes the part that hands over, without doors and mounts; without logs no session can be given a hand."""
    resources = Resources(None, Mounts(backends.state_dir / "mounts"))
    return Owners(OwnerRecords(backends, logs), resources, Doorman(BUILT_IN))
