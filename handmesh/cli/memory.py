"""The commands that keep memory stores: create, list, get, put, versions, delete."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from handmesh.client import Client
    from handmesh.session.v1 import memory_pb2 as pb

EPILOG = """\b
Start here:
  handmesh memory create team                            a store, and its id
  handmesh run "..." --memory team=team                  a session whose model has it as /memories/team
  handmesh run "..." --memory rules=team:ro              the same store, only to be read
  handmesh memory list team                              what is in it
  handmesh memory get team todo.md
  handmesh memory put team todo.md < todo.md
  handmesh memory versions team todo.md                  who wrote what, and when
"""

app = typer.Typer(
    name="memory",
    help="Keeps memory stores: files that outlive sessions, and that sessions may share.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
)

FILE = ("path", "version", "size", "written", "by")  # the columns that a file has
Store = Annotated[str, typer.Argument(metavar="STORE", help="The store's id or name.")]
FilePath = Annotated[str, typer.Argument(metavar="PATH", help="The file's path in the store.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, for people to read.")],
    data_directory: DataDirectory = None,
) -> None:
    """Makes a memory store and prints its id."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            typer.echo((await mesh.memories.create(name)).memory_store_id)
        return 0

    run(body)


@app.command("list")
def list_(
    store: Annotated[str, typer.Argument(metavar="[STORE]", help="A store, to list its files.")] = "",
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="Only what lies under this path.")] = "",
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Lists the stores, newest first, or a store's files."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            if store:
                files = await mesh.memories.files((await store_of(mesh, store)).memory_store_id, path)
                return _print(FILE, [_file(each) for each in files], files, as_json)
            stores = [each async for each in mesh.memories.all()]
        if not stores and not as_json:
            typer.echo("No memory stores. Make one with: handmesh memory create NAME", err=True)
        rows = [(each.memory_store_id, _time(each.create_time.ToDatetime()), each.name) for each in stores]
        return _print(("store", "made", "name"), rows, stores, as_json)

    run(body)


@app.command()
def get(
    store: Store,
    path: FilePath,
    version: Annotated[int, typer.Option(min=0, metavar="N", help="An older version. Default: the newest.")] = 0,
    data_directory: DataDirectory = None,
) -> None:
    """Writes a file's content to standard output."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            _, content = await mesh.memories.read((await store_of(mesh, store)).memory_store_id, path, version)
        sys.stdout.buffer.write(content)
        return 0

    run(body)


@app.command()
def put(
    store: Store,
    path: FilePath,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="What it shall hold. Default: standard input.")
    ] = None,
    expected: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Only if it holds this now; '' means nothing.")
    ] = None,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Writes a file, as its next version."""

    async def body() -> int:
        from handmesh.cli.printing import print_json
        from handmesh.client import connect

        content = file.read_bytes() if file is not None else sys.stdin.buffer.read()
        async with connect(data_directory=data_directory) as mesh:
            chosen = (await store_of(mesh, store)).memory_store_id
            written = await mesh.memories.write(chosen, path, content, expected_sha256=expected)
        if as_json:
            print_json(written)
        else:
            typer.echo(f"version {written.version}, sha256 {written.sha256}")
        return 0

    run(body)


@app.command()
def versions(store: Store, path: FilePath, as_json: Json = False, data_directory: DataDirectory = None) -> None:
    """Lists a file's versions, newest first, and which session wrote each."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            found = await mesh.memories.versions((await store_of(mesh, store)).memory_store_id, path)
        return _print(FILE, [_file(each) for each in found], found, as_json)

    run(body)


@app.command()
def delete(
    store: Store,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="The file. Default: the whole store.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_directory: DataDirectory = None,
) -> None:
    """Deletes a file, whose versions stay, or a whole store."""
    if not path and not yes:
        typer.confirm(f"Delete the memory store {store} and all that is in it?", abort=True, err=True)

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            chosen = (await store_of(mesh, store)).memory_store_id
            await (mesh.memories.delete(chosen, path) if path else mesh.memories.delete_store(chosen))
        typer.echo("deleted")
        return 0

    run(body)


async def store_of(mesh: Client, name: str) -> pb.MemoryStore:
    """Returns the memory store of an id or a name. Raises UsageError when it is not clear which."""
    from handmesh.cli.arguments import UsageError

    found = await mesh.memories.named(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"there are {len(found)} memory stores named {name!r}: give an id (handmesh memory list)")
    raise UsageError(f"there is no memory store {name!r}. These are there: handmesh memory list")


def _file(it: pb.Memory) -> tuple[str, ...]:
    size = str(it.size) if it.sha256 else "deleted"
    return it.path, str(it.version), size, _time(it.write_time.ToDatetime()), it.session_id or "-"


def _time(moment: object) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _print(
    names: Sequence[str], rows: Sequence[Sequence[str]], found: Sequence[pb.Memory | pb.MemoryStore], as_json: bool
) -> int:
    from rich.table import Table

    from handmesh.cli.escape import one_line
    from handmesh.cli.printing import console, print_json

    if as_json:
        for each in found:
            print_json(each)
    elif rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(one_line(each, 600) for each in row))
        console().print(table)
    return 0
