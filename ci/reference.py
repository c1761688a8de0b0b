"""Writes docs/reference.md from the contracts and docs/configuration.md from the settings. A test holds them equal.

python ci/reference.py           writes the pages
python ci/reference.py --check   exits with 1 when a page is not what it would write
"""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from handmesh.client import settings as client_settings
from services.kit.access import ACCESS, Row
from services.kit.settings import REQUIRED, Mesh

BUF = Path(sysconfig.get_path("scripts")) / "buf"
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SERVICES = ("session", "harness", "sandbox", "vault_proxy")
OPERATORS = ("migrate", "janitor")
INTRODUCTION = ROOT / "ci" / "configuration.md"
SERVICE_FIELD, METHOD_FIELD, ENUM_FIELD, VALUE_FIELD = 6, 2, 5, 2  # numbers in descriptor.proto


def main() -> None:
    for name, lines in (("reference.md", write()), ("configuration.md", configuration())):
        page, text = DOCS / name, "\n".join(lines).rstrip() + "\n"
        if "--check" not in sys.argv:
            page.write_text(text)
        elif not page.exists() or page.read_text() != text:
            sys.exit(f"docs/{name} is not what the contracts and settings say: run `make proto`")


def write() -> Iterator[str]:
    """Yields the page's lines."""
    files = contracts()
    yield "# Reference"
    yield "\nWritten by `make proto` from the contracts and the settings classes; not by hand.\n"
    yield "## Methods\n\nWho may call: a `client` shows an API key, or an issuer's token, of at least that scope; a"
    yield "`hand` shows its token; the services show certificates. See [identity](identity.md).\n"
    for file in files:
        for number, service in enumerate(file.service):
            name = f"{file.package}.{service.name}"
            yield f"### {name}\n\n{paragraph(file, (SERVICE_FIELD, number))}\n"
            yield "| method | what it does | who may call |\n|---|---|---|"
            for place, method in enumerate(service.method):
                who = callers(ACCESS[f"/{name}/{method.name}"])
                said = paragraph(file, (SERVICE_FIELD, number, METHOD_FIELD, place))
                yield f"| `{method.name}` | {said} | {who} |"
            yield ""
    yield "## Error reasons\n\nIn `google.rpc.ErrorInfo.reason`, domain `handmesh`; events use the same words.\n"
    yield "| reason | status and meaning |\n|---|---|"
    for file in files:
        if file.package == "handmesh.error.v1":
            for place, value in enumerate(file.enum_type[0].value[1:], 1):
                said = paragraph(file, (ENUM_FIELD, 0, VALUE_FIELD, place))
                yield f"| `{value.name.removeprefix('ERROR_REASON_')}` | {said} |"
    yield "\n## Settings\n\nAll of them are in [configuration](configuration.md).\n"


def callers(row: Row) -> str:
    """Spells who may call a method, with the scope that a client's credential needs."""
    return ", ".join(f"client ({row.scope.word})" if it == "client" and row.scope else it for it in sorted(row))


def configuration() -> Iterator[str]:
    """Yields the page's lines: what every service reads, each service, the operators of the store, clients."""
    yield INTRODUCTION.read_text()
    shared = {field.name for field in dataclasses.fields(Mesh)}
    kinds: list[tuple[str, type, set[str]]] = [("Every service", Mesh, set())]
    kinds += [(f"`{name}`", importlib.import_module(f"services.{name}.settings").Settings, shared) for name in SERVICES]
    kinds += [(f"`{name}`", importlib.import_module(f"services.session.{name}").Settings, set()) for name in OPERATORS]
    for name, kind, skipped in kinds:
        yield f"## {name}\n\n| variable | default | meaning |\n|---|---|---|"
        for field in dataclasses.fields(kind):
            if field.name not in skipped:
                yield f"| `{field.metadata['variable']}` | {default(field.metadata['default'])} | {meaning(field)} |"
        yield ""
    yield "## `handmesh`, and the Python client\n\nFrom the environment only. None of them has to be set.\n"
    yield "| variable | meaning |\n|---|---|"
    for variable, said in client_settings.MEANINGS.items():
        yield f"| `{variable}` | {said} |"
    yield "\nThe [scripted model](scripted-model.md) and `handmesh hand serve` are told by options: `--help` has them."


def default(given: object) -> str:
    """Spells a default as somebody would set it."""
    match given:
        case None | ():
            return "none"
        case bool():
            return f"`{int(given)}`"
        case str() | int() | float():
            return f"`{given}`"
    return "required" if given is REQUIRED else "none"


def meaning(field: dataclasses.Field[object]) -> str:
    """Returns what a setting means, for a table."""
    return str(field.metadata["meaning"]).replace("|", "\\|")


def contracts() -> list[FileDescriptorProto]:
    """Compiles the contracts with their comments; ours only, by name."""
    built = subprocess.run([BUF, "build", "proto", "-o", "-#format=binpb"], capture_output=True, check=True, cwd=ROOT)
    files = FileDescriptorSet.FromString(built.stdout).file
    return sorted((file for file in files if file.package.startswith("handmesh.")), key=lambda file: file.name)


def paragraph(file: FileDescriptorProto, path: tuple[int, ...]) -> str:
    """Returns the first paragraph of an element's comment, on one line."""
    for location in file.source_code_info.location:
        if tuple(location.path) == path:
            return " ".join(location.leading_comments.split("\n\n")[0].split()).replace("|", "\\|")
    return ""


if __name__ == "__main__":
    main()
