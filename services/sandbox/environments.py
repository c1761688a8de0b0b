"""Environments: recipes by name, from the operator's TOML file and the built-in ones. Pure, but for `load`.

default = "build"                    # what a session gets that names no environment

[environments.build]
backend = "docker"                   # a folder under hands/
description = "Python and git"
image = "handmesh/base:latest"       # docker; also: runtime, packages, setup. bubblewrap: rootfs.
                                     # remote: worker, [labels]
network = "none"                     # what tools may reach; or [network], below
size = "medium"                      # a preset of limits: small, medium, large; [limits] refines it
tools = ["bash", "read"]             # all when not given
pool = 4                             # free sandboxes to keep ready; 0 when not given

[environments.build.env]             # seen by every tool: no secrets
LANG = "C.UTF-8"

[environments.build.limits]
memory_mib = 2048                    # also: cpus, processes, disk_mib, open_files, seconds,
                                     # output_text_kib, output_file_mib, output_total_mib

[environments.build.network]         # through the vault proxy; see docs/hands.md
allow = ["api.example.com", "*.example.org", "example.net:8443"]   # ports 80 and 443 when none is said
allow_package_managers = true        # the hosts that pip, npm, cargo, go and the like fetch from
allow_mcp_servers = true             # the hosts of the session's MCP servers
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.kit.errors import Invalid
from services.sandbox import networks
from services.sandbox.checker import Checker
from services.sandbox.hand import NO_NETWORK, Limits, Recipe
from services.sandbox.tools import NAMES

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MAX_POOL = 1000
_TOOL = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:=~-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


SIZES: Mapping[str, Limits] = {
    "small": Limits(memory_bytes=512 << 20, cpus=1.0, processes=128, disk_bytes=512 << 20),
    "medium": Limits(),
    "large": Limits(memory_bytes=4 << 30, cpus=4.0, processes=1024, disk_bytes=4 << 30, open_files=4096),
}
_DEFAULT_SIZE = "medium"


class EnvironmentsError(Exception):
    """The file is wrong. Its text has a line for each problem: file, key, value, what was expected."""


@dataclass(frozen=True)
class Environments:
    """All recipes by name, and the name of the default one."""

    recipes: Mapping[str, Recipe]
    default: str

    def recipe(self, name: str) -> Recipe:
        """Returns a recipe; the default one for an empty name. Raises Invalid (`ENVIRONMENT_UNKNOWN`)."""
        found = self.recipes.get(name or self.default)
        if found is None:
            known = ", ".join(sorted(self.recipes))
            shown = name[:100].encode("ascii", "replace").decode()
            raise Invalid(
                "ENVIRONMENT_UNKNOWN", f"there is no environment {shown!r}; there are: {known}", environment=shown
            )
        return found


BUILT_IN = Environments(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("default", "bubblewrap", "An isolated view of this machine's own programs. No network."),
            Recipe("docker", "docker", "A container with bash, git and Python. No network."),
            Recipe("process", "process", "This machine itself, without isolation. For tests and for reading."),
        )
    },
    "default",
)


def load(file: Path | None, backends: Mapping[str, frozenset[str]]) -> Environments:
    """Reads the operator's file over the built-in environments. Raises EnvironmentsError."""
    if file is None:
        return BUILT_IN
    try:
        return parse(file.read_text(), str(file), backends)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentsError(f"{file}: cannot be read ({type(error).__name__})") from None


def with_default_pool(known: Environments, size: int) -> Environments:
    """Gives the default environment a pool unless it has one."""
    recipe = known.recipe("")
    if recipe.pool:
        return known
    return replace(known, recipes={**known.recipes, recipe.name: replace(recipe, pool=size)})


def parse(text: str, file: str, backends: Mapping[str, frozenset[str]]) -> Environments:
    """Reads a file's text. Raises EnvironmentsError with every problem.

    `backends` are those that there are, each with the keys that it understands beside those of every recipe.
    """
    try:
        top = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EnvironmentsError(f"{file}: is no TOML: {error}") from None
    check = Checker(file)
    check.known(top, "", ("default", "environments"))
    recipes = dict(BUILT_IN.recipes)
    for name, table in check.table(top, "environments").items():
        key = f"environments.{name}"
        if not _NAME.fullmatch(name):
            check.wrong(key, name, "a name of a-z 0-9 _ -, at most 64 characters long")
        elif not isinstance(table, dict):
            check.wrong(key, table, "a table")
        else:
            recipes[name] = _recipe(check, name, key, table, backends)
    default = check.text(top, "", "default", BUILT_IN.default)
    if default not in recipes:
        check.wrong("default", default, "one of " + ", ".join(sorted(recipes)))
    if check.problems:
        raise EnvironmentsError("\n".join(check.problems))
    return Environments(recipes, default)


