"""Settings are read once, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from services.kit.settings import REQUIRED, SettingsError, address, describe, one_of, read, setting, whole


@dataclass(frozen=True)
class Settings:
    where: str = setting("X_WHERE", address, REQUIRED, "Where it is.")
    many: int = setting("X_MANY", whole, 3, "How many.")
    colour: str | None = setting("X_COLOUR", one_of("red", "green"), None, "Which colour.")


def test_what_is_given_counts_and_what_is_not_has_its_default() -> None:
    """Values are parsed; a default is taken as it is."""
    assert read(Settings, {"X_WHERE": "[::1]:80", "X_COLOUR": "red"}) == Settings("[::1]:80", 3, "red")


def test_all_problems_are_reported_at_once() -> None:
    """Each with the variable, its value and what was expected."""
    with pytest.raises(SettingsError) as problems:
        read(Settings, {"X_MANY": "-1", "X_COLOUR": "blue"})
    assert str(problems.value).splitlines() == [
        "X_WHERE is not set: Where it is.",
        "X_MANY is '-1', expected a whole number from 1 up: How many.",
        "X_COLOUR is 'blue', expected one of red, green: Which colour.",
    ]


def test_help_names_every_variable_with_its_default() -> None:
    """What `--help` and the docs show."""
    assert "X_MANY  (default: 3)" in describe(Settings)
    assert "X_WHERE  (required)" in describe(Settings)
