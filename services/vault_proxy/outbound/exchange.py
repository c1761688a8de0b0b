"""What happened on the wire for one call."""

from __future__ import annotations

import contextvars
import enum
from dataclasses import dataclass


class Failure(enum.Enum):
    """Why there was no answer from the server."""

    DENIED = "denied"  # the address may not be called; nothing was sent
    UNREACHABLE = "unreachable"  # no connection; nothing was sent
    BROKEN = "broken"  # the connection broke; the server may have done something
    TOO_LARGE = "too large"


@dataclass
class Exchange:
    """What happened on the wire for one call. The newest request of the call counts."""

    status: int = 0  # of the answer; 0 before there is one
    readable: bool = False  # the answer is of a type that MCP has
    failure: Failure | None = None
    in_session: bool = False  # the request named a session of the server's
    sent: bool = False  # something may have reached the server


_exchange: contextvars.ContextVar[Exchange] = contextvars.ContextVar("exchange")


def observe() -> Exchange:
    """Returns the Exchange of what this task, and what it starts, calls from now on."""
    exchange = Exchange()
    _exchange.set(exchange)
    return exchange


def current() -> Exchange:
    """Returns the Exchange of the call that this is part of; one that nobody reads when it is part of none."""
    return _exchange.get(None) or Exchange()
