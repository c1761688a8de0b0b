"""Finds the harness types that this process can be: the folders of `loops/`, and what the operator names elsewhere."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass

from services.harness import loops
from services.harness.ports import HarnessType, NotAvailable
from services.harness.settings import Settings

NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")  # what a session's configuration takes
LEFT_OUT = "the operator left it out (HANDMESH_HARNESS_TYPES)"


class TypesError(Exception):
    """What the operator wants cannot be had. The text says why."""


@dataclass(frozen=True)
class Listed:
    """A type, and why this process is not of it: empty when it is."""

    name: str
    description: str
    kind: HarnessType | None
    unavailable: str = ""


def found(settings: Settings) -> tuple[Listed, ...]:
    """Makes the types that are wanted, or all that can be made, and lists the others too. In order of their names.

    Raises TypesError for one that is wanted and cannot be made, and when none is left.
    """
    ours = {module.name: f"{loops.__name__}.{module.name}" for module in pkgutil.iter_modules(loops.__path__)}
    places = {**ours, **_named(settings.harness_types, ours)}
    wanted = {each.rpartition(".")[2] for each in settings.harness_types} or set(ours)
    listed = tuple(_listed(name, places[name], name in wanted, settings) for name in sorted(places))
    for each in listed:
        if settings.harness_types and each.name in wanted and each.kind is None:
            raise TypesError(f"HANDMESH_HARNESS_TYPES names {each.name}, which cannot be had: {each.unavailable}")
    if not any(each.kind for each in listed):
        raise TypesError("; ".join(f"{each.name}: {each.unavailable}" for each in listed))
    return listed


def _named(wanted: Sequence[str], ours: dict[str, str]) -> dict[str, str]:
    """Maps the names of what is wanted from elsewhere to where it is."""
    elsewhere = {}
    for each in wanted:
        name = each.rpartition(".")[2]
        if not NAME.fullmatch(name):
            raise TypesError(f"HANDMESH_HARNESS_TYPES: a type's name matches ^{NAME.pattern}$, not {name!r}")
        if "." in each:
            elsewhere[name] = each
        elif each not in ours:
            known = ", ".join(sorted(ours))
            raise TypesError(
                f"HANDMESH_HARNESS_TYPES: there is no type {each}; there are {known}, or say package.module"
            )
    return elsewhere


def _listed(name: str, place: str, wanted: bool, settings: Settings) -> Listed:
    description = ""
    try:
        module = importlib.import_module(place)
        description = module.DESCRIPTION
        return Listed(name, description, module.make(settings)) if wanted else Listed(name, description, None, LEFT_OUT)
    except NotAvailable as missing:
        return Listed(name, description, None, str(missing))
    except ImportError as missing:
        return Listed(name, description, None, f"the Python package {missing.name} is not there")
