"""Files of the data directory: private ones, written whole or not at all, and the programs that pip installed."""

import json
import os
import secrets
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from handmesh.launcher.errors import NotInstalled


def private_directory(path: Path) -> Path:
    """Makes `path` and its parents, closes `path` itself to other users, and returns it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, content: bytes) -> None:
    """Writes a file with mode 0600 so that a reader, or a crash, sees the old content or the new, never a part."""
    private_directory(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_private_json(path: Path, content: Mapping[str, object] | list[Mapping[str, object]]) -> None:
    """Writes JSON as `write_private` does."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def read_strings(path: Path) -> dict[str, str]:
    """Reads a JSON object of strings, such as a credentials file. Raises ValueError when it is something else."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise ValueError(f"{path} is not a JSON object of strings")
    return content


def find_program(name: str, package: str) -> Path:
    """Returns the program `name`: the one beside this Python (where pip puts it), or the first on PATH.

    Raises NotInstalled, naming the PyPI `package`.
    """
    beside = Path(sysconfig.get_path("scripts")) / name
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which(name)
    if on_path is None:
        raise NotInstalled(f"{name} is not installed. Get it with: pip install {package}")
    return Path(on_path)
