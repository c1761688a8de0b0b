"""Writes the example dashboards of dashboards/ for Grafana. A test holds the files and what this writes equal.

python ci/dashboards.py           writes the files
python ci/dashboards.py --check   exits with 1 when they are not what it would write

A panel is a title, a unit, and queries with their legends. Change a dashboard here, or in Grafana and never here again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "dashboards"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3  # of a panel, in Grafana's grid of 24 columns
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """A graph. `unit` is Grafana's name of one; `queries` are (PromQL, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Spells how much a counter goes up each second, added up over all replicas."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{where}{RATE}))"


def quantiles(metric: str, by: str = "", where: str = "") -> tuple[tuple[str, str], ...]:
    """Spells median and 95th percentile of a histogram."""
    more = f", {by}" if by else ""
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (f"histogram_quantile({q}, sum by (le{more}) (rate({metric}_bucket{where}{RATE})))", f"{name}{legend}")
        for q, name in ((0.5, "p50"), (0.95, "p95"))
    )


def calls(service: str) -> tuple[Panel, ...]:
    """Makes the four panels that every service has: its calls, how long they take, which fail, and which are open."""
    mine = f'{{method=~"{service}/.*"}}'
    bad = f'{{method=~"{service}/.*", code!~"OK|CANCELLED"}}'
    return (
        Panel("gRPC calls", "reqps", ((rate("handmesh_grpc_calls_total", "method", mine), "{{method}}"),)),
        Panel("gRPC calls, p95", "s", quantiles("handmesh_grpc_call_seconds", "method", mine)[1:]),
        Panel(
            "gRPC calls that failed",
            "reqps",
            ((rate("handmesh_grpc_calls_total", "method, code", bad), "{{method}} {{code}}"),),
        ),
        Panel(
            "gRPC calls in flight", "short", ((f"sum by (method) (handmesh_grpc_calls_in_flight{mine})", "{{method}}"),)
        ),
    )


