"""The dashboards, the alerts and the page of metrics tell of what services really export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci import dashboards
from ci import metrics as page
from services.kit import metrics

FOLDER = Path(__file__).parents[2] / "dashboards"
OF_SCRAPES = {"job", "instance", "le"}  # labels that Prometheus itself brings
OTHERS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "process_max_fds"}
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

EXPORTED = {
    each.name + suffix: each
    for instruments in page.by_part().values()
    for each in instruments
    for suffix in SUFFIXES[each.kind]
}
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]


def queries() -> Iterator[tuple[str, str]]:
    """Yields where a query is, and the query."""
    for name in dashboards.DASHBOARDS:
        for panel in json.loads((FOLDER / f"{name}.json").read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
    for rule in ALERTS:
        yield f"alert {rule['alert']}", rule["expr"]


def problems(query: str) -> list[str]:
    """Lists what a query asks for that nobody exports."""
    found = []
    asked: set[str] = set()
    for name, where in re.findall(r"\b((?:handmesh|process)_\w+|up)\b(\{[^}]*\})?", query):
        if name in OTHERS:
            continue
        if name not in EXPORTED:
            found.append(f"no metric {name}")
            continue
        labels = {label.name: label for label in EXPORTED[name].labels}
        asked |= labels.keys()
        for label, values in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', where):
            if label not in labels:
                found.append(f"{name} has no label {label}")
                continue
            for value in values.split("|"):
                if not any(re.fullmatch(value, known) for known in labels[label].values):
                    found.append(f"{name} has no {label} that matches {value}")
    for by in re.findall(r"by \(([^)]*)\)", query):
        found += [f"nothing has the label {it}" for it in re.split(r"[\s,]+", by) if it not in asked | OF_SCRAPES]
    return found


@pytest.mark.parametrize(("where", "query"), [*queries()])
def test_a_query_asks_for_what_is_there(where: str, query: str) -> None:
    """Metrics, labels and values are those that services declare."""
    assert problems(query) == []


@pytest.mark.parametrize(
    "query",
    [
        "sum(rate(handmesh_turn_total[5m]))",
        'sum(handmesh_turns_total{result="done"})',
        'sum(handmesh_turns_total{reason="dnoe"})',
        "sum by (tenant) (handmesh_turns_total)",
        "handmesh_turn_seconds",
    ],
)
def test_a_wrong_query_is_found(query: str) -> None:
    """A misspelt name, label or value would draw an empty graph for ever."""
    assert problems(query) != []


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_the_files_are_what_the_generator_writes(name: str) -> None:
    """`python ci/dashboards.py` has nothing to do; and each panel has a place of its own."""
    assert (FOLDER / f"{name}.json").read_text() == dashboards.text_of(name)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboards.dashboard(name)["panels"]]
    assert len(set(places)) == len(places)


def test_there_is_no_other_dashboard() -> None:
    """What lies there is tested."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(dashboards.DASHBOARDS)


def test_alerts_say_what_to_do() -> None:
    """Each has a severity, what is wrong, and what to look at first; no two have a name."""
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_every_metric_is_in_the_docs() -> None:
    """The table of docs/metrics.md is what the services declare, and none declares one elsewhere."""
    assert page.PAGE.read_text() == page.written()
    assert {each.name for each in EXPORTED.values()} == set(metrics.declared)


def test_every_metric_is_shown_or_watched() -> None:
    """What nobody looks at need not be counted: each is in a dashboard or an alert."""
    asked = " ".join(query for _, query in queries())
    assert [each for each in metrics.declared if not re.search(rf"\b{each}(_bucket|_sum|_count)?\b", asked)] == []


def test_names_end_with_their_units() -> None:
    """Counters end with `_total`; what is measured in seconds says so."""
    for each in metrics.declared.values():
        assert re.fullmatch(r"handmesh(_[a-z]+)+", each.name)
        assert each.name.endswith("_total") == (each.kind == "counter")
        if each.kind == "histogram":
            assert each.name.endswith(("_seconds", "_events"))
