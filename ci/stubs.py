"""Generates the Python stubs of every contract in proto/, or says which committed ones differ.

    python ci/stubs.py           writes them below handmesh/
    python ci/stubs.py --check   exits 1 when a committed stub is stale, missing or left over

Run with the Python of `make setup`: the pinned grpcio-tools and mypy-protobuf decide what stubs look like.
"""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTOS = ROOT / "proto"
PACKAGE = "handmesh"


def generate(target: Path) -> None:
    """Writes the stubs of all contracts below `target`."""
    plugins = Path(sysconfig.get_path("scripts"))
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).rglob("*.proto"))
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"),
        *(f"--plugin={name}={plugins / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
        *(f"--python_out={target}", f"--grpc_python_out={target}"),
        *(f"--mypy_out=quiet,readable_stubs:{target}", f"--mypy_grpc_out=quiet:{target}"),
        *sources,
    ]
    subprocess.run(command, check=True)


def stubs_in(root: Path) -> dict[str, bytes]:
    """Returns {path relative to root: content} of every stub below `root`."""
    files = (*(root / PACKAGE).rglob("*_pb2*.py"), *(root / PACKAGE).rglob("*_pb2*.pyi"))
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def differences() -> list[str]:
    """Returns a line for each committed stub that a fresh generation does not give."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        fresh = stubs_in(Path(directory))
    committed = stubs_in(ROOT)
    stale = [name for name in fresh if name in committed and committed[name] != fresh[name]]
    return [
        *(f"{name}: stale" for name in sorted(stale)),
        *(f"{name}: missing" for name in sorted(fresh.keys() - committed.keys())),
        *(f"{name}: no contract makes it" for name in sorted(committed.keys() - fresh.keys())),
    ]


def main() -> None:
    """Runs the command line above."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    found = differences()
    if found:
        sys.exit("\n".join([*found, "Generate them with: make proto"]))


if __name__ == "__main__":
    main()
