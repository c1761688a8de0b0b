"""A release takes the contracts as they are, breaks nothing, and says what is new."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ci import release

DAY = datetime.date(2027, 1, 2)
CHANGELOG = """# Changelog

## Unreleased

### Contracts

### Added

- Something new.

## 0.1.0 - 2026-11-30

### Added

- The first.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a release reads and writes."""
    for folder in ("proto", "releases"):
        shutil.copytree(release.ROOT / folder, tmp_path / folder)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.2.0.dev0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_a_release_has_its_contracts_its_commit_and_its_changes(project: Path) -> None:
    """The image is what `buf build` makes; what was open in the changelog has the version and the day."""
    assert release.cut("9.9.9", DAY, "c0ffee", project) == ["releases/9.9.9", "CHANGELOG.md", "pyproject.toml"]
    built = subprocess.run([release.BUF, "build", "proto", "-o", "-"], cwd=project, capture_output=True, check=True)
    assert (project / "releases/9.9.9/contracts.binpb").read_bytes() == built.stdout
    assert json.loads((project / "releases/9.9.9/release.json").read_text()) == {
        "version": "9.9.9",
        "date": "2027-01-02",
        "commit": "c0ffee",
    }
    assert 'version = "9.9.9"' in (project / "pyproject.toml").read_text()
    assert (project / "CHANGELOG.md").read_text() == CHANGELOG.replace(
        "### Contracts\n\n### Added\n\n- Something",
        "### Contracts\n\n### Added\n\n## 9.9.9 - 2027-01-02\n\n### Added\n\n- Something",
    )
    assert release.latest(project).name == "9.9.9"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("string session_id = 1;", "int64 session_id = 1;", "changed type"),
        ("  string unavailable = 3;\n", "", "deleted"),
        ("  rpc Drain(DrainRequest) returns (DrainResponse);\n", "", "deleted"),
    ],
)
def test_what_breaks_the_last_release_is_never_released(project: Path, old: str, new: str, said: str) -> None:
    """A type that changed, a field or a method that is gone: told by name, and nothing is written."""
    file = project / "proto/handmesh/harness/v1/harness.proto"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(SystemExit, match=said):
        release.cut("9.9.9", DAY, "c0ffee", project)
    assert not (project / "releases/9.9.9").exists()
    assert (project / "CHANGELOG.md").read_text() == CHANGELOG


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "1.0", "v1.0.0", ""])
def test_versions_only_rise(project: Path, version: str) -> None:
    """A release is newer than the last, in three numbers."""
    with pytest.raises(SystemExit, match=r"not newer|three numbers"):
        release.cut(version, DAY, "c0ffee", project)


def test_a_release_says_what_is_new(project: Path) -> None:
    """With nothing in the changelog there is no release."""
    (project / "CHANGELOG.md").write_text(CHANGELOG.replace("- Something new.\n\n", ""))
    with pytest.raises(SystemExit, match="nothing under"):
        release.cut("9.9.9", DAY, "c0ffee", project)


def test_the_contracts_break_nothing_of_the_last_release() -> None:
    """What `make check` asks of them."""
    assert release.breaking() == ""
