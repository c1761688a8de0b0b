"""Makes and changes the streams that everything is kept in: `python -m services.session.migrate`, before a new version
of the session service starts, with NATS's user `migrate`.

It may be repeated at any time and goes forward only: a stream that a newer version has laid out is left alone, and
nothing is ever deleted. A log stream that is missing while others are there is made again, and said aloud: its files
may still be there, and what they have lost is noticed by the sessions' high-water marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.kit.logs import Log as Journal
from services.kit.settings import tuning, whole
from services.session.logs.jetstream.streams import AUDIT, AUDIT_DAYS, wanted
from services.session.operator import NOT_FOUND, Operator, OperatorSettings, StoreError, connected, main

LAYOUT = 1  # raised by whoever changes a stream in a way that older versions must not undo
LAYOUT_KEY = "handmesh_layout"  # in each stream's metadata

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


async def migrate(operator: Operator, replicas: int | None = None, audit_days: int | None = None) -> list[str]:
    """Brings every stream to this version's layout; returns what was done. Raises StoreError."""
    configs = wanted(replicas or 1, audit_days or AUDIT_DAYS)
    answers = await asyncio.gather(*(operator.ask(f"STREAM.INFO.{config['name']}") for config in configs))
    there = {config["name"]: answer for config, answer in zip(configs, answers, strict=True)}
    done = await asyncio.gather(
        *(_migrate_one(operator, config, there[config["name"]], replicas, audit_days) for config in configs)
    )
    made = [what for what in done if what.startswith("made")]
    if made and len(made) < len(done):
        _journal.warning("streams were missing and are made again", streams=made)
    return [what for what in done if what]


async def _migrate_one(
    operator: Operator, config: dict[str, Any], there: dict[str, Any], replicas: int | None, audit_days: int | None
) -> str:
    name = config["name"]
    if there.get("error", {}).get("err_code") == NOT_FOUND:
        verb, said = "CREATE", f"made {name}"
        config = config | {"metadata": {LAYOUT_KEY: str(LAYOUT)}}
    elif "error" in there:
        raise StoreError(f"NATS does not show the stream {name}: {there['error'].get('description')}")
    else:
        old = there["config"]
        config = config | {"num_replicas": replicas or old.get("num_replicas", 1)}
        if name == AUDIT and audit_days is None:
            config = config | {"max_age": old.get("max_age", 0)}
        layout = int((old.get("metadata") or {}).get(LAYOUT_KEY, 0))
        if layout > LAYOUT:
            raise StoreError(
                f"the stream {name} has layout {layout}, and this version knows {LAYOUT}: upgrade handmesh"
            )
        if layout == LAYOUT and not differences(config, old):
            return ""
        verb, said = "UPDATE", f"changed {name}"
        config = old | config | {"metadata": (old.get("metadata") or {}) | {LAYOUT_KEY: str(LAYOUT)}}
    answer = await operator.ask(f"STREAM.{verb}.{name}", config)
    if "error" in answer:
        raise StoreError(f"NATS refuses the stream {name}: {answer['error'].get('description')}")
    return said


def differences(config: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Names what a stream has otherwise than wanted. What NATS adds by itself does not count."""
    return [key for key, value in config.items() if (there.get(key) or 0) != (value or 0)]


async def run(settings: Settings) -> None:
    """Migrates once and says what was done."""
    async with connected(settings, "migrate") as operator:
        done = await migrate(operator, settings.replicas, settings.audit_days)
    for what in done:
        _journal.info("migrated", what=what)


if __name__ == "__main__":
    main("migrate", Settings, run)
