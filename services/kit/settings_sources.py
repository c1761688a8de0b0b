"""Where settings come from beside the environment: a TOML file, which HANDMESH_CONFIG_FILE names.

    log_level = "warning"       # HANDMESH_LOG_LEVEL of every program that reads the file

    [session]                   # of the session service alone
    nats_url = "nats://nats:4222"
    retention_file = "/etc/handmesh/retention.json"

    [harness]
    capacity = 200
    harness_types = ["messages", "echo"]

A name is the variable's without HANDMESH_, in lower case. Lists are what the variable has with commas. So one file does
for the whole mesh; a program reads its own table and what is above all tables, and what it does not know there is an
error. Secrets are not in it: it names their files.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CONFIG_FILE = "HANDMESH_CONFIG_FILE"
PROGRAMS = ("session", "harness", "sandbox", "vault_proxy", "migrate", "janitor")
OURS = "HANDMESH_"


def from_file(name: str | None, known: list[str], program: str) -> tuple[dict[str, str], list[str]]:
    """Reads the file's values for a program, by variable, as the environment would have them; and what is wrong."""
    if name is None:
        return {}, []
    try:
        tables = tomllib.loads(Path(name).read_text())
    except (OSError, UnicodeDecodeError) as problem:
        return {}, [f"{CONFIG_FILE} is {name!r}, expected a file that can be read: {type(problem).__name__}"]
    except tomllib.TOMLDecodeError as problem:
        return {}, [f"{CONFIG_FILE} is {name!r}, expected TOML: {problem}"]
    problems: list[str] = []
    above = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    for table in tables.keys() - above.keys() - set(PROGRAMS):
        problems.append(f"{name}: [{table}] is no program's table{_perhaps(table, PROGRAMS)}")
    own = tables.get(program, {}) if program not in above else {}
    values = _texts(above, f"{name}: ", known, problems) | _texts(own, f"{name}: [{program}] ", known, problems)
    return values, problems


def _texts(table: dict[str, Any], where: str, known: list[str], problems: list[str]) -> dict[str, str]:
    names = {variable.removeprefix(OURS).lower(): variable for variable in known}
    texts: dict[str, str] = {}
    for key, value in table.items():
        if key not in names:
            problems.append(f"{where}{key} is no setting{_perhaps(key, names)}")
        elif (text := _text(value)) is None:
            problems.append(f"{where}{key} is a {type(value).__name__}, expected text, a number, true, false or a list")
        else:
            texts[names[key]] = text
    return texts


def _text(value: Any) -> str | None:
    match value:
        case bool():
            return "1" if value else "0"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(each, str | int) for each in value):
            return ",".join(map(str, value))
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the known name that a mistaken one is most like; nothing when it is like none."""
    by_tail = {each.removeprefix(OURS): each for each in known}  # what all begin with makes nothing alike
    return by_tail.get(next(iter(difflib.get_close_matches(name.removeprefix(OURS), list(by_tail), 1)), ""), "")


def _perhaps(name: str, known: Iterable[str]) -> str:
    return f"; perhaps {found}" if (found := nearest(name, known)) else ""


def shown(variable: str, value: str) -> str:
    """Quotes a value for an error: never a password in an address, nor what stands where a secret's file is named."""
    if variable.endswith("_FILE") and not value.startswith(("/", "./", "../")):
        return f"{len(value)} characters that are not an absolute path (not shown: they may be a secret)"
    try:
        where = urlsplit(value)
        if "@" in where.netloc:
            return repr(value.replace(where.netloc, "***@" + where.netloc.rpartition("@")[2], 1))
    except ValueError:
        pass  # not an address
    return repr(value)
