"""A hand that dials out passes the checks that are made for such, in another language, too."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest

from handmesh.conformance.hand.__main__ import parser, run
from handmesh.conformance.hand.checks import CHECKS
from handmesh.launcher.mesh import Mesh
from tests.support.requirements import HAND_IN_GO

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.asyncio(loop_scope="module"),
]


async def checked(mesh: Mesh, name: str, *more: Any) -> tuple[int, list[str]]:
    """Runs the checks as a person would; returns the exit code and what was printed."""
    arguments = ["--name", name, "--data-dir", str(mesh.files.data_directory), *map(str, more)]
    lines: list[str] = []
    return await run(parser().parse_args(arguments), lines.append), lines


@pytest.mark.go
async def test_the_hand_in_go(mesh: Mesh) -> None:
    """A hand that has nothing of ours but the contracts does all that one must, with its link cut in a call."""
    options = ["--connect", "{connect}", "--name", "{name}", "--token-file", "{token_file}", "--root", "{root}"]
    command = shlex.join([str(HAND_IN_GO), *options])
    code, lines = await checked(mesh, "laptop", "--seconds", 15, "--tool", "run", "--command", command)
    assert (code, [line for line in lines if " OK " not in line]) == (0, [])
    assert len(lines) == len(CHECKS)


async def test_our_own_hand(mesh: Mesh) -> None:
    """The checks hold for the worker that we have written, too."""
    options = ["--connect", "{connect}", "--name", "{name}", "--token-file", "{token_file}", "--root", "{root}"]
    command = shlex.join([sys.executable, "-P", "-m", "handmesh.cli", "hand", "serve", *options])
    code, lines = await checked(mesh, "desk", "--seconds", 15, "--command", command)
    assert (code, [line for line in lines if " OK " not in line]) == (0, [])


async def test_a_hand_that_is_not_there(mesh: Mesh) -> None:
    """A check that is not met fails and says why, and so does the command."""
    code, (line,) = await checked(mesh, "nobody", "--only", 1, "--seconds", 0.5)
    assert code == 1
    assert line.startswith(" 1 FAILED  its tools are offered") and "has not come in 0.5 s" in line
