"""The program of the last release, made from the repository's own history."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import pytest

from ci import release

CACHE = Path.home() / ".cache" / "handmesh" / "releases"


def previous_release() -> Path:
    """Returns a folder to be put into PYTHONPATH: the last release's wheel, unpacked. Skips where there is no history.

    The wheel is built where setuptools is there; else the packages are taken as they are, which is what is in it.
    """
    commit = json.loads((release.latest() / "release.json").read_text())["commit"]
    folder = CACHE / commit
    if folder.exists():
        return folder
    archive = subprocess.run(["git", "archive", commit], cwd=release.ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the last release, {commit[:7]}, is not in this repository's history (a shallow clone?)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        source, made = Path(place, "source"), Path(place, "made")
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(source, filter="data")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        install = [*pip, "--no-build-isolation", "--no-compile", "--target", str(made), str(source)]
        if subprocess.run(install, capture_output=True, check=False).returncode:
            for package in ("handmesh", "services"):
                shutil.copytree(source / package, made / package, dirs_exist_ok=True)
        if not folder.exists():  # another worker may have been quicker
            made.rename(folder)
    return folder
