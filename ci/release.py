"""Cuts a release, and tells which was the last. See docs/upgrade.md.

python ci/release.py 0.2.0     takes the contracts' image, dates the changelog, sets the version; commits nothing
python ci/release.py --latest  prints the folder of the last release
python ci/release.py --check   exits with 1 when something in the contracts is no addition to the last release
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUF = Path(sysconfig.get_path("scripts")) / "buf"
VERSION = re.compile(r"\d+\.\d+\.\d+")
HEADINGS = ("### Contracts", "### Added", "### Changed", "### Fixed")


def parsed(version: str) -> tuple[int, ...]:
    """Returns a version's numbers. Exits when it is none."""
    if not VERSION.fullmatch(version):
        sys.exit(f"the version is {version!r}, expected three numbers, such as 0.2.0")
    return tuple(map(int, version.split(".")))


def latest(root: Path = ROOT) -> Path:
    """Returns the folder of the newest release."""
    folders = [file.parent for file in root.glob("releases/*/release.json")]
    return max(folders, key=lambda folder: parsed(folder.name))


def breaking(root: Path = ROOT) -> str:
    """Returns what in the contracts is no addition to the last release, a line each; nothing when all is well."""
    command = [str(BUF), "breaking", "proto", "--against", str(latest(root) / "contracts.binpb")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr or "buf failed") if done.returncode else ""


def cut(version: str, today: datetime.date, commit: str, root: Path = ROOT) -> list[str]:
    """Makes the release's folder, dates the changelog and sets the version. Returns the files that it wrote.

    Exits, and has written nothing, when the release is not newer than the last, says nothing or breaks something.
    """
    before = latest(root).name
    if parsed(version) <= parsed(before):
        sys.exit(f"{version} is not newer than the last release, {before}")
    if problems := breaking(root):
        sys.exit(f"the contracts break those of {before}; within a major version there are only additions:\n{problems}")
    changelog, project = root / "CHANGELOG.md", root / "pyproject.toml"
    dated = date_changelog(changelog.read_text(), version, today)
    folder = root / "releases" / version
    folder.mkdir()
    subprocess.run([BUF, "build", "proto", "--output", folder / "contracts.binpb"], cwd=root, check=True)
    said = {"version": version, "date": today.isoformat(), "commit": commit}
    (folder / "release.json").write_text(json.dumps(said, indent=2) + "\n")
    changelog.write_text(dated)
    project.write_text(re.sub(r'^version = ".*"$', f'version = "{version}"', project.read_text(), flags=re.MULTILINE))
    return [str(folder.relative_to(root)), "CHANGELOG.md", "pyproject.toml"]


def date_changelog(text: str, version: str, today: datetime.date) -> str:
    """Gives what is under `Unreleased` the version and its date, and leaves an empty `Unreleased` above it."""
    head, found, rest = text.partition("## Unreleased\n")
    body, following, older = rest.partition("\n## ")
    if not found or not re.search(r"^- ", body, re.MULTILINE):
        sys.exit("CHANGELOG.md has nothing under `## Unreleased`: a release says what is new")
    empty = "## Unreleased\n\n" + "\n\n".join(HEADINGS[:2]) + "\n"
    kept = re.sub(r"^### .*\n+(?=###|\Z)", "", body, flags=re.MULTILINE)  # headings that nothing stands under
    return f"{head}{empty}\n## {version} - {today.isoformat()}\n{kept}{following}{older}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    match sys.argv[1:]:
        case ["--latest"]:
            print(latest().relative_to(ROOT))
        case ["--check"]:
            if problems := breaking():
                sys.exit(f"Not only additions to {latest().relative_to(ROOT)}:\n{problems}")
        case [version]:
            if _git("status", "--porcelain"):
                sys.exit("there are changes that are not committed: a release is taken from a commit")
            today = datetime.datetime.now(datetime.UTC).date()
            files = cut(version, today, _git("rev-parse", "HEAD"))
            print(f"git add {' '.join(files)} && git commit -m 'Release {version}' && git tag v{version}")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
