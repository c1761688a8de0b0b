"""A harness on the wire passes the checks that are made for such; and the checks find what is wrong."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from handmesh.conformance.harness.__main__ import parser, run
from handmesh.conformance.harness.checks import CHECKS
from handmesh.launcher.mesh import Mesh
from tests.support.requirements import HARNESS_IN_TYPESCRIPT, node

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.asyncio(loop_scope="module"),
]


async def checked(mesh: Mesh, harness: str, *more: Any) -> tuple[int, list[str]]:
    """Runs the checks as a person would; returns the exit code and what was printed."""
    arguments = ["--type", harness, "--data-dir", str(mesh.files.data_directory), *map(str, more)]
    lines: list[str] = []
    return await run(parser().parse_args(arguments), lines.append), lines


def in_typescript(mesh: Mesh) -> str:
    """Returns the command that starts the harness of clients/typescript."""
    ports = mesh.settings.ports
    where = {
        "--session": ports.mesh("session").replace("127.0.0.1", "localhost"),
        "--sandbox": ports.mesh("sandbox").replace("127.0.0.1", "localhost"),
        "--tls": str(mesh.files.tls / "harness"),
    }
    return shlex.join(
        [node() or "node", str(HARNESS_IN_TYPESCRIPT), *(each for pair in where.items() for each in pair)]
    )


@pytest.mark.typescript
async def test_the_harness_in_typescript(mesh: Mesh) -> None:
    """A harness that has nothing of ours but the contracts does all that one must, killed behind each event too."""
    code, lines = await checked(mesh, "wire-echo", "--seconds", 15, "--command", in_typescript(mesh))
    assert (code, [line for line in lines if " OK " not in line]) == (0, [])
    assert len(lines) == len(CHECKS)


async def test_the_built_in_type(mesh: Mesh) -> None:
    """The checks hold for the type that we have written, too; what needs a process to kill is skipped, and said."""
    code, lines = await checked(mesh, "messages", "--seconds", 15, "--only", 1, 2, 5, 6, 10, 11)
    (skipped,) = [line for line in lines if " OK " not in line]
    assert code == 0
    assert "SKIPPED" in skipped and skipped.endswith(": needs the command that starts it (--command)")


async def test_a_harness_that_is_not_there(mesh: Mesh) -> None:
    """A check that is not met fails and says why, and so does the command."""
    code, (line,) = await checked(mesh, "nobody", "--only", 1, "--seconds", 0.5)
    assert code == 1
    assert line.startswith(" 1 FAILED  a message is answered") and "has not come in 0.5 s" in line


async def test_a_harness_that_calls_no_tool(mesh: Mesh) -> None:
    """Whoever gets the words wrong is told so."""
    code, (line,) = await checked(mesh, "messages", "--only", 2, "--call", "anything")
    assert code == 1
    assert line.endswith("no tool was called: does it understand --call?")
