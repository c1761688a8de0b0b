"""`handmesh hand`: a directory of this machine as a hand, the tokens that hands connect with, and whose a hand is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli import hands
from handmesh.cli.options import PASSED_ON, DataDirectory, Json
from handmesh.cli.problems import run, say

if TYPE_CHECKING:
    from handmesh.session.v1 import session_pb2

EPILOG = """\b
Start here:
  handmesh hand token laptop > laptop.token                       where the mesh's client is
  handmesh hand serve --name laptop --token-file laptop.token     where the hand is; see --connect
  handmesh run "what is here?" --hand laptop                      in another terminal
  handmesh hand revoke laptop                                     its workers' links end
  handmesh hand create bench --environment docker                 a hand that outlives sessions
  handmesh hand attach bench SESSION                              and is a session's for a while
"""

app = typer.Typer(
    name="hand",
    help="Hands that outlive sessions and change their owners, and hands that dial out: machines, programs, devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)
app.command()(hands.create)
app.command("list")(hands.list_)
app.command()(hands.attach)
app.command()(hands.detach)
app.command()(hands.transfer)
app.command()(hands.share)
app.command()(hands.release)
HandName = Annotated[str, typer.Argument(metavar="NAME", help="The hand's name: a-z, 0-9, - and _.")]


@app.command()
def serve(
    name: Annotated[str, typer.Option(metavar="NAME", help="The hand's name, that the token is for.")],
    connect: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The mesh's sandbox service. Default: of this machine's mesh.")
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            envvar="HANDMESH_HAND_TOKEN",
            metavar="T",
            help="The token. Better in the variable or in a file: others see what a command is told.",
        ),
    ] = "",
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The file that the token is in.")] = None,
    root: Annotated[Path, typer.Option(metavar="DIR", help="Where commands begin.")] = Path(),
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM of the authority that signed the mesh's certificate.")
    ] = None,
    seat: Annotated[str, typer.Option(metavar="ID", help="Which of the hand's workers this always is.")] = "",
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="What it says of itself.")] = None,
    data_directory: DataDirectory = None,
) -> None:
    """Serves a directory of this machine as a hand: bash, read, write, edit, list.

    It dials out, so no port is opened here. It isolates nothing: commands run as you, with all that you may do. The
    first Ctrl-C or SIGTERM waits for what runs, the second does not.
    """
    from handmesh.cli.options import resolved
    from handmesh.client.addresses import Addresses
    from handmesh.hand.command import serve as serve_hand
    from handmesh.hand.local import Directory
    from handmesh.hand.place import Place

    local = Addresses.local(resolved(data_directory)) if not connect else None
    secret = token or (token_file.read_text().strip() if token_file is not None else "")
    if not connect and local is None:
        raise typer.Exit(say("no mesh runs on this machine: say where one is, with --connect HOST:PORT", 2))
    if not secret:
        raise typer.Exit(say("give a token: --token-file, or HANDMESH_HAND_TOKEN", 2, "handmesh hand token NAME"))
    if not root.is_dir():
        raise typer.Exit(say(f"{root} is no directory", 2))
    typer.echo(f"{root.resolve()} is the hand {name}; commands run as you, without isolation", err=True)
    labels = dict(each.partition("=")[::2] for each in label or ())
    address = connect or (local.sandbox if local is not None else "")
    environment = {key: value for key, value in os.environ.items() if key != "HANDMESH_HAND_TOKEN"}
    raise typer.Exit(serve_hand(Directory(root, environment), Place(address, name, secret, ca_file, seat, labels)))


@app.command("token")
def make_token(name: HandName, as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Makes a token for a hand and prints it, this once. It can connect as that hand and do nothing else."""

    async def body() -> int:
        from handmesh.cli.printing import print_json
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            made = await mesh.hand_tokens.create(name)
        if as_json:
            print_json(made)
        else:
            typer.echo(made.token)
        return 0

    run(body)


@app.command()
def tokens(as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Lists the hand tokens, without the tokens, oldest first."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            _print(await mesh.hand_tokens.all(), as_json)
        return 0

    run(body)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="The hand's name, for all of its tokens, or an id.")],
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Makes tokens void: links that were made with them end, and what ran there ends as unknown."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            _print(await mesh.hand_tokens.revoke(name), as_json)
        return 0

    run(body)


@app.command(context_settings=PASSED_ON)
def check(context: typer.Context) -> None:
    """Checks a hand of your own, in any language, against a mesh that runs. See docs/wire.md."""
    from handmesh.conformance.hand.__main__ import main

    raise typer.Exit(main(context.args))


def _print(found: list[session_pb2.HandToken], as_json: bool) -> None:
    from handmesh.cli.escape import escaped
    from handmesh.cli.printing import print_json

    for each in found:
        if as_json:
            print_json(each)
        else:
            made = each.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M")
            state = "revoked" if each.HasField("revoke_time") else "good"
            typer.echo(f"{each.hand_token_id}  {made}  {state:7}  {escaped(each.name)}")
    if not found and not as_json:
        typer.echo("No hand tokens. Make one with: handmesh hand token NAME", err=True)
