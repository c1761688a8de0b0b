"""SECURITY.md's table of attacks is whole: every attack has its files, every file its attack."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ATTACKS = [f"S{number}" for number in range(1, 14)] + [f"V{number}" for number in range(14, 25)]
ATTACKS += [*(f"G{number}" for number in range(25, 31)), "H31", *(f"P{number}" for number in range(36, 41))]


def table() -> dict[str, list[str]]:
    """Returns the files of each attack, as the table has them."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "SECURITY.md").read_text().splitlines():
        row = re.fullmatch(r"\| ((?:[SVGHP]\d+(?:, )?)+) \| (.+) \| (.+) \|", line)
        if row:
            for attack in row[1].split(", "):
                found.setdefault(attack, []).extend(re.findall(r"\]\(([^)]+)\)", row[3]))
    return found


def test_every_attack_has_its_files() -> None:
    """Each is in the table, in its order, with files that are there; those in tests/security say which they are."""
    found = table()
    assert list(found) == ATTACKS
    for attack, files in found.items():
        assert files and all((ROOT / file).is_file() for file in files), attack
        for file in files:
            if file.startswith("tests/security/"):
                assert file.startswith(f"tests/security/test_{attack[0].lower()}{attack[1:].zfill(2)}_")
                assert attack in (ROOT / file).read_text().splitlines()[0] or attack == "S1"


def test_every_file_is_an_attack_s() -> None:
    """What lies in tests/security is in the table."""
    listed = {file for files in table().values() for file in files}
    here = {path.relative_to(ROOT).as_posix() for path in HERE.glob("test_*.py")} - {"tests/security/test_table.py"}
    assert here - listed == set()
