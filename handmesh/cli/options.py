"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where the mesh on this machine keeps its state. Default: HANDMESH_DATA_DIR, else ~/.local/state/handmesh",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print protobuf JSON, one object a line, for programs.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session, such as sess_01k...")]


def resolved(data_directory: Path | None) -> Path:
    """Returns the chosen data directory, or the default one."""
    from handmesh.client import settings

    return settings.read().data_directory if data_directory is None else data_directory.expanduser().absolute()
