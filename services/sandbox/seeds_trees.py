"""Mirrors and checkouts on the disk, as they get their names."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from services.sandbox.seeds_git import disk

_AGE_SECONDS = 5.0  # how old the files of a new seed look: older than its index, or git would read each again


def keep_mirror(new: Path, folder: Path) -> Path:
    """Gives a mirror that has been fetched its name."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return new.rename(folder / "mirror.git")


def keep(new: Path, tree: Path) -> None:
    """Gives a whole checkout its name."""
    tree.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.rmtree(tree, ignore_errors=True)  # one without its .json: it was being removed
    size = disk(new) - disk(new / ".git" / "objects")
    new.rename(tree)
    whole = tree.with_name(tree.name + ".json")
    part = whole.with_suffix(".part")
    part.write_text(json.dumps({"size": size}))
    part.replace(whole)


def age(tree: Path) -> None:
    """Makes every file older than the index that is written next."""
    moment = int(time.time() - _AGE_SECONDS)
    for parent, folders, names in os.walk(tree):
        if ".git" in folders and parent == str(tree):
            folders.remove(".git")
        for name in names:
            os.utime(Path(parent, name), (moment, moment), follow_symlinks=False)
