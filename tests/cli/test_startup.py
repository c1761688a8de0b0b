"""The command is quick to start, and importing it does nothing."""

import json
import subprocess
import sys

HEAVY = ("grpc", "google.protobuf", "rich", "yaml", "cryptography", "handmesh.session", "handmesh.launcher.mesh")


def test_help_imports_nothing_heavy() -> None:
    """`handmesh --help` answers within 300 ms on a slow machine: what commands need is imported when they run."""
    code = (
        "import json, sys\n"
        "from typer.testing import CliRunner\n"
        "from handmesh.cli.__main__ import app\n"
        "before = set(sys.modules)\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "print(json.dumps([result.exit_code, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, modules = json.loads(done.stdout)
    assert exit_code == 0
    assert not [name for name in modules if name.startswith(HEAVY)]
