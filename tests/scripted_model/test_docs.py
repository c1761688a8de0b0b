"""The page for those who write scripts is complete, and its examples can be played."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handmesh.scripted_model import load_script
from handmesh.scripted_model.script_shape import CONVERSATION, SAY, SCRIPT, STOP_REASONS, TURN, USAGE_FIELDS, WHEN

PAGE = (Path(__file__).parents[2] / "docs" / "scripted-model.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("key", [*SCRIPT, *CONVERSATION, *TURN, *WHEN, *SAY, *STOP_REASONS, *USAGE_FIELDS])
def test_every_key_is_described(key: str) -> None:
    """Each key of a script stands in the page, at the beginning of something set as code."""
    assert re.search(rf"`{key}[`: ]", PAGE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_right(number: int) -> None:
    """The YAML in the page can be played as it stands."""
    load_script(EXAMPLES[number])


def test_there_are_examples() -> None:
    """The page has examples, so the test above has something to test."""
    assert len(EXAMPLES) == 2
