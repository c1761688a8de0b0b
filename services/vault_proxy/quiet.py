"""Libraries that must not log: they would write addresses, headers and what strangers sent."""

from __future__ import annotations

import logging


def silence(*names: str) -> None:
    """Makes libraries' loggers, and all below them, say nothing at any level."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
