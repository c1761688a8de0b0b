"""`handmesh keys`: the API keys of clients."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.session.v1 import session_pb2

EPILOG = """\b
Start here:
  handmesh keys create --name ci --scope run --expires 30d > ci.key
  HANDMESH_API_KEY=$(cat ci.key) handmesh sessions
  handmesh keys create --tenant acme --name ada --scope admin     for an operator: see `handmesh key`
  handmesh keys revoke ci
"""
UNITS = {"m": 60, "h": 3_600, "d": 86_400}
SCOPES = ("read", "run", "admin")

app = typer.Typer(
    name="keys",
    help="API keys: what clients show. Each is for one tenant, and reads, runs or keeps its affairs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)
Tenant = Annotated[str, typer.Option(metavar="T", help="The tenant. Default: your own; others are an operator's.")]


def _scope(word: str) -> str:
    if word not in SCOPES:
        raise typer.BadParameter("expected " + ", ".join(SCOPES))
    return word


def _seconds(text: str) -> int:
    if text and (not text[:-1].isascii() or not text[:-1].isdigit() or text[-1] not in UNITS or not int(text[:-1])):
        raise typer.BadParameter("expected a number and m, h or d, such as 30d")
    return int(text[:-1]) * UNITS[text[-1]] if text else 0


@app.command()
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="What to call it, for people.")],
    scope: Annotated[
        str,
        typer.Option(
            metavar="S",
            callback=_scope,
            help="read: look; run: make sessions and answer; admin: keys, vaults, deletion.",
        ),
    ] = "run",
    tenant: Tenant = "",
    expires: Annotated[
        int, typer.Option(metavar="TIME", parser=_seconds, help="After when it is void, such as 30d. Default: never.")
    ] = "",  # type: ignore[assignment]  # it is parsed
    calls_per_second: Annotated[
        int, typer.Option(min=0, metavar="N", help="0 is what the services' settings say.")
    ] = 0,
    burst: Annotated[int, typer.Option(min=0, metavar="N", help="Calls at once after a rest.")] = 0,
    calls: Annotated[int, typer.Option(min=0, metavar="N", help="Calls at work at once.")] = 0,
    streams: Annotated[int, typer.Option(min=0, metavar="N", help="Streams open at once.")] = 0,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Makes a key and prints it, this once."""

    async def body() -> int:
        from handmesh.cli.printing import print_json
        from handmesh.client import connect
        from handmesh.session.v1 import session_pb2 as pb

        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=expires) if expires else None
        limits = pb.CallerLimits(calls_per_second=calls_per_second, burst=burst, calls=calls, streams=streams)
        async with connect(data_directory=data_directory) as mesh:
            wanted = pb.Scope.Value(f"SCOPE_{scope.upper()}")
            made = await mesh.api_keys.create(name, wanted, tenant=tenant, expires=until, limits=limits)
        if as_json:
            print_json(made)
        else:
            typer.echo(made.key)
        return 0

    run(body)


@app.command("list")
def list_(tenant: Tenant = "", as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Lists keys, without the keys, oldest first."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            _print(await mesh.api_keys.all(tenant), as_json)
        return 0

    run(body)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="The key's id, or a name, for all that have it.")],
    tenant: Tenant = "",
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Makes keys void: what calls with them is refused, and what they watch ends, within a second."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            _print(await mesh.api_keys.revoke(name, tenant), as_json)
        return 0

    run(body)


def _print(found: list[session_pb2.ApiKey], as_json: bool) -> None:
    from handmesh.cli.escape import escaped
    from handmesh.cli.printing import print_json
    from handmesh.session.v1 import session_pb2 as pb

    now = datetime.datetime.now(datetime.UTC)
    for each in found:
        if as_json:
            print_json(each)
            continue
        made = each.create_time.ToDatetime().strftime("%Y-%m-%d %H:%M")
        ended = each.HasField("expire_time") and each.expire_time.ToDatetime(datetime.UTC) <= now
        state = "revoked" if each.HasField("revoke_time") else "expired" if ended else "good"
        scope = pb.Scope.Name(each.scope).removeprefix("SCOPE_").lower()
        typer.echo(f"{each.api_key_id}  {made}  {state:7}  {scope:5}  {escaped(each.tenant)}  {escaped(each.name)}")
    if not found and not as_json:
        typer.echo("No API keys were made. Make one with: handmesh keys create --name NAME", err=True)
