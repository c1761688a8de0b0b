"""What a service counts, for Prometheus. Declared where it is counted; costs next to nothing until somebody listens.

    TURNS = metrics.Counter("handmesh_turns_total", "Turns that ended, by why.", metrics.Label("reason", REASONS))
    TURNS.add("completed")

A label has a bounded set of values, given where it is declared: any other value is counted as `other`. So no id, no
name that a tenant has made up and no content can become a series, whatever a caller passes.

Nothing of `prometheus_client` is imported before `turn_on`, which `HANDMESH_METRICS_LISTEN` asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OTHER = "other"
AT_ZERO = 32  # series of a metric that are there before anything was counted: else `rate` misses the first of each
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # calls, in seconds
SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # models and tools, in seconds
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

declared: dict[str, Instrument] = {}
_registry: CollectorRegistry | None = None


class Label:
    """A label, and the values that it may have."""

    def __init__(self, name: str, values: Iterable[str] = ()) -> None:
        self.name = name
        self._values = {value: value for value in (*values, OTHER)}

    @property
    def values(self) -> Sequence[str]:
        """Returns the values, `other` among them."""
        return tuple(self._values)

    def allow(self, values: Iterable[str]) -> None:
        """Adds values that only the operator's files tell, such as the names of environments. Once, at the start."""
        self._values |= {value: value for value in values}

    def of(self, value: str) -> str:
        """Returns the value, or `other`."""
        return self._values.get(value, OTHER)


class Instrument:
    """A metric. Its name, its meaning for the docs, and its labels."""

    kind = ""

    def __init__(self, name: str, meaning: str, *labels: Label) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = labels
        self._real: Any = None  # of prometheus_client, whose types are not there without the extra
        self._series: dict[tuple[str, ...], Any] = {}
        if name in declared:
            raise ValueError(f"the metric {name} is declared twice")
        declared[name] = self
        if _registry is not None:
            self.make(_registry)

    def make(self, registry: CollectorRegistry) -> None:
        """Makes the metric in a registry, from when on it counts."""
        self._series = {}
        self._real = self._made(registry, [label.name for label in self.labels])
        every = [label.values for label in self.labels]
        if self.labels and len(tuple(product(*every))) <= AT_ZERO:
            for values in product(*every):
                self._at(values)

    def stop(self) -> None:
        """Counts no more."""
        self._real = None

    def _made(self, registry: CollectorRegistry, labels: Sequence[str]) -> Any:
        raise TypeError(f"{type(self).__name__} is no kind of metric")

    def _at(self, values: Sequence[str]) -> Any:
        known = tuple(label.of(value) for label, value in zip(self.labels, values, strict=True))
        found = self._series.get(known)
        if found is None:
            found = self._series[known] = self._real.labels(*known) if known else self._real
        return found


class Counter(Instrument):
    """Counts up. Its name ends with `_total`."""

    kind = "counter"

    def add(self, *values: str, by: float = 1) -> None:
        """Counts, under these values of its labels."""
        if self._real is not None:
            self._at(values).inc(by)

    def _made(self, registry: CollectorRegistry, labels: Sequence[str]) -> Any:
        from prometheus_client import Counter as Real

        return Real(self.name, self.meaning, labels, registry=registry)


class Gauge(Instrument):
    """Goes up and down."""

    kind = "gauge"

    def __init__(self, name: str, meaning: str, *labels: Label) -> None:
        self._reads: dict[tuple[str, ...], Callable[[], float]] = {}
        super().__init__(name, meaning, *labels)

    def add(self, *values: str, by: float = 1) -> None:
        """Counts up, or down by a negative number."""
        if self._real is not None:
            self._at(values).inc(by)

    def set(self, value: float, *values: str) -> None:
        """Says what it is now."""
        if self._real is not None:
            self._at(values).set(value)

    def watch(self, read: Callable[[], float], *values: str) -> None:
        """Reads it whenever somebody asks, on the event loop."""
        self._reads[values] = read

    def sample(self) -> None:
        """Reads now what is watched of it."""
        for values, read in self._reads.items():
            self.set(read(), *values)

    def _made(self, registry: CollectorRegistry, labels: Sequence[str]) -> Any:
        from prometheus_client import Gauge as Real

        return Real(self.name, self.meaning, labels, registry=registry)


class Histogram(Instrument):
    """Counts values by size: seconds, unless its name says otherwise. `buckets` are upper bounds, inclusive."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, *labels: Label, buckets: Sequence[float] = QUICK) -> None:
        self._buckets = buckets
        super().__init__(name, meaning, *labels)

    def observe(self, value: float, *values: str) -> None:
        """Counts a value."""
        if self._real is not None:
            self._at(values).observe(value)

    @contextmanager
    def timed(self, *values: str) -> Iterator[None]:
        """Counts how long its block takes, also one that fails."""
        if self._real is None:
            yield
            return
        began = time.perf_counter()
        try:
            yield
        finally:
            self._at(values).observe(time.perf_counter() - began)

    def _made(self, registry: CollectorRegistry, labels: Sequence[str]) -> Any:
        from prometheus_client import Histogram as Real

        return Real(self.name, self.meaning, labels, registry=registry, buckets=self._buckets)


def is_on() -> bool:
    """Says whether anything is counted."""
    return _registry is not None


def turn_on(service: str) -> None:
    """Counts from now on: all that is declared, and what the process itself takes. Raises ImportError without the extra
    `telemetry`."""
    global _registry
    from prometheus_client import CollectorRegistry, ProcessCollector

    _registry = CollectorRegistry()
    ProcessCollector(registry=_registry)
    for instrument in declared.values():
        instrument.make(_registry)
    SERVICE.set(1, service)


def turn_off() -> None:
    """Counts no more. For tests, which share a process."""
    global _registry
    _registry = None
    for instrument in declared.values():
        instrument.stop()


def sample() -> None:
    """Reads what is watched. To be called on the event loop, before `text`."""
    for instrument in declared.values():
        if isinstance(instrument, Gauge):
            instrument.sample()


def text() -> bytes:
    """Returns everything in Prometheus's text format. Takes milliseconds; may be called in a thread."""
    from prometheus_client import generate_latest

    assert _registry is not None
    return generate_latest(_registry)


SERVICE = Gauge(
    "handmesh_service_info",
    "1, for the service that this process is.",
    Label("service", ("session", "harness", "sandbox", "vault_proxy")),
)
