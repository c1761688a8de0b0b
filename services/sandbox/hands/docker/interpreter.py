"""The service's own Python as a folder that runs by itself: for images that have none, whatever C library they have.

It holds the executable, the standard library, every shared library that these load, and the dynamic loader that
starts them. Nothing of the image is loaded, and no variable is set: what tools start loads what is the image's own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.kit.logs import Log
from services.sandbox.hands.docker.engine import unavailable

SHOWN = "/run/handmesh-python"  # where a sandbox sees it; not in PATH
_LOADER, _SHARED, _PYTHON = "loader", "shared", "bin/python3"
_HALF = ".half-"
_LEFT_OUT = frozenset(
    ("dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "tkinter")
)
# Beginnings of the standard library's modules that load large libraries; the runner has no use for them.
_LEFT_OUT_MODULES = (
    *("_ctypes_test", "_curses", "_dbm", "_gdbm", "_hashlib", "_sqlite3", "_ssl", "_test", "_tkinter"),
    *("nis.", "readline.", "xxlimited"),
)
_LDD_SECONDS = 60
_SHARED_LINE = re.compile(r"^\s+(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)
_LOADER_LINE = re.compile(r"^\s+(/\S+) \(0x", re.MULTILINE)
_log = Log("services.sandbox.hands.docker.interpreter")


class Interpreter:
    """The folder, made when it is first wanted and named for what is in it."""

    def __init__(self, parent: Path) -> None:
        """Takes the folder in which it is made. Makes nothing yet."""
        self._parent = parent
        self._made: Path | None = None
        self._making = asyncio.Lock()

    async def folder(self) -> Path:
        """Returns it. Raises Unavailable when this service's Python cannot be copied."""
        async with self._making:
            if self._made is None or not self._made.is_dir():
                self._made = await asyncio.to_thread(_made, self._parent)
            return self._made


def command() -> list[str]:
    """Returns how a sandbox that sees the folder starts Python."""
    return [f"{SHOWN}/{_LOADER}", "--library-path", f"{SHOWN}/{_SHARED}", f"{SHOWN}/{_PYTHON}"]


def _made(parent: Path) -> Path:
    try:
        files, loader = _contents()
        folder = parent / _digest(files)
        if not folder.is_dir():
            _fill(parent, folder, files, loader)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        _log.error("python not copied", folder=str(parent), error=f"{type(error).__name__}: {error}"[:500])
        raise unavailable(
            "the image has no python3, and the service's own cannot be copied for it; see the service's log. Free "
            'disk space, or give the environment packages = ["python3"]'
        ) from None
    return folder


def _contents() -> tuple[Mapping[str, Path], str]:
    """Returns what belongs into the folder, each path with the file to copy, and the loader's path in it.

    Raises OSError and SubprocessError when that cannot be found out, LookupError when no loader is named.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = {_PYTHON: Path(sys.executable).resolve()}
    for at, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")]
        for name in names:
            path = Path(at, name)
            if not name.startswith(_LEFT_OUT_MODULES) and ".opt-" not in name and path.is_file():
                files[f"{sys.platlibdir}/{library.name}/{path.relative_to(library)}"] = path
    programs = [str(path) for path in files.values() if path.suffix == ".so" or path == files[_PYTHON]]
    # Not `check`: it says no when one of them loads nothing, and a module without its library is one less to import.
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=_LDD_SECONDS, env={"LC_ALL": "C"})
    loaders = _LOADER_LINE.findall(told.stdout)
    files |= {f"{_SHARED}/{Path(path).name}": Path(path) for path in _SHARED_LINE.findall(told.stdout)}
    return files, f"{_SHARED}/{Path(loaders[0]).name}"


def _digest(files: Mapping[str, Path]) -> str:
    """Returns what names a folder of these files. They are told apart as `make` does, by size and time."""
    seen: Sequence[tuple[str, int, int]] = [
        (name, found.st_size, found.st_mtime_ns) for name, path in sorted(files.items()) for found in (path.stat(),)
    ]
    return hashlib.sha256(json.dumps([SHOWN, seen]).encode()).hexdigest()[:32]


def _fill(parent: Path, folder: Path, files: Mapping[str, Path], loader: str) -> None:
    """Makes the folder, whole or not at all. Everybody may read it, for a container's root may be nobody here."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{_HALF}*"):  # of a service that died
        shutil.rmtree(left, ignore_errors=True)
    half = Path(tempfile.mkdtemp(prefix=_HALF, dir=parent))
    try:
        for name, path in files.items():
            target = half / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)  # with its time, or what is compiled would not be taken
            target.chmod(0o755 if path.stat().st_mode & 0o111 else 0o644)
        (half / loader).chmod(0o755)
        (half / _LOADER).symlink_to(loader)
        for at, _, _ in os.walk(half):
            Path(at).chmod(0o755)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    _log.info("python copied", folder=str(folder), files=len(files))
