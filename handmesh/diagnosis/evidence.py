"""What is known of a session and its mesh when somebody asks what is wrong. Pure. Times are Unix time, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from handmesh.session.v1.event_pb2 import Event

SESSION, HARNESS, HAND, PROXY, MODEL, NETWORK = "session", "harness", "hand", "proxy", "model", "network"
PARTS = (SESSION, HARNESS, HAND, PROXY, MODEL, NETWORK)
"""The parts of which one is named, as docs/trace.md explains them."""

SERVICES = ("session", "harness", "sandbox", "vault_proxy")
PART_OF = {"session": SESSION, "harness": HARNESS, "sandbox": HAND, "vault_proxy": PROXY}
"""Which part a service is."""


@dataclass(frozen=True)
class Probe:
    """How a service answered whoever asks. `reason` is an ErrorReason, or the gRPC status when nobody answered.

    `silent`: somebody takes connections at its address, and nothing is answered.
    """

    answered: bool
    reason: str = ""
    silent: bool = False


@dataclass(frozen=True)
class Process:
    """What a service's process says of itself, in the session service's time."""

    instance: str
    began: float
    stalls: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Hindrance:
    """A service that a harness does not reach, or that tells it that it cannot do its work."""

    service: str
    reason: str
    since: float
    answered: bool


@dataclass(frozen=True)
class RunSeen:
    """What a harness says of its work on the session."""

    epoch: int
    step: str
    step_time: float
    heard: float | None = None
    hindrances: Sequence[Hindrance] = ()


@dataclass(frozen=True)
class HarnessSeen:
    """What the harness that was asked says of itself. `run` is None when it is not at work on the session."""

    types: frozenset[str] = frozenset()
    run: RunSeen | None = None
    draining: bool = False
    hindrances: Sequence[Hindrance] = ()


@dataclass(frozen=True)
class Evidence:
    """All of it. `status` is a name of SessionStatus without its prefix, empty when the session could not be asked.

    `served` maps harness types to the room that there is for more sessions; None when it could not be asked. What is
    missing from `processes` said nothing of itself.
    """

    session_id: str
    now: float
    events: Sequence[Event] = ()
    status: str = ""
    harness_type: str = ""
    probes: Mapping[str, Probe] = field(default_factory=dict)
    processes: Mapping[str, Process] = field(default_factory=dict)
    harness: HarnessSeen | None = None
    served: Mapping[str, int] | None = None

    def answers(self, service: str) -> bool:
        """Whether a service answered whoever asks. True where it was not asked."""
        probe = self.probes.get(service)
        return probe is None or probe.answered


@dataclass(frozen=True)
class Finding:
    """One fault. `state` is `standing` while it is in the way, `overcome` when the session went on.

    `code` names the verdict in docs/trace.md; `what` is the sentence, `seen` what it rests on, `todo` what to do next.
    """

    part: str
    state: str
    code: str
    what: str
    seen: Sequence[str] = ()
    todo: Sequence[str] = ()
    position: int = 0
    time: float = 0.0
    reason: str = ""
