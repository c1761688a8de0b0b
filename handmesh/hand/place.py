"""Where and as what a worker connects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """Where and as what a worker connects.

    `address` is `host:port` of the sandbox service, or of a proxy in front of it, or those of all its replicas, with
    commas: the worker connects to each; on loopback it is spoken to in plain
    text, elsewhere by TLS, with the authority of `ca_file` (PEM) if it is not a public one. `seat` names one of several
    workers of a hand: whoever takes it says that the one before is no more.
    """

    address: str
    name: str
    token: str = field(repr=False)
    ca_file: Path | None = None
    seat: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
