"""What holds a run up at this moment: services that do not answer, and a model that is silent. Kept in memory only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.kit.errors import ServiceError

SESSION, SANDBOX, VAULT_PROXY = "session", "sandbox", "vault_proxy"


@dataclass(frozen=True)
class Hindrance:
    """A service that a run cannot reach, or that cannot do its work. `since` is Unix time, in seconds."""

    service: str
    reason: str
    since: float
    answered: bool


class Condition:
    """How one run fares. `now` is Unix time, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failing: dict[str, Hindrance] = {}
        self.heard: float | None = None  # when the last piece of the model's answer came

    def failed(self, service: str, problem: ServiceError) -> float:
        """A call of a service failed, and will be tried again. Returns when the first try failed."""
        known = self._failing.get(service)
        since = known.since if known is not None else self._now()
        self._failing[service] = Hindrance(service, problem.reason, since, problem.answered)
        return since

    def passed(self, service: str) -> float | None:
        """A call of a service ended otherwise. Returns when the first of those that failed before it did, if any."""
        known = self._failing.pop(service, None)
        return None if known is None else known.since

    @property
    def hindrances(self) -> list[Hindrance]:
        """What is away now, by the services' names."""
        return sorted(self._failing.values(), key=lambda it: it.service)

    def asks(self) -> None:
        """The model is asked."""
        self.heard = None

    def hears(self) -> None:
        """A piece of the model's answer came."""
        self.heard = self._now()
