"""The commands that keep vaults: create, list, credentials, archive, validate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from handmesh.client import Client
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

VALIDATE_EPILOG = """\b
Examples:
  handmesh vault validate cred_01k...
  handmesh vault validate cred_01k... --url https://mcp.example.com/v2/mcp
  handmesh vault validate cred_01k... --url https://github.com/team/repository
"""

VaultName = Annotated[str, typer.Argument(metavar="VAULT", help="The vault's id or name.")]
Archived = Annotated[bool, typer.Option("--archived", help="Also those that are archived.")]


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, for people to read.")],
    data_directory: DataDirectory = None,
) -> None:
    """Makes a vault and prints its id."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            typer.echo((await mesh.vaults.create(name)).vault_id)
        return 0

    run(body)


def list_(archived: Archived = False, as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Lists the vaults, newest first."""

    async def body() -> int:
        from handmesh.cli.printing import print_json
        from handmesh.client import connect

        found: list[pb.Vault] = []
        async with connect(data_directory=data_directory) as mesh:
            async for vault in mesh.vaults.all(include_archived=archived):
                found.append(vault)
                if as_json:
                    print_json(vault)
        if found and not as_json:
            rows = [(each.vault_id, _time(each, "create_time"), _mark(each), each.name) for each in found]
            _print(("vault", "made", "state", "name"), rows)
        elif not as_json:
            typer.echo("No vaults. Make one with: handmesh vault create NAME", err=True)
        return 0

    run(body)


def credentials(
    vault: VaultName, archived: Archived = False, as_json: Json = False, data_directory: DataDirectory = None
) -> None:
    """Lists a vault's credentials, without their secrets."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            chosen = await vault_of(mesh, vault)
            found = await mesh.vaults.credentials(chosen.vault_id, include_archived=archived)
        if not found and not as_json:
            typer.echo("No credentials. See: handmesh vault add --help, handmesh vault connect --help", err=True)
        print_credentials(found, as_json)
        return 0

    run(body)


def archive(
    which: Annotated[str, typer.Argument(metavar="ID", help="A vault (vault_...) or a credential (cred_...).")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Destroys the secrets of a vault or a credential.

    What may be told of it stays, marked as archived.
    """
    if not yes:
        typer.confirm(f"Destroy the secrets of {which}? There is no way back.", abort=True, err=True)

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            if which.startswith("cred_"):
                await mesh.vaults.archive_credential(which)
            else:
                await mesh.vaults.archive((await vault_of(mesh, which)).vault_id)
        typer.echo("archived")
        return 0

    run(body)


def validate(
    credential: Annotated[str, typer.Argument(metavar="CREDENTIAL", help="The credential's id, cred_...")],
    url: Annotated[
        str, typer.Option(metavar="URL", help="The MCP server's URL or a repository's, of the same origin.")
    ] = "",
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Tries a credential and says whether it works.

    It is used once, harmlessly. The exit code is 0 if it works, 1 if not.
    """

    async def body() -> int:
        from handmesh.cli import exits
        from handmesh.cli.escape import one_line
        from handmesh.cli.printing import print_json
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            found = await mesh.vaults.validate(await mesh.vaults.credential(credential), url)
        if as_json:
            print_json(found)
        else:
            typer.echo(f"{'valid' if found.valid else found.reason}: {one_line(found.detail, 400)}")
        if found.reason == "CREDENTIAL_REVOKED":
            typer.echo("Connect the account again, or replace the value: handmesh vault connect --help", err=True)
        return exits.DONE if found.valid else exits.FAILED

    run(body)


async def vault_of(mesh: Client, name: str, or_make: str = "") -> pb.Vault:
    """Returns the vault of an id or a name. Without one: the only one that there is, or a new one of a name.

    Raises UsageError when it is not clear which.
    """
    from handmesh.cli.arguments import UsageError

    found = await mesh.vaults.named(name) if name else [vault async for vault in mesh.vaults.all()]
    if not found and not name and or_make:
        made = await mesh.vaults.create(or_make)
        typer.echo(f"made a vault: {made.vault_id}", err=True)
        return made
    if len(found) == 1:
        return found[0]
    which = f"of the name {name!r}" if name else "here"
    if found:
        raise UsageError(f"there are {len(found)} vaults {which}: give an id (handmesh vault list)")
    raise UsageError(f"there is no vault {which}. These are there: handmesh vault list")


def print_credentials(found: Sequence[pb.Credential], as_json: bool) -> None:
    """Prints what may be told of credentials."""
    from handmesh.cli.lines import enum_word
    from handmesh.cli.printing import print_json
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

    if as_json:
        for each in found:
            print_json(each)
        return
    rows = []
    for each in found:
        kind = enum_word(pb.CredentialKind, each.kind, "CREDENTIAL_KIND_")
        where = each.origin or f"${each.environment_variable.variable}"
        rows.append((each.credential_id, kind, where, _time(each, "expire_time"), _mark(each), each.name))
    if rows:
        _print(("credential", "kind", "for", "ends", "state", "name"), rows)


def _print(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    from handmesh.cli.escape import one_line
    from handmesh.cli.printing import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in ("vault", "credential"))
    for row in rows:
        table.add_row(*(one_line(each, 100) for each in row))
    console().print(table)


def _mark(found: pb.Vault | pb.Credential) -> str:
    if found.archived:
        return "archived"
    return "revoked" if getattr(found, "revoked", False) else "ok"


def _time(found: pb.Vault | pb.Credential, name: str) -> str:
    if not found.HasField(name):  # type: ignore[arg-type]
        return "-"
    when: Timestamp = getattr(found, name)
    return when.ToDatetime().strftime("%Y-%m-%d %H:%M:%S")
