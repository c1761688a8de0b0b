"""Runs a command's body and says in a line or two what went wrong, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import typer

_HINTS = {
    "UNAVAILABLE": "Is the mesh well? handmesh doctor",
    "DEADLINE_EXCEEDED": "Is the mesh well? handmesh doctor",
    "IDENTITY_UNKNOWN": "The key comes from the data directory (--data-dir) or from HANDMESH_API_KEY",
    "SESSION_NOT_FOUND": "These are there: handmesh sessions",
    "HAND_UNKNOWN": "These are there: handmesh hand list",
    "HAND_TOKEN_NOT_FOUND": "These are there: handmesh hand tokens",
    "VAULT_NOT_FOUND": "These are there: handmesh vault list",
    "SERVER_ADDRESS_DENIED": "On this machine, or in a private network? HANDMESH_OUTBOUND_ALLOW=HOST handmesh up",
    "OAUTH_UNSUPPORTED": "Does it take a fixed value? handmesh vault add --help",
    "ID_INVALID": "These are there: handmesh sessions",
    "POSITION_OUT_OF_RANGE": "How long the log is: handmesh sessions",
}


def run(body: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """Runs a command to its end and leaves with the exit code that it returns, or that its problem stands for."""
    from handmesh.cli import exits
    from handmesh.cli.arguments import UsageError
    from handmesh.client.errors import HandmeshError
    from handmesh.launcher.errors import LaunchError

    try:
        code = asyncio.run(body())
    except UsageError as problem:
        code = say(str(problem), exits.USAGE)
    except HandmeshError as problem:
        code = say(str(problem), exits.of_status(problem.code), _hint(problem.reason, problem.message))
    except LaunchError as problem:
        code = say(str(problem), exits.FAILED)
    except KeyboardInterrupt:
        code = exits.CTRL_C
    raise typer.Exit(code)


def say(message: str, code: int, hint: str = "") -> int:
    """Prints a problem, and a hint below it, to standard error; returns the code."""
    from handmesh.cli.escape import escaped

    typer.secho(f"handmesh: {escaped(message)}", fg="red", err=True)
    if hint:
        typer.echo(f"          {hint}", err=True)
    return code


def _hint(reason: str, message: str) -> str:
    hint = _HINTS.get(reason, "")
    return "" if "handmesh up" in message else hint
