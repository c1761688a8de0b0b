"""Docs are part of the change: what is generated is fresh, what is indexed is whole, what is linked is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("proto/*.md"), *ROOT.glob("services/**/*.md")]
)
ADRS = sorted(ROOT.glob("docs/adr/0*.md"))


def test_the_reference_is_what_contracts_and_settings_say() -> None:
    """Every method, error reason and setting is in docs/reference.md, in the contract's own words."""
    check = [sys.executable, "ci/reference.py", "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_and_the_makefile_name_the_same_targets() -> None:
    """Each make target is explained in CONTRIBUTING.md, and each that is explained exists."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = set(re.findall(r"`make ([a-z-]+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    assert targets == told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link in every page is a file or folder that is there."""
    links = re.findall(r"\]\((?!http|mailto:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("adr", ADRS, ids=lambda adr: adr.stem)
def test_decisions_have_their_form(adr: Path) -> None:
    """Date, status, context, decision, consequences, under 60 lines, and a place in the index."""
    text = adr.read_text()
    assert len(text.splitlines()) < 60
    assert re.search(r"^\| Date \| \d{4}-\d\d-\d\d \|$", text, re.MULTILINE)
    assert re.search(r"^\| Status \| (Accepted|Superseded by \d+) \|$", text, re.MULTILINE)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert f"({adr.name})" in (adr.parent / "README.md").read_text()
