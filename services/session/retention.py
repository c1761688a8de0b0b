"""How long sessions are kept: rules by label, and which sessions are past them. Pure, but for reading the file.

    [
      {"label": "tier", "value": "free", "max_age_days": 30, "action": "delete"},
      {"label": "tier", "value": "free", "max_bytes": 10000000000, "action": "archive"},
      {"tenant": "acme", "label": "team", "value": "ci", "max_age_days": 7, "action": "delete"}
    ]

A rule holds for each tenant by itself, or for the one that it names. Age counts from the last event that changed what
the session does. Bytes are those of all the sessions with the label together; the oldest go first. A session at work
is left alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.session.core import Status
from services.session.index import Row, prefix_of

DAY = 24 * 60 * 60 * 1_000_000_000  # nanoseconds
_AT_WORK = frozenset({int(Status.RUNNING), int(Status.RETRYING)})
_FIELDS: dict[str, Any] = {
    "tenant": str,
    "label": str,
    "value": str,
    "max_age_days": (int, float),
    "max_bytes": int,
    "action": str,
}


class RetentionError(Exception):
    """The file says something that is no rule. The text says which, and what was expected."""


@dataclass(frozen=True)
class Rule:
    """Sessions of a tenant (empty: each) whose label has the value, and what is done with those past the limits."""

    label: str
    value: str
    delete: bool
    max_age: int | None = None  # nanoseconds
    max_bytes: int | None = None
    tenant: str = ""


@dataclass(frozen=True)
class Due:
    """A session that is past a rule. `tenant_prefix` is of its key in the index."""

    tenant_prefix: str
    session_id: str
    delete: bool


def read(file: Path) -> list[Rule]:
    """Reads rules. Raises RetentionError."""
    try:
        found = json.loads(file.read_text())
    except ValueError:
        raise RetentionError(f"{file} is no JSON") from None
    if not isinstance(found, list):
        raise RetentionError(f"{file} holds no list of rules")
    return [_rule(entry, f"rule {number} of {file}") for number, entry in enumerate(found, 1)]


def _rule(entry: Any, where: str) -> Rule:
    if not isinstance(entry, dict):
        raise RetentionError(f"{where} is no object")
    for name, value in entry.items():
        if name not in _FIELDS:
            raise RetentionError(f"{where} has {name!r}; known are {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[name]) or isinstance(value, bool) or (name.startswith("max_") and value <= 0):
            raise RetentionError(f"{where}: {name} is {value!r}, which cannot be")
    if not entry.get("label") or "value" not in entry:
        raise RetentionError(f"{where} needs label and value")
    if "max_age_days" not in entry and "max_bytes" not in entry:
        raise RetentionError(f"{where} needs max_age_days or max_bytes")
    if entry.get("action") not in ("archive", "delete"):
        raise RetentionError(f"{where}: action must be archive or delete")
    age = int(entry["max_age_days"] * DAY) if "max_age_days" in entry else None
    delete = entry["action"] == "delete"
    return Rule(entry["label"], entry["value"], delete, age, entry.get("max_bytes"), entry.get("tenant", ""))


def due(rules: Sequence[Rule], rows: Iterable[tuple[str, str, Row]], now: int) -> Iterator[Due]:
    """Yields the sessions that are past a rule, each at most once, and to be deleted rather than archived.

    `rows` are tenant's prefix, session and row; `now` is in nanoseconds.
    """
    there = [each for each in rows if each[2].made and not each[2].gone]
    found: dict[tuple[str, str], bool] = {}
    for rule in rules:
        for prefix, session_id, row in _past(rule, there, now):
            if row.status not in _AT_WORK and (rule.delete or not row.archived):
                found[prefix, session_id] = found.get((prefix, session_id), False) or rule.delete
    for (prefix, session_id), delete in found.items():
        yield Due(prefix, session_id, delete)


def _past(rule: Rule, rows: Iterable[tuple[str, str, Row]], now: int) -> Iterator[tuple[str, str, Row]]:
    only = prefix_of(rule.tenant) if rule.tenant else None
    by_tenant: defaultdict[str, list[tuple[str, str, Row]]] = defaultdict(list)
    for each in rows:
        if only in (None, each[0]) and _labelled(rule, each[2].labels):
            by_tenant[each[0]].append(each)
    for sessions in by_tenant.values():
        kept = 0
        for each in sorted(sessions, key=lambda one: one[2].updated, reverse=True):
            row = each[2]
            counted = rule.delete or not row.archived  # what is archived counts for nothing that archives
            kept += row.size if counted else 0
            too_old = rule.max_age is not None and now - row.updated > rule.max_age
            if too_old or (rule.max_bytes is not None and counted and kept > rule.max_bytes):
                yield each


def _labelled(rule: Rule, labels: Mapping[str, str]) -> bool:
    return labels.get(rule.label) == rule.value
