"""`handmesh vault add`: a credential of any kind, its secret read where nobody sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run
from handmesh.cli.vaults import VaultName, print_credentials, vault_of

if TYPE_CHECKING:
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

ADD_EPILOG = """\b
Examples:
  handmesh vault add work https://mcp.example.com               asks for the value, and shows nothing of it
  handmesh vault add work https://mcp.example.com < token.txt
  handmesh vault add work https://github.com --git --from token.txt
  handmesh vault add work https://github.com --git --app-id 1 --installation-id 2 --from key.pem
  handmesh vault add work --variable STRIPE_KEY --host api.stripe.com

\b
The value is never an argument: arguments are in the shell's history and in `ps`.
"""


def add(
    vault: VaultName,
    origin: Annotated[
        str, typer.Argument(metavar="[ORIGIN]", help="The only place that it is sent to: https://host[:port]")
    ] = "",
    git: Annotated[bool, typer.Option("--git", help="It is for a git host, not for an MCP server.")] = False,
    user: Annotated[str, typer.Option(metavar="NAME", help="With --git: the user name.")] = "",
    app_id: Annotated[str, typer.Option(metavar="N", help="With --git: a GitHub App; the secret is its key.")] = "",
    installation_id: Annotated[str, typer.Option(metavar="N", help="With --app-id: the app's installation.")] = "",
    variable: Annotated[
        str, typer.Option(metavar="NAME", help="It is a variable of sandboxes, replaced on the way out.")
    ] = "",
    host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="With --variable: where it may go; may be repeated.")
    ] = None,
    in_bodies: Annotated[bool, typer.Option("--in-bodies", help="With --variable: also in bodies.")] = False,
    name: Annotated[str, typer.Option(metavar="TEXT", help="Its name, for people to read.")] = "",
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Where the secret is. Default: typed, or stdin.")
    ] = None,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Adds a credential, whose secret is read where nobody sees it.

    It is a fixed value for an MCP server, an access to a git host, or a variable of sandboxes. For an MCP server with a
    login, use `handmesh vault connect`.
    """

    async def body() -> int:
        from handmesh.cli.secrets import secret_of
        from handmesh.client import connect

        _check_kind(origin, git, variable, user, app_id, installation_id, host, in_bodies)
        async with connect(data_directory=data_directory) as mesh:
            chosen = await vault_of(mesh, vault)
            value = secret_of(file, prompt=f"The secret for {variable or origin}")
            if variable:
                secret = _variable(variable, value, host or (), in_bodies)
            else:
                secret = _git(user, value, app_id, installation_id) if git else _bearer(value)
            added = await mesh.vaults.add(chosen.vault_id, secret, origin=origin, name=name)
        print_credentials([added], as_json)
        return 0

    run(body)


def _bearer(value: str) -> pb.CredentialSecret:
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

    return pb.CredentialSecret(static_bearer=pb.StaticBearer(value=value))


def _git(user: str, value: str, app_id: str, installation_id: str) -> pb.CredentialSecret:
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

    if not app_id:
        return pb.CredentialSecret(git=pb.GitAccess(user=user, value=value))
    key = f"{value}\n"  # PEM ends in a line end
    access = pb.GitAccess(user=user, app_id=app_id, installation_id=installation_id, private_key=key)
    return pb.CredentialSecret(git=access)


def _variable(name: str, value: str, hosts: Sequence[str], in_bodies: bool) -> pb.CredentialSecret:
    from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb

    its = pb.EnvironmentVariable(variable=name, value=value, allowed_hosts=hosts, in_headers=True, in_bodies=in_bodies)
    return pb.CredentialSecret(environment_variable=its)


def _check_kind(
    origin: str, git: bool, variable: str, user: str, app: str, installation: str, host: object, bodies: bool
) -> None:
    from handmesh.cli.arguments import UsageError

    if bool(variable) == bool(origin):
        raise UsageError("expected an ORIGIN such as https://mcp.example.com, or --variable NAME and --host HOST")
    if variable and git:
        raise UsageError("--variable and --git are two kinds: give one")
    if (host or bodies) and not variable:
        raise UsageError("--host and --in-bodies go with --variable")
    if (user or app or installation) and not git:
        raise UsageError("--user, --app-id and --installation-id go with --git")
    if bool(app) != bool(installation):
        raise UsageError("--app-id and --installation-id go together")
