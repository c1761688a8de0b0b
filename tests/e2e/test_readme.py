"""The README's grpcurl lines, run as they stand against a mesh: by grpcurl when it is there, else by `buf curl`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handmesh.client.addresses import local_api_key
from handmesh.launcher.mesh import Mesh

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

README = (Path(__file__).parents[2] / "README.md").read_text()
LINES = re.findall(r"^grpcurl .*$", README, re.MULTILINE)
CALL_SECONDS = 60
TOOLS = [name for name in ("grpcurl", "buf") if shutil.which(name) or Path(sys.executable).with_name(name).exists()]


def as_buf(arguments: list[str]) -> list[str]:
    """Spells a grpcurl command as one of `buf curl`."""
    options: list[str] = []
    rest: list[str] = []
    words = iter(arguments[1:])
    for word in words:
        if word in ("-H", "-d"):
            options += [word, next(words)]
        elif word != "-plaintext":
            rest.append(word)
    address, *what = rest
    buf = str(Path(sys.executable).with_name("buf"))
    command = [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *options]
    match what:
        case ["list"]:
            return [*command, "--list-services", f"http://{address}"]
        case ["list", _]:
            return [*command, "--list-methods", f"http://{address}"]
        case [method]:
            return [*command, f"http://{address}/{method}"]
    raise AssertionError(f"no such command: {arguments}")


def run(line: str, key: str, ports: dict[str, str], ids: dict[str, str], tool: str) -> Any:
    """Runs one line; returns its JSON answer, or what it listed."""
    for name, value in (*ports.items(), *ids.items()):
        line = line.replace(name, value)
    arguments = [word.replace("$KEY", f"authorization: Bearer {key}") for word in shlex.split(line)]
    command = arguments if tool == "grpcurl" else as_buf(arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout if " list" in line else json.loads(done.stdout, object_hook=snake)


def snake(found: dict[str, Any]) -> dict[str, Any]:
    """Spells keys as the contracts do: buf prints `sessionId`, grpcurl `session_id`."""
    return {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in found.items()}


@pytest.mark.parametrize("tool", TOOLS)
async def test_the_readmes_lines_work(mesh: Mesh, tool: str) -> None:
    """Each verb by reflection, in the README's order, with the ids that the calls before returned."""
    key = local_api_key(mesh.files.data_directory)
    assert key is not None
    names = {"7401": "session", "7402": "harness", "7403": "sandbox", "7404": "vault_proxy"}
    ports = {f"127.0.0.1:{port}": mesh.settings.ports.client(service) for port, service in names.items()}
    ids: dict[str, str] = {"again-1": f"again-{tool}", '"readme"': f'"readme-{tool}"'}
    answers: dict[str, Any] = {}
    for line in LINES:
        verb = line.split()[-1].rpartition("/")[2]
        answer = answers[verb] = run(line, key, ports, ids, tool)
        if verb == "CreateSession":
            ids["SESSION"] = answer["session"]["session_id"]
        if verb == "Provision":
            ids["SANDBOX"] = answer["sandbox"]["sandbox_id"]
    assert "handmesh.session.v1.SessionService" in answers["list"]
    assert answers["GetSession"]["session"]["session_id"] == ids["SESSION"]
    assert "Linux" in answers["Execute"]["result"]["output"]
    assert answers["EmitEvent"]["position"]
    assert answers["GetEvents"]["events"]
    assert answers["Wake"]["outcome"].startswith("WAKE_OUTCOME_")
    assert "Execute" in answers["handmesh.vault_proxy.v1.VaultProxyService"]
