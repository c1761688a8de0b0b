"""The `messages` harness type."""

from __future__ import annotations

from services.harness.loops.messages.loop import MessagesType
from services.harness.settings import Settings


def make(settings: Settings | None = None) -> MessagesType:
    """Makes the type. It needs no setting of its own."""
    return MessagesType()
