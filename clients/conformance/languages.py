"""The languages that there is a client in: what each needs, how it is tested and how its program is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
BUILD = ROOT / "ci" / "peers-on-the-wire"
"""Builds the languages that it is given, where they are older than what they are made of."""


PATH = f"{os.environ.get('PATH', os.defpath)}:{ROOT / '.peers' / 'bin'}"
"""Where tool chains are looked for: last in `.peers`, where `make peers` puts node."""


@dataclass(frozen=True)
class Language:
    """One language. Commands run in its folder, and `built` is the file in it without which there is no program.

    `tools` are the programs of its tool chain.
    """

    name: str
    tools: Sequence[str]
    test: Sequence[str]
    program: Sequence[str]
    built: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return CLIENTS / self.name

    @property
    def missing(self) -> list[str]:
        """The programs of its tool chain that this machine lacks."""
        return [tool for tool in self.tools if not shutil.which(tool, path=PATH)]

    @property
    def is_built(self) -> bool:
        """Whether its program is there."""
        return (self.folder / self.built).exists()


LANGUAGES = (
    Language(
        "python",
        tools=(),  # this runs on it
        test=("build/venv/bin/python", "-m", "pytest", "--quiet"),
        program=("build/venv/bin/python", "converse.py"),
        built="build/venv/.built",
    ),
    Language(
        "go",
        tools=("go",),
        test=("go", "test", "./..."),
        program=("build/converse",),
        built="build/converse",
    ),
    Language(
        "typescript",
        tools=("node", "npm"),
        test=("npm", "run", "--silent", "test"),
        program=("node", "build/converse/main.js"),
        built="build/converse/main.js",
    ),
    Language(
        "rust",
        tools=("cargo", "cc"),
        test=("cargo", "test", "--quiet", "--locked"),
        program=("target/debug/converse",),
        built="target/debug/converse",
    ),
    Language(
        "java",
        tools=("java", "javac", "mvn"),
        test=("mvn", "--batch-mode", "--quiet", "surefire:test"),
        program=("java", "-XX:TieredStopAtLevel=1", "-cp", "target/classes:target/lib/*", "handmesh.clients.Converse"),
        built="target/classes/handmesh/clients/Converse.class",
    ),
)
