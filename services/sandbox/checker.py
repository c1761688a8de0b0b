"""Collects what is wrong with a TOML file: a line each, with the file, the key, its value and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Checker:
    """The problems of one file. Each method returns the value, or its default when it is wrong."""

    def __init__(self, file: str) -> None:
        self.problems: list[str] = []
        self.file = file

    def wrong(self, key: str, value: object, expected: str) -> None:
        self.problems.append(f"{self.file}: {key} is {value!r}, expected {expected}")

    def known(self, table: dict[str, Any], key: str, names: tuple[str, ...]) -> None:
        for name in table:
            if name not in names:
                self.problems.append(
                    f"{self.file}: {key + '.' if key else ''}{name} is unknown, expected one of {', '.join(names)}"
                )

    def table(self, table: dict[str, Any], name: str, key: str = "") -> dict[str, Any]:
        value = table.get(name, {})
        if isinstance(value, dict):
            return value
        self.wrong(f"{key + '.' if key else ''}{name}", value, "a table")
        return {}

    def text(self, table: dict[str, Any], key: str, name: str, default: str) -> str:
        value = table.get(name, default)
        if isinstance(value, str):
            return value
        self.wrong(f"{key + '.' if key else ''}{name}", value, "a text")
        return default

    def flag(self, table: dict[str, Any], key: str, name: str) -> bool:
        value = table.get(name, False)
        if isinstance(value, bool):
            return value
        self.wrong(f"{key}.{name}", value, "true or false")
        return False

    def one_of(self, table: dict[str, Any], key: str, name: str, names: tuple[str, ...], default: str) -> str:
        value = self.text(table, key, name, default)
        if value not in names:
            self.wrong(f"{key}.{name}", value, "one of " + ", ".join(names))
        return value

    def texts(
        self,
        table: dict[str, Any],
        key: str,
        name: str,
        expected: str,
        fits: Callable[[str], object],
        distinct: bool = False,
    ) -> tuple[str, ...]:
        value = table.get(name, [])
        texts = value if isinstance(value, list) else [value]
        good = all(isinstance(text, str) and fits(text) for text in texts) and isinstance(value, list)
        if good and not (distinct and len(set(texts)) != len(texts)):
            return tuple(texts)
        self.wrong(f"{key}.{name}", value, f"a list of {expected}")
        return ()
