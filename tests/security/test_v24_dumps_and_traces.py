"""V24, of whole processes: gRPC's own tracing at its loudest, and what is left when one is ended with SIGABRT."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from handmesh.launcher.ca import ensure_api_key
from handmesh.launcher.ports import free_ports
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import connect
from services.kit.grants import GRANT_KEY
from tests.support.canary import core, hits, mint
from tests.support.mesh_server import Served
from tests.vault_proxy.session_peer import SessionPeer
from tests.vault_proxy.strange_server import strange_server

ROOT = Path(__file__).parents[2]
LOUDEST = {
    "GRPC_TRACE": "all",
    "GRPC_VERBOSITY": "DEBUG",
    "HANDMESH_LOG_LEVEL": "debug",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONASYNCIODEBUG": "1",
}


async def test_traces_of_grpc_hold_no_credential(session_peer: tuple[SessionPeer, Served], tmp_path: Path) -> None:
    """A credential is stored and used by a service that traces all that gRPC can trace, and it is then made to crash:
    nothing of the credential is in what it wrote. Metadata is traced: who turns that on reads API keys and grants."""
    peer, mesh = session_peer
    canary, (port, client_port) = mint(), free_ports(2)
    key = ensure_api_key(mesh.tls.parent).read_text().strip()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HANDMESH_LISTEN": f"127.0.0.1:{port}",
        "HANDMESH_CLIENT_LISTEN": f"127.0.0.1:{client_port}",
        "HANDMESH_TLS_DIR": str(mesh.tls / "vault_proxy"),
        "HANDMESH_API_KEYS_FILE": str(mesh.tls.parent / "api_keys.json"),
        "HANDMESH_SESSION_ADDRESS": mesh.address,
        "HANDMESH_STORE": "memory",
        "HANDMESH_OUTBOUND_ALLOW": "127.0.0.1",
        **LOUDEST,
    }
    said = tmp_path / "said"
    with said.open("wb") as output:
        command = [sys.executable, "-m", "services.vault_proxy"]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=output, stderr=output, cwd=tmp_path
        )
    async with strange_server() as strange, connect(f"127.0.0.1:{port}", mesh.tls / "harness") as harness:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{client_port}") as channel:
            stub, shown = VaultProxyServiceStub(channel), (("authorization", f"Bearer {key}"),)
            creating = stub.CreateVault(pb.CreateVaultRequest(name="a"), metadata=shown, wait_for_ready=True)
            vault_id = (await creating).vault.vault_id
            secret = pb.CredentialSecret(static_bearer=pb.StaticBearer(value=canary))
            origin = strange.url.removesuffix("/mcp")
            adding = pb.AddCredentialRequest(vault_id=vault_id, origin=origin, secret=secret)
            await stub.AddCredential(adding, metadata=shown)
        grant = peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(vault_id,))
        request = pb.ExecuteRequest(name="strange__echo", input='{"text": "x"}')
        calling = VaultProxyServiceStub(harness).Execute(request, metadata=((GRANT_KEY, grant),), wait_for_ready=True)
        assert (await calling).result.output == "you said x"
        assert strange.heard(canary), "the control: the credential was used"
    process.send_signal(signal.SIGABRT)
    assert await process.wait() == -signal.SIGABRT
    written = said.read_bytes()
    assert b"Fatal Python error: Aborted" in written, "the control: it crashed, and said where"
    assert key.encode() in written, "the control: traces were on"
    assert hits(canary, written) == []


CRASHES = """
import os, sys
sys.path.insert(0, {root!r})
from services.vault_proxy.undumped import hide_memory
secret = bytes(each ^ 1 for each in {masked!r})  # not in the program's text
if {hidden}:
    hide_memory()
os.abort()
"""


@pytest.mark.parametrize("hidden", [True, False])
def test_a_crash_leaves_no_core_file(tmp_path: Path, hidden: bool) -> None:
    """The limit of core files is nothing, and the process is not to be dumped. The control: without that it leaves a
    file with the secret in it, on a machine whose cores are files."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if not hidden and (pattern.startswith(("|", "/")) or hard == 0):
        pytest.skip("this machine's cores are no files in the working directory")
    secret = core()
    program = CRASHES.format(root=str(ROOT), masked=bytes(each ^ 1 for each in secret.encode()), hidden=hidden)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, preexec_fn=limit, check=False)
    assert done.returncode == -signal.SIGABRT
    cores = list(tmp_path.glob("core*"))
    assert any(hits(secret, each.read_bytes()) for each in cores) is not hidden
    assert bool(cores) is not hidden


LOOKS = """
import ctypes, json, os, sys
sys.path.insert(0, {root!r})
from services.vault_proxy.undumped import hide_memory
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(64322, 64322, 64322)
    os.setresuid(64322, 64322, 64322)

def looked(hidden):
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user has hidden it already
        if hidden:
            hide_memory()
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    seen = {{}}
    for name in ("mem", "environ", "maps"):
        try:
            with open(f"/proc/{{child}}/{{name}}", "rb"):
                seen[name] = True
        except PermissionError:
            seen[name] = False
    os.write(go[1], b".")
    os.waitpid(child, 0)
    return seen

print(json.dumps([looked(False), looked(True)]))
"""


def test_nobody_of_the_same_user_reads_its_memory() -> None:
    """Not even the process that started it. The control: it reads the memory of one that has not hidden it."""
    program = LOOKS.format(root=str(ROOT))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shown, hidden = json.loads(done.stdout)
    assert shown == {"mem": True, "environ": True, "maps": True}
    assert hidden == {"mem": False, "environ": False, "maps": False}
