"""The peers' own virtual environment, in the user's cache: made when it is first wanted, anew when they change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
INSTALL_SECONDS = 600.0


class NotInstalledError(Exception):
    """The peers are not there and cannot be had; says why."""


def environment() -> Path:
    """Returns the folder of their programs. Blocks while they are installed, for some minutes.

    Raises NotInstalledError when they cannot be.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "handmesh-bench"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache / f"peers-{digest}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder)
        (folder / "done").touch()
    return folder / "bin"


def _make(folder: Path) -> None:
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise NotInstalledError(f"they cannot be installed: {said[-1] if said else error}") from None
