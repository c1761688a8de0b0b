"""Tools as plain processes of the service's user: no isolation at all. For tests, for reading, and where one must.

Only when the operator has said so (`HANDMESH_ALLOW_UNISOLATED=1`).
"""

from __future__ import annotations

from services.sandbox.hand import Hand, HandSettings

KEYS: frozenset[str] = frozenset()


def make(settings: HandSettings) -> Hand:
    """Makes the hand. Starts nothing."""
    from services.sandbox.hands.process.place import Unisolated
    from services.sandbox.records import Records
    from services.sandbox.runner_hand import RunnerHand

    return RunnerHand(Unisolated(settings.allow_unisolated), Records(settings.state_dir / "sandboxes"))
