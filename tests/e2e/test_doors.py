"""A session at work through its doors: a private repository, pushes, the web, with secrets that no sandbox sees."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml

from handmesh.client import Client, Session, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, Resource
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from handmesh.session.v1.event_pb2 import Event
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from tests.e2e.test_mesh import only, outcomes, turn
from tests.sandbox.test_doors_trust import Authority
from tests.support.git import GitServer, Upstream, git

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

GIT_TOKEN, API_KEY = "canary-of-git-3f1a", "canary-of-the-web-77c2"
WORK = """
cd app && git pull --quiet && cat README && git checkout --quiet -b agent/work && echo mine > mine && git add mine &&
git -c user.name=a -c user.email=a@a commit --quiet -m mine && git push origin agent/work 2>&1 | grep -c 'new branch';
git push origin HEAD:main 2>&1 | grep -o 'remote rejected'; git ls-remote {other} 2>&1 | grep -o 'error: 403'
no_proxy= NO_PROXY= python3 - <<'END'
import os, urllib.error, urllib.request as it
asked = it.Request("https://{web}/asked", headers={{"Authorization": "Bearer " + os.environ["API_KEY"]}})
print(it.urlopen(asked).read().decode())
try: it.urlopen("http://10.0.0.1/x")
except urllib.error.HTTPError as refused: print(refused.read().decode())
END
sweep() {{ (env; cat /proc/*/environ; cat /proc/*/cmdline; find /workspace /tmp /run /etc -type f -exec cat {{}} +
) 2>/dev/null | grep -ac 'canary-of-[gt]'; }}
sweep; echo canary-of-""git > planted; sweep
"""


def printed(events: list[Event]) -> str:
    """Returns what the last command has printed."""
    return str(only(events, "tool_finished")[-1].result.output)


@dataclass
class World:
    """A mesh, a git host behind a password, a web server with TLS, and a vault with what opens both."""

    mesh: Mesh
    client: Client
    git: GitServer
    upstream: Upstream
    vault_id: str
    heads: list[dict[str, str]] = field(default_factory=list)  # that the web server has seen

    def config(self, environment: str, vault: bool = True) -> SessionConfig:
        """A session with the repository in its hand."""
        repository = GitRepository(url=self.git.url(self.upstream), push_patterns=["refs/heads/agent/*"])
        resource = Resource(mount_path="/workspace/app", git_repository=repository)
        hand = HandSpec(environment=environment, resources=[resource])
        return SessionConfig(hands={"main": hand}, vault_ids=[self.vault_id] if vault else [])

    async def work(self, environment: str, vault: bool = True) -> tuple[Session, list[Event]]:
        """Lets a session do a turn."""
        session = await self.client.create_session(self.config(environment, vault), content="go to work")
        return session, await turn(session)


def _web(folder: Path, heads: list[dict[str, str]], stack: ExitStack) -> tuple[int, Path]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heads.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"welcome\n")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    authority = Authority(folder, "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = authority.context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    file = folder / "authority.pem"
    file.write_text(authority.pem)
    return server.server_address[1], file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """All of it; the sandboxes that are left are released."""
    folder = tmp_path_factory.mktemp("doors")
    heads: list[dict[str, str]] = []
    with ExitStack() as stack:
        upstream = Upstream(folder / "upstream" / "team" / "app")
        server = GitServer(folder / "upstream")
        stack.callback(server.close)
        server.password = GIT_TOKEN
        web, authority = _web(folder, heads, stack)
        other = server.url(upstream) + "-other"
        command = WORK.format(web=f"127.0.0.1:{web}", other=other)
        steps: list[Any] = [{"say": [{"tool_use": {"tool": "bash", "input": {"command": command}}}]}]
        steps += [{"say": [{"text": "Done."}]}]
        script = folder / "script.yaml"
        script.write_text(
            yaml.safe_dump({"conversations": [{"name": "work", "when": {"user": "work"}, "steps": steps}]})
        )
        environments = folder / "environments.toml"
        tables = [
            f'[environments.{it}]\nbackend = "{it}"\nnetwork.allow = ["127.0.0.1:{web}"]\n'
            for it in ("bubblewrap", "docker")
        ]
        environments.write_text("".join(tables))
        settings = MeshSettings(
            folder / "mesh",
            Scripted(script),
            os.environ,
            Ports.free(),
            environments_file=environments,
            extra={
                "vault_proxy": {"HANDMESH_OUTBOUND_ALLOW": "127.0.0.1", "HANDMESH_OUTBOUND_CA_FILE": str(authority)},
                "sandbox": {"HANDMESH_GIT_ALLOW": "127.0.0.1"},
            },
        )
        async with await Mesh.start(settings) as mesh, connect(data_directory=mesh.files.data_directory) as client:
            vault_id = await _vault(mesh, server.port)
            yield World(mesh, client, server, upstream, vault_id, heads)
            for sandbox in await client.sandboxes():
                await client.release(sandbox.sandbox_id)


async def _vault(mesh: Mesh, port: int) -> str:
    metadata = (("authorization", f"Bearer {mesh.files.api_key.read_text().strip()}"),)
    async with grpc.aio.insecure_channel(mesh.settings.ports.client("vault_proxy")) as channel:
        stub: Any = VaultProxyServiceStub(channel)
        made = await stub.CreateVault(pb.CreateVaultRequest(name="doors"), metadata=metadata)
        variable = pb.EnvironmentVariable(
            variable="API_KEY", value=API_KEY, allowed_hosts=["127.0.0.1"], in_headers=True
        )
        for request in (
            pb.AddCredentialRequest(
                origin=f"http://127.0.0.1:{port}", secret=pb.CredentialSecret(git=pb.GitAccess(value=GIT_TOKEN))
            ),
            pb.AddCredentialRequest(secret=pb.CredentialSecret(environment_variable=variable)),
        ):
            request.vault_id, request.name = made.vault.vault_id, "key"
            await stub.AddCredential(request, metadata=metadata)
        return str(made.vault.vault_id)


@pytest.mark.parametrize("environment", ["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
async def test_a_session_works_with_credentials_that_its_sandbox_has_not(world: World, environment: str) -> None:
    """It clones, fetches, pushes what it may and asks the web; what it may not is said to it and to its operator."""
    world.heads.clear()
    session, events = await world.work(environment)
    assert outcomes(events) == ["OK"], printed(events)
    said = printed(events).split()
    assert said == ["hello", "1", "remote", "rejected", "error:", "403", "welcome", *said[7:]], said
    assert "HOST_DENIED:" in said
    assert said[-2:] == ["0", "1"], said  # no secret anywhere; and one that is planted is found
    assert [head["authorization"] for head in world.heads] == [f"Bearer {API_KEY}"]
    assert "agent/work" in git(world.upstream.folder, "branch", "--list")
    async with asyncio.timeout(20):
        found: list[Any] = []
        while {it.reason for it in found} < {"REFERENCE_DENIED", "REPOSITORY_DENIED", "HOST_DENIED"}:
            found = only([event async for event in session.events()], "door_refused")
            await asyncio.sleep(0.05)
    git(world.upstream.folder, "branch", "-D", "agent/work")


async def test_without_the_credential_there_is_no_repository(world: World) -> None:
    """What another session's credential has fetched a moment ago is not given to one that has none."""
    await world.work("bubblewrap")
    _, events = await world.work("bubblewrap", vault=False)
    assert not only(events, "sandbox_provisioned") and "private" in printed(events)
    git(world.upstream.folder, "branch", "-D", "agent/work")


async def test_doors_outlive_the_sandbox_service(world: World) -> None:
    """After a crash of the service the session's next turn finds them open."""
    session, _ = await world.work("bubblewrap")
    git(world.upstream.folder, "branch", "-D", "agent/work")
    await world.mesh.kill("sandbox")
    await world.mesh.restart("sandbox")
    world.heads.clear()
    await session.send("go to work")
    events = await turn(session, 2)
    assert "welcome" in printed(events) and world.heads, printed(events)
