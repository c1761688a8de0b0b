"""Writes docs/reference.md from the contracts and the settings classes. A test holds the two equal.

python ci/reference.py           writes the page
python ci/reference.py --check   exits with 1 when the page is not what it would write
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

from services.kit.access import ACCESS
from services.kit.settings import REQUIRED, Mesh

BUF = Path(sysconfig.get_path("scripts")) / "buf"
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
SERVICES = ("session", "harness", "sandbox", "vault_proxy")
SERVICE_FIELD, METHOD_FIELD, ENUM_FIELD, VALUE_FIELD = 6, 2, 5, 2  # numbers in descriptor.proto


def main() -> None:
    page = "\n".join(write()) + "\n"
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit("docs/reference.md is not what the contracts and settings say: run `make proto`")


def write() -> Iterator[str]:
    """Yields the page's lines."""
    files = contracts()
    yield "# Reference"
    yield "\nWritten by `make proto` from the contracts and the settings classes; not by hand.\n"
    yield "## Methods\n\nWho may call: `client` shows an API key, the services show certificates.\n"
    for file in files:
        for number, service in enumerate(file.service):
            name = f"{file.package}.{service.name}"
            yield f"### {name}\n\n{paragraph(file, (SERVICE_FIELD, number))}\n"
            yield "| method | what it does | who may call |\n|---|---|---|"
            for place, method in enumerate(service.method):
                who = ", ".join(sorted(ACCESS[f"/{name}/{method.name}"]))
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
    yield "\n## Settings\n\nRead once, from the environment. `python -m services.NAME --help` shows them too.\n"
    yield from settings()


def settings() -> Iterator[str]:
    """Yields a table for what every service reads, then one for each service."""
    shared = {field.name for field in dataclasses.fields(Mesh)}
    kinds: list[tuple[str, type, set[str]]] = [("every service", Mesh, set())]
    kinds += [(name, importlib.import_module(f"services.{name}.settings").Settings, shared) for name in SERVICES]
    for name, kind, skipped in kinds:
        yield f"### {name}\n\n| variable | default | meaning |\n|---|---|---|"
        for field in dataclasses.fields(kind):
            if field.name not in skipped:
                given = field.metadata["default"]
                default = "required" if given is REQUIRED else "none" if given is None else f"`{given}`"
                yield f"| `{field.metadata['variable']}` | {default} | {field.metadata['meaning']} |"
        yield ""


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
