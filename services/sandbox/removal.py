"""Removes a folder whatever hostile code has made of it: locked, huge, deeper than a path or a stack can be."""

from __future__ import annotations

import itertools
import os
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Removes a folder in which nobody works any more. Idempotent; follows no links.

    A folder in it is moved up to the top instead of being descended into: no path grows, and nothing is held open.
    """
    numbers = itertools.count()
    waiting = [folder]
    while waiting:
        at = waiting[-1]
        try:
            at.chmod(0o700)
            inner = _emptied(at)
            for path in inner:
                path.chmod(0o700)  # moving a folder writes to it: to its `..`
                waiting.append(path.rename(_free(folder, numbers)))
            if not inner:
                at.rmdir()
                waiting.pop()
        except FileNotFoundError:
            waiting.pop()  # somebody else removes it too


def _emptied(folder: Path) -> list[Path]:
    """Removes what is no folder, and returns the folders."""
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(Path(entry.path))
            else:
                Path(entry.path).unlink()
    return inner


def _free(folder: Path, numbers: itertools.count[int]) -> Path:
    """Returns a path in a folder that nothing has. A tool may have taken the obvious ones."""
    return next(path for number in numbers if not os.path.lexists(path := folder / f".removed-{number}"))