def _recipe(
    check: Checker, name: str, key: str, table: dict[str, Any], backends: Mapping[str, frozenset[str]]
) -> Recipe:
    backend = check.one_of(table, key, "backend", tuple(sorted(backends)), "")
    texts, lists = ("description", "image", "rootfs", "runtime", "worker"), ("packages", "setup", "tools")
    allowed = {"backend", "description", "network", "size", "tools", "pool", "env", "limits"} | backends.get(
        backend, set()
    )
    check.known(table, key, ("backend", *texts, *lists, "labels", "network", "size", "pool", "env", "limits"))
    for extra in sorted({*texts, *lists, "labels"} & table.keys() - allowed if backend in backends else ()):
        takers = [other for other, keys in sorted(backends.items()) if extra in keys]
        check.problems.append(
            f"{check.file}: {key}.{extra} is nothing for the backend {backend}, expected only with " + ", ".join(takers)
        )
    values = {text: check.text(table, key, text, "") for text in texts}
    env = check.table(table, "env", key)
    for variable, value in env.items():
        if not _VARIABLE.fullmatch(variable) or not isinstance(value, str) or "\0" in value:
            check.wrong(f"{key}.env.{variable}", value, "a variable's name and a text")
    size = check.one_of(table, key, "size", tuple(SIZES), _DEFAULT_SIZE)
    pool = table.get("pool", 0)
    if not isinstance(pool, int) or isinstance(pool, bool) or not 0 <= pool <= MAX_POOL:
        check.wrong(f"{key}.pool", pool, f"a whole number from 0 to {MAX_POOL}")
        pool = 0
    return Recipe(
        name,
        backend,
        **values,
        packages=check.texts(table, key, "packages", "names of packages", _PACKAGE.fullmatch),
        setup=check.texts(table, key, "setup", "commands", lambda text: text.strip() and "\0" not in text),
        network=networks.network(check, f"{key}.network", table.get("network", NO_NETWORK)),
        tools=_tools(check, key, table, "worker" in backends.get(backend, ())),
        labels=_labels(check, key, table),
        env=env,
        limits=_limits(check, key, check.table(table, "limits", key), SIZES.get(size, Limits())),
        pool=pool,
    )


def _tools(check: Checker, key: str, table: dict[str, Any], own: bool) -> tuple[str, ...]:
    """Returns the names of tools: the runner's, or whatever hands of their own have."""
    if own:
        return check.texts(table, key, "tools", "names of tools", _TOOL.fullmatch, distinct=True)
    return check.texts(table, key, "tools", ", ".join(NAMES), NAMES.__contains__, distinct=True)


def _labels(check: Checker, key: str, table: dict[str, Any]) -> dict[str, str]:
    labels = check.table(table, "labels", key)
    for label, value in labels.items():
        if not isinstance(value, str):
            check.wrong(f"{key}.labels.{label}", value, "a text")
    return {label: value for label, value in labels.items() if isinstance(value, str)}


def _limits(check: Checker, key: str, table: dict[str, Any], preset: Limits) -> Limits:
    given: dict[str, Any] = {}
    check.known(table, f"{key}.limits", tuple(_LIMITS))
    for name, (field, parse, expected) in _LIMITS.items():
        if name in table:
            try:
                given[field] = parse(table[name])
            except ValueError:
                check.wrong(f"{key}.limits.{name}", table[name], expected)
    return replace(preset, **given)


def _whole(unit: int, least: int = 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError
        return value * unit

    return parse


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.01 <= value <= 1e6:
        raise ValueError
    return float(value)


_LIMITS: dict[str, tuple[str, Callable[[Any], int | float], str]] = {
    "memory_mib": ("memory_bytes", _whole(1 << 20, least=64), "a whole number from 64 up"),
    "cpus": ("cpus", _number, "a number above 0"),
    "processes": ("processes", _whole(1, least=8), "a whole number from 8 up"),
    "disk_mib": ("disk_bytes", _whole(1 << 20), "a whole number from 1 up"),
    "open_files": ("open_files", _whole(1, least=300), "a whole number from 300 up"),
    "seconds": ("seconds", _number, "a number above 0"),
    "output_text_kib": ("output_text_bytes", _whole(1 << 10), "a whole number from 1 up"),
    "output_file_mib": ("output_file_bytes", _whole(1 << 20), "a whole number from 1 up"),
    "output_total_mib": ("output_total_bytes", _whole(1 << 20), "a whole number from 1 up"),
}
