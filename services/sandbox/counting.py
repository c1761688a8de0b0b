"""What the sandbox service counts."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from services.kit.metrics import OTHER, SLOW, Counter, Gauge, Histogram, Label
from services.sandbox.hand import Outcome
from services.sandbox.tools import NAMES

ENVIRONMENT = Label("environment")  # the operator's: `allow_environments`
_TOOL = Label("tool", NAMES)

PROVISIONED = Counter(
    "handmesh_sandboxes_provisioned_total",
    "Sandboxes that somebody got, by environment and how: free in the pool, or made cold.",
    ENVIRONMENT,
    Label("how", ("pool", "cold")),
)
PROVISION_SECONDS = Histogram(
    "handmesh_sandbox_provision_seconds",
    "How long it took until a sandbox could be used, with all that was put into it.",
    Label("how", ("pool", "cold")),
    buckets=SLOW,
)
PROVISION_FAILURES = Counter(
    "handmesh_sandbox_provision_failures_total", "Sandboxes that were asked for and could not be had.", ENVIRONMENT
)
FREE = Gauge("handmesh_pool_free", "Free sandboxes in the pool, by environment.", ENVIRONMENT)
WANTED = Gauge("handmesh_pool_wanted", "How many free sandboxes the pool is to have, by environment.", ENVIRONMENT)
SANDBOXES = Gauge(
    "handmesh_sandboxes", "Sandboxes that are somebody's, by environment, at most half a minute old.", ENVIRONMENT
)
EXECUTIONS = Counter(
    "handmesh_executions_total",
    "Executions that ended in hands, by tool and outcome. The tools of hands that dial out are `other`.",
    _TOOL,
    Label("outcome", (outcome.name.lower() for outcome in Outcome)),
)
EXECUTION_SECONDS = Histogram(
    "handmesh_execution_seconds", "How long executions took, as the hand's service saw them.", _TOOL, buckets=SLOW
)
REAPED = Counter(
    "handmesh_sandboxes_reaped_total",
    "Sandboxes that the reaper destroyed, by why: its session is over or missing, or nobody's was idle.",
    Label("why", ("over", "missing", "idle")),
)
REAP_FAILURES = Counter("handmesh_sandboxes_reap_failures_total", "Sandboxes that the reaper could not destroy.")
WORKERS = Gauge("handmesh_workers", "Workers of hands that dial out which are connected now.")


def allow_environments(pools: Mapping[str, int], free: Callable[[str], int]) -> None:
    """Tells the operator's environments apart. `pools` says how big the pool of each is to be."""
    ENVIRONMENT.allow(pools)
    for name, size in pools.items():
        if size:
            WANTED.watch(partial(float, size), name)
            FREE.watch(partial(free, name), name)


def living(environments: Iterable[str]) -> None:
    """Tells what stands: an environment for each sandbox that is somebody's."""
    found = Tally(map(ENVIRONMENT.of, environments))
    for name in ENVIRONMENT.values:
        if found[name] or name != OTHER:
            SANDBOXES.set(found[name], name)
