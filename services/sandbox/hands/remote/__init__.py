"""Hands that dial out: a worker anywhere connects with its token, is sent calls, and reports.

`hand.RemoteHand` is the backend, `switchboard` takes workers in, `jobs` decides who gets which call, and `executions`
keeps what must not be lost.
"""

from __future__ import annotations

from services.sandbox.hand import Hand, HandSettings
from services.sandbox.hands.remote.hand import RemoteHand

KEYS: frozenset[str] = frozenset({"worker", "labels"})


def make(settings: HandSettings) -> Hand:
    """See `hand`."""
    return RemoteHand(settings.state_dir, settings.bounds)
