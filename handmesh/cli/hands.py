"""The commands about whose a hand is: `hand create`, `hand transfer`, ..."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.client.hands import Hands
    from handmesh.sandbox.v1 import sandbox_pb2

Which = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="The hand: its name outside of sessions, SESSION/HAND, or sandbox id.")
]
Session = Annotated[str, typer.Argument(metavar="SESSION", help="The session, such as sess_01k...")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="Its name there. Default: the one that it has.")]


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: a-z, 0-9 and -.")],
    environment: Annotated[str, typer.Option(metavar="NAME", help="What it is made from.")] = "",
    description: Annotated[str, typer.Option(metavar="TEXT", help="What it is for, for models to choose by.")] = "",
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Makes a hand that stands outside of sessions until it is released."""
    _show(lambda hands: hands.create(name, environment, description), as_json, data_directory)


def list_(
    session: Annotated[str, typer.Option(metavar="ID", help="Only those of this session.")] = "",
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Lists hands: whose each is, under which name, and who may read it."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            found = await mesh.hands.all(session or None)
        for each in found:
            _print(each, as_json)
        if not found and not as_json:
            typer.echo("No hands. Make one with: handmesh hand create NAME", err=True)
        return 0

    run(body)


def attach(
    name: Which,
    session: Session,
    hand: As = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Only share it, to be read.")] = False,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Gives a hand that stands outside to a session. When the session ends, it stands outside again."""
    _show(lambda hands: hands.attach(name, session, hand, read_only=read_only), as_json, data_directory)


def detach(name: Which, hand: As = "", as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Takes a hand from its session: it stands outside, with all that is in it."""
    _show(lambda hands: hands.transfer(name, None, hand), as_json, data_directory)


def transfer(
    name: Which,
    session: Session,
    hand: As = "",
    settle: Annotated[
        float | None, typer.Option(min=0, max=600, metavar="SECONDS", help="For what runs to end. Default: 30.")
    ] = None,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Gives a hand to another session. Both logs say so."""
    _show(lambda hands: hands.transfer(name, session, hand, settle=settle), as_json, data_directory)


def share(
    name: Which,
    session: Session,
    hand: As = "",
    revoke: Annotated[bool, typer.Option("--revoke", help="Take it back.")] = False,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Lets a session use a hand's tools that change nothing."""
    _show(lambda hands: hands.share(name, session, hand, revoke=revoke), as_json, data_directory)


def release(name: Which, data_directory: DataDirectory = None) -> None:
    """Ends a hand and all that runs in it, and removes its files."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            await mesh.hands.release(name)
        return 0

    run(body)


def _show(ask: Callable[[Hands], Awaitable[sandbox_pb2.Sandbox]], as_json: bool, data_directory: DataDirectory) -> None:
    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            _print(await ask(mesh.hands), as_json)
        return 0

    run(body)


def _print(hand: sandbox_pb2.Sandbox, as_json: bool) -> None:
    from handmesh.cli.escape import escaped
    from handmesh.cli.printing import print_json

    if as_json:
        print_json(hand)
        return
    where = f"{hand.session_id}/{hand.hand}" if hand.session_id else "outside of sessions"
    marks = [hand.standing_hand and f"stands as {hand.standing_hand}", hand.leaving and "on its way"]
    marks += [f"read by {reader.session_id}/{reader.hand}" for reader in hand.readers]
    about = ", ".join(mark for mark in marks if mark)
    line = f"{hand.sandbox_id}  {hand.environment:12}  {where}{f'  ({about})' if about else ''}"
    typer.echo(escaped(line))
