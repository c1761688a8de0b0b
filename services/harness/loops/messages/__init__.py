"""The `messages` harness type."""

from __future__ import annotations

from services.harness.loops.messages.loop import MessagesType


def make() -> MessagesType:
    """Makes the type."""
    return MessagesType()
