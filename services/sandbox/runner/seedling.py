"""Takes a directory that the service brings in pieces, where it could not be mounted. For the service alone.

It runs as the user of the tools, in a folder beside the one that it will be: what is cut off is begun anew.
"""

from __future__ import annotations

import base64
import os
import shutil
from typing import Any

from .files import Answer, ToolFailed

_PART = ".handmesh-part"
_MARK = os.path.join(".git", "handmesh-seed")  # which one it is, so that a second time changes nothing


def plant(workspace: str, given: dict[str, Any]) -> Answer:
    """Does a step of it: `begin`, any number of `entries`, `end`. Says `there` when it is there already."""
    path = os.path.join(os.path.realpath(workspace), given["path"])
    if os.path.realpath(path) != path:
        raise ToolFailed("a link is on the way")
    if given["step"] == "begin":
        return Answer(_begin(path, given["seed"]))
    if given["step"] == "end":
        _write(os.path.join(path + _PART, _MARK), given["seed"].encode(), 0o600, False)
        if os.path.isdir(path):
            os.rmdir(path)
        os.rename(path + _PART, path)
        return Answer("there")
    for name, kind, mode, moment, content in given["entries"]:
        _enter(os.path.join(path + _PART, os.fsdecode(base64.b64decode(name))), kind, mode, moment, content)
    return Answer("taken")


def _begin(path: str, seed: str) -> str:
    try:
        with open(os.path.join(path, _MARK)) as file:
            if file.read() == seed:
                return "there"
    except OSError:
        pass
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise ToolFailed("something is there")
    if os.path.lexists(path + _PART):
        shutil.rmtree(path + _PART)
    os.makedirs(path + _PART)
    return "begun"


def _enter(path: str, kind: str, mode: int, moment: int, content: str) -> None:
    data = base64.b64decode(content)
    if kind == "directory":
        os.mkdir(path, 0o755)
        return
    if kind == "link":
        os.symlink(os.fsdecode(data), path)
    else:
        _write(path, data, mode, kind == "more")
    os.utime(path, ns=(moment, moment), follow_symlinks=False)


def _write(path: str, data: bytes, mode: int, append: bool) -> None:
    if append:
        os.chmod(path, 0o600)  # what was written of it so far may be read-only already
    flags = os.O_WRONLY | os.O_NOFOLLOW | (os.O_APPEND if append else os.O_CREAT | os.O_EXCL)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
