"""The `messages` harness type."""

from __future__ import annotations

from services.harness.loops.messages.loop import TRAITS, Messages
from services.harness.settings import Settings
from services.harness.turn.loop import TurnType

DESCRIPTION = "Claude through the Messages API, with the session's hands, servers and custom tools."


def make(settings: Settings | None = None) -> TurnType:
    """Makes the type. It needs no setting of its own."""
    return TurnType(TRAITS, DESCRIPTION, Messages)
