"""Makes and changes what everything is kept in: `python -m services.session.migrate`, before a new version of the
session service starts, with NATS's user `migrate`.

First the streams, which are compared with what this version wants; then the steps that the store has not taken yet
(`migrations`). It may be killed at any point and repeated at any time, several at once wait for each other
(`migrate_turn`), and it goes forward only: what a newer version has laid out is left alone, and no log is deleted. A
log stream that is missing while others are there is made again, and said aloud: its files may still be there, and what
they have lost is noticed by the sessions' high-water marks.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from services.kit.logs import Log as Journal
from services.kit.settings import tuning, whole
from services.session.logs.jetstream.streams import AUDIT, AUDIT_DAYS, wanted
from services.session.migrate_turn import in_turn
from services.session.migrations import LEVEL, SCHEMA, STEPS, Level, Step, to_do
from services.session.operator import NOT_FOUND, Operator, OperatorSettings, StoreError, connected, main

LAYOUT = 1  # raised by whoever changes a stream in a way that older versions must not undo
LAYOUT_KEY = "handmesh_layout"  # in each stream's metadata
TELL_SECONDS = 1.0  # between two lines about a long step

_journal = Journal("services.session.migrate")


@dataclass(frozen=True)
class Settings(OperatorSettings):
    """What `migrate` is told."""

    replicas: int | None = tuning(
        "HANDMESH_NATS_REPLICAS", whole, None, "On how many nodes each stream lies: 3 or 5. None: 1, or as it is."
    )
    audit_days: int | None = tuning(
        "HANDMESH_AUDIT_DAYS", whole, None, "Days that uses of credentials are kept. None: 365, or as it is."
    )


@dataclass(frozen=True)
class Change:
    """Something that is to be done to a stream: a request to JetStream, and how it is said."""

    said: str
    verb: str
    config: Mapping[str, Any]


async def migrate(
    operator: Operator,
    replicas: int | None = None,
    audit_days: int | None = None,
    steps: Sequence[Step] = STEPS,
    dry_run: bool = False,
) -> list[str]:
    """Brings the store to this version, and returns what was done, or with `dry_run` what would be. Raises StoreError.

    A store that has all of it costs some questions, and nobody's turn.
    """
    changes, left = await _plan(operator, replicas, audit_days, steps)
    if dry_run or not (changes or left):
        return _told(changes, left)
    for change in changes:
        if change.config["name"] == SCHEMA:  # where turns are kept; to make it twice is to make it once
            await _change(operator, change)
    return await in_turn(operator, _who(), lambda: _migrate(operator, replicas, audit_days, steps, changes))


async def _migrate(
    operator: Operator, replicas: int | None, audit_days: int | None, steps: Sequence[Step], seen: Sequence[Change]
) -> list[str]:
    schema = [change for change in seen if change.config["name"] == SCHEMA]
    changes, left = await _plan(operator, replicas, audit_days, steps)  # whoever had the turn before may have done it
    made = [change.said for change in (*schema, *changes) if change.verb == "CREATE"]
    missing = [said for said in made if not left or said.startswith("made LOG-")]  # a new version has new streams
    if missing and len(made) < len(wanted()):
        _journal.warning("streams were missing and are made again", streams=missing)
    await asyncio.gather(*(_change(operator, change) for change in changes))
    for step in left:
        told, _ = await operator.entry(SCHEMA, _key(step))
        _journal.info("step begins", step=step.number, name=step.name, resumed=bool(told))
        await step.apply(operator, _Progress(operator, step, told))
        await operator.put(LEVEL, Level(step.number, _version()).pack())
    return _told([*schema, *changes], left)


async def _plan(
    operator: Operator, replicas: int | None, audit_days: int | None, steps: Sequence[Step]
) -> tuple[list[Change], list[Step]]:
    configs = wanted(replicas or 1, audit_days or AUDIT_DAYS)
    answers = await asyncio.gather(*(operator.ask(f"STREAM.INFO.{config['name']}") for config in configs))
    found = [_change_of(config, there, replicas, audit_days) for config, there in zip(configs, answers, strict=True)]
    changes = [change for change in found if change is not None]
    without = any(change.config["name"] == SCHEMA and change.verb == "CREATE" for change in changes)
    level = Level() if without else Level.of((await operator.entry(SCHEMA, LEVEL))[0])
    return changes, to_do(level, steps)


def _change_of(
    config: dict[str, Any], there: dict[str, Any], replicas: int | None, audit_days: int | None
) -> Change | None:
    name = config["name"]
    if there.get("error", {}).get("err_code") == NOT_FOUND:
        return Change(f"made {name}", "CREATE", config | {"metadata": {LAYOUT_KEY: str(LAYOUT)}})
    if "error" in there:
        raise StoreError(f"NATS does not show the stream {name}: {there['error'].get('description')}")
    old = there["config"]
    config = config | {"num_replicas": replicas or old.get("num_replicas", 1)}
    if name == AUDIT and audit_days is None:
        config = config | {"max_age": old.get("max_age", 0)}
    layout = int((old.get("metadata") or {}).get(LAYOUT_KEY, 0))
    if layout > LAYOUT:
        raise StoreError(f"the stream {name} has layout {layout}, and this version knows {LAYOUT}: upgrade handmesh")
    if layout == LAYOUT and not differences(config, old):
        return None
    metadata = (old.get("metadata") or {}) | {LAYOUT_KEY: str(LAYOUT)}
    return Change(f"changed {name}", "UPDATE", old | config | {"metadata": metadata})


async def _change(operator: Operator, change: Change) -> None:
    name = change.config["name"]
    answer = await operator.ask(f"STREAM.{change.verb}.{name}", change.config)
    if "error" in answer:
        raise StoreError(f"NATS refuses the stream {name}: {answer['error'].get('description')}")


class _Progress:
    """Keeps in the store, and says in the log, how far a step's work is."""

    def __init__(self, operator: Operator, step: Step, told: bytes) -> None:
        self._operator = operator
        self._step = step
        self._said = 0.0
        self.cursor = str(json.loads(told)["cursor"]) if told else ""

    async def save(self, cursor: str, done: int, total: int) -> None:
        self.cursor = cursor
        await self._operator.put(_key(self._step), json.dumps({"cursor": cursor}).encode())
        if time.monotonic() - self._said >= TELL_SECONDS:
            self._said = time.monotonic()
            _journal.info("step goes on", step=self._step.number, done=done, total=total)


def _key(step: Step) -> str:
    return f"schema.step.{step.number}"


def _told(changes: Sequence[Change], left: Sequence[Step]) -> list[str]:
    return [*(change.said for change in changes), *(f"step {step.number}: {step.name}" for step in left)]


def _who() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _version() -> str:
    try:
        return version("handmesh")
    except PackageNotFoundError:  # run from its folder
        return "unknown"


def differences(config: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Names what a stream has otherwise than wanted. What NATS adds by itself does not count."""
    return [key for key, value in config.items() if (there.get(key) or 0) != (value or 0)]


async def run(settings: Settings, dry_run: bool = False) -> None:
    """Migrates once and says what was done; with `dry_run` prints what would be, a line each."""
    async with connected(settings, "migrate") as operator:
        done = await migrate(operator, settings.replicas, settings.audit_days, dry_run=dry_run)
    if dry_run:
        sys.stdout.write("".join(f"{what}\n" for what in done))
        return
    for what in done:
        _journal.info("migrated", what=what)


if __name__ == "__main__":
    main("migrate", Settings, run, {"dry-run": "print what would be done, and do nothing"})
