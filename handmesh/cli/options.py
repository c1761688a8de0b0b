"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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


PASSED_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""What a command is made with that hands all its arguments to a program of its own."""


def resolved(data_directory: Path | None) -> Path:
    """Returns the chosen data directory, or the default one."""
    from handmesh.client import settings

    return settings.read().data_directory if data_directory is None else data_directory.expanduser().absolute()
