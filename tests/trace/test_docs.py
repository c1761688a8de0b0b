"""docs/trace.md explains every verdict, and its pictures are what is drawn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from handmesh.diagnosis.evidence import PART_OF, PARTS
from handmesh.diagnosis.wording import OUTCOMES, REASONS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "trace.md").read_text()
CODE = rf"(?:{'|'.join(PARTS)})-[a-z]+(?:-[a-z]+)?"


def test_every_verdict_is_explained() -> None:
    """Each code that the rules can give is in a table, and no other."""
    rules = "\n".join(path.read_text() for path in sorted((ROOT / "handmesh" / "diagnosis").glob("*.py")))
    codes = {*re.findall(rf'"({CODE})"', rules), *(word.code for word in (*REASONS.values(), *OUTCOMES.values()))}
    codes |= {f"{part}-{how}" for part in set(PART_OF.values()) for how in ("away", "stalled")}
    codes |= {f"{part}-failed" for part in ("hand", "proxy")}  # for reasons that nobody has worded
    assert set(re.findall(rf"`({CODE})`", TEXT)) == codes


def test_the_pictures_are_what_is_drawn() -> None:
    """`python ci/trace_picture.py` draws them anew."""
    drawn = subprocess.run([sys.executable, "ci/trace_picture.py", "--check"], cwd=ROOT, check=False)
    assert drawn.returncode == 0
