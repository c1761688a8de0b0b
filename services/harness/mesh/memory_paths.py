"""Paths of the memory tool: `/memories/<store>/<path in the store>`. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from services.harness.config import MemoryStore

ROOT = "/memories"


class Wrong(Exception):
    """What the model is told of a call that cannot be done."""


@dataclass(frozen=True)
class Place:
    """Where a path leads: into a store, with `path` empty to the store itself."""

    store: MemoryStore
    path: str

    @property
    def shown(self) -> str:
        """The path as the model knows it."""
        return shown(self.store, self.path)


def placed(path: str, stores: Sequence[MemoryStore]) -> Place | None:
    """Says where a path leads; None for `/memories` itself. Raises Wrong."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise Wrong(f"Path must start with {ROOT}, got: {path}")
    parts = path.removeprefix(ROOT).removeprefix("/").removesuffix("/").split("/")
    if parts == [""]:
        return None
    if ".." in parts:
        raise Wrong(f"Path {path} would escape {ROOT} directory")
    if "" in parts or "." in parts:
        raise Wrong(f"The path {path} has an empty part or a `.` in it.")
    store = next((each for each in stores if each.name == parts[0]), None)
    if store is None:
        there = ", ".join(described(each) for each in stores)
        raise Wrong(f"The path {path} does not exist. Every path lies under one of these directories: {there}.")
    return Place(store, "/".join(parts[1:]))


def writable(place: Place | None, verb: str, path: str) -> Place:
    """Returns a place in a store that may be written to. Raises Wrong for any other."""
    if place is None or not place.path:
        raise Wrong(f"Cannot {verb} the {path} directory itself")
    if place.store.read_only:
        raise Wrong(f"The directory {shown(place.store)} is read-only.")
    return place


def shown(store: MemoryStore, path: str = "") -> str:
    """Returns a path in a store as the model knows it."""
    return f"{ROOT}/{store.name}/{path}" if path else f"{ROOT}/{store.name}"


def described(store: MemoryStore) -> str:
    """Returns a store's directory, and whether it may only be read."""
    return f"{shown(store)} (read-only)" if store.read_only else shown(store)


def request_of(execution_id: str, step: str = "") -> str:
    """Names one step of an execution, the same whenever it is done again. The execution's last step has no name."""
    return f"memory-{hashlib.sha256(f'{execution_id}/{step}'.encode()).hexdigest()[:40]}"
