"""docs/context.md leaves out nothing that a policy can say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from services.harness.loops.messages.policy import KINDS, MODES, policy_of
from services.harness.model_profiles import BETAS, THINKING

PAGE = (Path(__file__).parents[2] / "docs" / "context.md").read_text("utf-8")


def test_every_key_is_in_the_table() -> None:
    """With the kinds and modes that there are."""
    table = PAGE.split("| key | it says | left out |")[1].split("\n\n")[0]
    trim = {"above": 9, "keep": 2, "at_least": 9}
    compaction = {"mode": "on", "at": 0.5, "instructions": ""}
    whole = {"compaction": compaction, "ignore": False, "window": 9, "trim": dict.fromkeys(KINDS, trim)}
    policy_of(json.dumps({**whole, "api": {"edits": []}}), THINKING)  # raises for a key that is none
    keys = [*whole, "api.edits", *(f"compaction.{key}" for key in compaction), *(f"trim.KIND.{key}" for key in trim)]
    assert [key for key in keys if f"| `{key}` |" not in table] == []
    assert [word for word in (*KINDS, *MODES) if word not in table] == []


def test_the_policy_of_the_page_is_one() -> None:
    """The JSON in it is taken by a model that has all edits."""
    (text,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert policy_of(text, THINKING).betas == tuple(sorted(set(BETAS.values())))