OVERVIEW = (
    Panel("Turns that ended", "ops", ((rate("handmesh_turns_total", "reason"), "{{reason}}"),)),
    Panel("From a message to the model's first word", "s", quantiles("handmesh_wake_first_byte_seconds")),
    Panel("Sessions", "short", (("max by (status) (handmesh_sessions)", "{{status}}"),)),
    Panel("Tokens", "ops", ((rate("handmesh_model_tokens_total", "kind"), "{{kind}}"),)),
    Panel("Tool calls", "ops", ((rate("handmesh_tools_total", "outcome"), "{{outcome}}"),)),
    Panel(
        "Waiting for a harness",
        "short",
        (
            ("max by (harness) (handmesh_work_queue_sessions)", "waiting, {{harness}}"),
            ("sum(handmesh_claims)", "at work"),
            ("sum(handmesh_runs_capacity)", "room in all"),
        ),
    ),
    Panel("Replicas", "short", (("sum by (service) (handmesh_service_info)", "{{service}}"),)),
    Panel(
        "gRPC calls that failed",
        "reqps",
        ((rate("handmesh_grpc_calls_total", "code", '{code!~"OK|CANCELLED"}'), "{{code}}"),),
    ),
    Panel(
        "Questions that the model did not answer",
        "ops",
        ((rate("handmesh_model_failures_total", "reason"), "{{reason}}"),),
    ),
    Panel("Memory", "bytes", (("sum by (job) (process_resident_memory_bytes)", "{{job}}"),)),
    Panel("CPU", "percentunit", (("sum by (job) (rate(process_cpu_seconds_total[$__rate_interval]))", "{{job}}"),)),
    Panel("Event loop lag, p95", "s", quantiles("handmesh_event_loop_lag_seconds", "job")[1:]),
)
SESSION = (
    Panel("Appends", "ops", ((rate("handmesh_appends_total", "outcome"), "{{outcome}}"),)),
    Panel("Time of an append", "s", quantiles("handmesh_append_seconds")),
    Panel(
        "Events of an append",
        "short",
        ((f"{rate('handmesh_append_events_sum')} / {rate('handmesh_append_events_count')}", "mean"),),
    ),
    Panel("Events", "ops", ((rate("handmesh_events_total", "kind"), "{{kind}}"),)),
    Panel("From a message to a claim", "s", quantiles("handmesh_wake_claim_seconds")),
    Panel("From a message to the harness's first event", "s", quantiles("handmesh_wake_seconds")),
    Panel("Turns, how long", "s", quantiles("handmesh_turn_seconds", "harness")),
    Panel(
        "Open streams",
        "short",
        (("sum(handmesh_watchers)", "watchers"), ("sum(handmesh_harness_streams)", "harnesses")),
    ),
    Panel("Waiting for a harness", "short", (("max by (harness) (handmesh_work_queue_sessions)", "{{harness}}"),)),
    *calls("SessionService"),
)
HARNESS = (
    Panel("Answers of the model", "ops", ((rate("handmesh_model_answers_total", "model"), "{{model}}"),)),
    Panel("First piece of an answer", "s", quantiles("handmesh_model_first_token_seconds", "model")),
    Panel("Whole answer", "s", quantiles("handmesh_model_answer_seconds", "model")),
    Panel("Tokens", "ops", ((rate("handmesh_model_tokens_total", "model, kind"), "{{model}} {{kind}}"),)),
    Panel(
        "Prompt read from the cache",
        "percentunit",
        (
            (
                rate("handmesh_model_tokens_total", where='{kind="cache_read"}')
                + " / "
                + rate("handmesh_model_tokens_total", where='{kind=~"input|cache_read|cache_write"}'),
                "share",
            ),
        ),
    ),
    Panel(
        "Cost in an hour at this rate",
        "currencyUSD",
        ((f"3600 * {rate('handmesh_model_cost_dollars_total', 'model')}", "{{model}}"),),
    ),
    Panel(
        "Failures and retries",
        "ops",
        (
            (rate("handmesh_model_failures_total", "reason"), "{{reason}}"),
            (rate("handmesh_model_retries_total"), "asked again"),
        ),
    ),
    Panel(
        "Sessions at work",
        "short",
        (
            ("sum by (instance) (handmesh_runs)", "{{instance}}"),
            ("sum by (instance) (handmesh_runs_capacity)", "{{instance}} at most"),
            ("sum(handmesh_draining)", "draining harnesses"),
        ),
    ),
    Panel("Tool calls, p95", "s", quantiles("handmesh_tool_seconds", "tool")[1:]),
)
HANDS = (
    Panel(
        "Sandboxes given away",
        "ops",
        ((rate("handmesh_sandboxes_provisioned_total", "environment, how"), "{{environment}} {{how}}"),),
    ),
    Panel("Until a sandbox can be used", "s", quantiles("handmesh_sandbox_provision_seconds", "how")),
    Panel(
        "Sandboxes that could not be had",
        "ops",
        ((rate("handmesh_sandbox_provision_failures_total", "environment"), "{{environment}}"),),
    ),
    Panel(
        "Pool",
        "short",
        (
            ("sum by (environment) (handmesh_pool_free)", "{{environment}} free"),
            ("sum by (environment) (handmesh_pool_wanted)", "{{environment}} wanted"),
        ),
    ),
    Panel("Sandboxes", "short", (("sum by (environment) (handmesh_sandboxes)", "{{environment}}"),)),
    Panel(
        "Reaper",
        "ops",
        (
            (rate("handmesh_sandboxes_reaped_total", "why"), "{{why}}"),
            (rate("handmesh_sandboxes_reap_failures_total"), "failed"),
        ),
    ),
    Panel("Executions", "ops", ((rate("handmesh_executions_total", "tool, outcome"), "{{tool}} {{outcome}}"),)),
    Panel("Executions, p95", "s", quantiles("handmesh_execution_seconds", "tool")[1:]),
    Panel("Workers that dialled in", "short", (("sum(handmesh_workers)", "workers"),)),
    *calls("SandboxService"),
)
VAULT_PROXY = (
    Panel("Logins to the vault", "ops", ((rate("handmesh_vault_logins_total", "outcome"), "{{outcome}}"),)),
    Panel("Accesses renewed", "ops", ((rate("handmesh_credential_refreshes_total", "outcome"), "{{outcome}}"),)),
    Panel(
        "Stream of revocations",
        "short",
        (("min by (job, instance) (handmesh_revocations_watched)", "{{job}} {{instance}}"),),
    ),
    Panel("Calls of MCP servers", "ops", ((rate("handmesh_mcp_calls_total", "outcome"), "{{outcome}}"),)),
    Panel("Calls of MCP servers, how long", "s", quantiles("handmesh_mcp_call_seconds")),
    Panel(
        "Doors",
        "short",
        (("sum by (door) (handmesh_door_visits_open)", "{{door}} open"),),
    ),
    Panel("Door visits", "ops", ((rate("handmesh_door_visits_total", "door"), "{{door}}"),)),
    Panel("Refused at doors", "ops", ((rate("handmesh_door_refusals_total", "door, reason"), "{{door}} {{reason}}"),)),
    *calls("VaultProxyService"),
)
DASHBOARDS = {
    "overview": ("handmesh: overview", OVERVIEW),
    "session": ("handmesh: sessions and their log", SESSION),
    "harness": ("handmesh: harness and model", HARNESS),
    "hands": ("handmesh: hands", HANDS),
    "vault-proxy": ("handmesh: vault proxy", VAULT_PROXY),
}


def dashboard(name: str) -> dict[str, Any]:
    """Makes a dashboard as Grafana imports it."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"handmesh-{name}",
        "title": title,
        "tags": ["handmesh"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": [_panel(at, panel) for at, panel in enumerate(panels)],
    }


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": at % COLUMNS * WIDTH, "y": at // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def text_of(name: str) -> str:
    """Writes a dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


def main() -> None:
    stale = [name for name in DASHBOARDS if not _is_written(name)]
    if "--check" in sys.argv and stale:
        sys.exit(f"dashboards/ is stale ({', '.join(stale)}): run python ci/dashboards.py")
    for name in stale:
        (FOLDER / f"{name}.json").write_text(text_of(name))


def _is_written(name: str) -> bool:
    file = FOLDER / f"{name}.json"
    return file.exists() and file.read_text() == text_of(name)


if __name__ == "__main__":
    main()
