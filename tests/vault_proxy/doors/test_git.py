"""Real git, without a credential, through a real door to a real git host that wants one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from tests.support.git_host import GitHost
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.bao import seal, unseal
from tests.vault_proxy.conftest import Proxy, Start, vault_settings
from tests.vault_proxy.doors.conftest import NAME, VALUE, World
from tests.vault_proxy.doors.dialling import dial
from tests.vault_proxy.doors.git_world import AGENT, add_login, rotate, rule, sandbox


@pytest.mark.vault
@pytest.mark.parametrize("version", ["0", "1", "2"])
async def test_clone_push_and_fetch(world: World, version: str) -> None:
    """In each version of git's protocol; the checkout names the true host, and holds no credential."""
    protocol = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.version", "GIT_CONFIG_VALUE_0": version}
    world.box.environment |= protocol
    app = await world.cloned()
    made = await world.box.commit(app, "file", "x\n")
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/one", cwd=app)
    assert world.host.references(NAME)["refs/heads/agent/one"] == made
    await world.box.ok("clone", "--quiet", "--branch", "agent/one", world.host.url(NAME), "again")
    more = await world.box.commit(app, "file", "y\n")
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/one", cwd=app)
    await world.box.ok("pull", "--quiet", "--ff-only", cwd="again")
    assert await world.box.ok("rev-parse", "HEAD", cwd="again") == more
    assert await world.box.ok("remote", "get-url", "origin", cwd="again") != world.host.url(NAME)
    assert await world.box.ok("config", "remote.origin.url", cwd="again") == world.host.url(NAME)
    sent = [request.headers.get("git-protocol", "") for request in world.host.requests]
    assert set(sent) - {""} == (set() if version == "0" else {f"version={version}"})  # a push has no version 2
    assert set(await world.results(len(world.host.requests))) == {"ok"}


@pytest.mark.vault
async def test_what_is_refused_reads_as_gits_own_words(world: World) -> None:
    """Main, a tag, a deletion, a note, one bad reference among good ones: nothing of it reaches the host."""
    app = await world.cloned()
    await world.box.commit(app, "file", "x\n")
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/there", cwd=app)
    before, seen = world.host.references(NAME), len(world.host.requests)
    only = "this session may push only to refs/heads/agent/*"
    for arguments, why in [
        (["HEAD:refs/heads/main"], only),
        (["HEAD:refs/tags/v1"], only),
        (["HEAD:refs/notes/commits"], only),
        (["HEAD:refs/heads/agent-x"], only),
        (["HEAD:refs/heads/agent/fine", "HEAD:refs/heads/main"], only),
        (["--force", "HEAD:refs/heads/main"], only),
        (["--delete", "agent/there"], "no reference is deleted"),
        (["--mirror"], only),
    ]:
        said = await world.box.git("push", "origin", *arguments, cwd=app)
        assert said.code != 0
        assert "[remote rejected]" in said.text and f"({why})" in said.text, said.text
    assert world.host.references(NAME) == before
    asked = [request.path for request in world.host.requests[seen:]]
    assert all("info/refs" in path for path in asked), asked
    while (world.host.url(NAME), "REFERENCE_DENIED") not in world.box.refused():
        world.proxy.peer.emitted.clear()
        await world.proxy.peer.emitted.wait()


@pytest.mark.vault
async def test_a_reference_moves_forward_only(world: World) -> None:
    """A force push to an allowed branch is refused although the host would take it; a merge goes through."""
    app = await world.cloned()
    await world.box.commit(app, "file", "x\n" * 1000)
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/a", cwd=app)
    kept = world.host.references(NAME)["refs/heads/agent/a"]
    await world.box.ok("commit", "--quiet", "--amend", "--message", "another past", cwd=app)
    said = await world.box.git("push", "--force", "origin", "HEAD:refs/heads/agent/a", cwd=app)
    assert "[remote rejected]" in said.text and "no force push is let through" in said.text, said.text
    said = await world.box.git("push", "--force", "origin", "HEAD~1:refs/heads/agent/a", cwd=app)
    assert "no force push is let through" in said.text, said.text
    assert world.host.references(NAME)["refs/heads/agent/a"] == kept
    await world.box.ok("merge", "--quiet", "--no-edit", "-X", "ours", "--allow-unrelated-histories", kept, cwd=app)
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/a", cwd=app)
    head = await world.box.ok("rev-parse", "HEAD", cwd=app)
    assert world.host.references(NAME)["refs/heads/agent/a"] == head
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/a", cwd=app)  # again: nothing to do


@pytest.mark.vault
async def test_only_the_sessions_repositories(world: World) -> None:
    """Another one of the same owner is refused with a word of what would do, and the host hears nothing."""
    world.host.make("acme/other")
    seen = len(world.host.requests)
    said = await world.box.git("clone", world.host.url("acme/other"), "other")
    assert said.code != 0
    assert f"this session's repositories are: {world.host.url(NAME)}" in said.text
    assert len(world.host.requests) == seen
    while world.box.refused() != [(f"https://{world.host.authority}/acme/other", "REPOSITORY_DENIED")]:
        world.proxy.peer.emitted.clear()
        await world.proxy.peer.emitted.wait()


@pytest.mark.vault
async def test_a_repository_without_patterns_is_read_only(world: World) -> None:
    """A push is refused before anything is asked of the host."""
    app = await world.cloned()
    world.proxy.peer.grants[world.box.grant].git_rules[0].ClearField("push_patterns")
    world.proxy.peer.break_streams()
    await world.proxy.peer.watched.wait()
    await world.box.commit(app, "file", "x\n")
    said = await world.box.git("push", "origin", "HEAD:refs/heads/agent/x", cwd=app)
    assert said.code != 0 and "may read the repository, and not push to it" in said.text, said.text
    await world.box.ok("fetch", "--quiet", cwd=app)


@pytest.mark.vault
async def test_submodules_of_the_same_host(world: World) -> None:
    """A rule that ends in /* covers what is below; without it the submodule is refused."""
    await asyncio.to_thread(world.host.make, "libs/one")
    app = await world.cloned()
    inner = world.host.url("libs/one")
    grant = world.proxy.peer.grants[world.box.grant]
    grant.git_rules.append(rule(world.host.url("libs/*"), ()))
    world.proxy.peer.break_streams()
    await world.proxy.peer.watched.wait()
    await world.box.ok("submodule", "--quiet", "add", inner, "one", cwd=app)
    await world.box.commit(app, "with", "a submodule\n")
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/sub", cwd=app)
    clone = ["clone", "--quiet", "--recurse-submodules", "--branch", "agent/sub", world.host.url(NAME)]
    await world.box.ok(*clone, "whole")
    assert (world.box.folder / "whole" / "one" / "README").read_text() == "hello from libs/one\n"
    del grant.git_rules[1]
    world.proxy.peer.break_streams()
    await world.proxy.peer.watched.wait()
    said = await world.box.git(*clone, "less")
    assert said.code != 0 and "REPOSITORY_DENIED" in said.text, said.text


@pytest.mark.vault
async def test_a_credential_is_rotated_under_a_running_session(world: World) -> None:
    """The next request uses the new value; the old one is refused with a reason, and nobody is asked for a password."""
    app = await world.cloned()
    world.host.value = "canary-another-value"
    said = await world.box.git("fetch", cwd=app)
    assert said.code != 0 and "refuses the session's credential" in said.text, said.text
    await rotate(world.proxy, world.credential_id, "canary-another-value")
    await world.box.ok("fetch", "--quiet", cwd=app)
    assert "CREDENTIAL_REVOKED" in await world.results(3)


@pytest.mark.vault
async def test_without_a_credential_a_repository_is_read_as_anybody_does(
    proxy: Proxy, host: GitHost, tmp_path: Path
) -> None:
    """A public one is cloned; one that wants a credential is refused with the reason."""
    grant = proxy.peer.grant(git_rules=(rule(host.url(NAME)),))
    async with sandbox(proxy, grant, tmp_path / "box", host) as box:
        said = await box.git("clone", host.url(NAME), "no")
        assert said.code != 0 and "wants a credential, and the session has none" in said.text, said.text
        host.value = None
        await box.ok("clone", "--quiet", host.url(NAME), "app")
        assert not any("authorization" in request.headers for request in host.requests)


@pytest.mark.vault
async def test_a_sealed_vault(start: Start, own_openbao: OpenBaoServer, host: GitHost, tmp_path: Path) -> None:
    """git hears why at once; after the unsealing the same session's next try works, without a restart."""
    async with start(**vault_settings(own_openbao)) as proxy:
        vault_id, _ = await add_login(proxy, host.origin, VALUE)
        grant = proxy.peer.grant(vault_ids=(vault_id,), git_rules=(rule(host.url(NAME)),))
        async with sandbox(proxy, grant, tmp_path / "box", host) as box:
            seal(own_openbao)
            said = await box.git("clone", host.url(NAME), "no")
            assert said.code != 0 and "VAULT_UNAVAILABLE" in said.text, said.text
            await asyncio.to_thread(unseal, own_openbao)
            while (await box.git("clone", "--quiet", host.url(NAME), "app")).code:
                await asyncio.sleep(0.1)


@pytest.mark.vault
async def test_the_end_of_a_session_cuts_what_runs(world: World) -> None:
    """A clone that waits for its host ends, and the next one gets no ticket."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(request: object) -> None:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    world.host.strange = hold
    cloning = asyncio.create_task(world.box.git("clone", world.host.url(NAME), "no"))
    await asked.wait()
    world.proxy.peer.revoke(world.box.grant)
    assert (await cloning).code != 0
    go_on.set()
    world.host.strange = lambda request: None


@pytest.mark.parametrize("missed", [True, False])
async def test_an_end_that_was_missed_cuts_what_runs_all_the_same(small_world: World, missed: bool) -> None:
    """The stream of revocations was down meanwhile: once it is back, every connection's grant is looked at again."""
    world = small_world
    ticket, address = await world.box.ticket()
    reader, writer = await dial(address, world.proxy.tls / "sandbox", ticket)
    writer.write(b"GET /")
    await writer.drain()
    if missed:
        del world.proxy.peer.grants[world.box.grant]
    world.proxy.peer.break_streams()
    await world.proxy.peer.watched.wait()
    if missed:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    else:
        writer.write(b" HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


@pytest.mark.vault
@pytest.mark.parametrize("again", [False, True])
async def test_a_large_push_streams(world: World, again: bool) -> None:
    """30 MB that do not pack, to a new branch and as a step forward of one that is there."""
    app = await world.cloned()
    if again:
        await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/large", cwd=app)
    made = await world.box.commit(app, "large", os.urandom(30 << 20))
    await world.box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/large", cwd=app)
    assert world.host.references(NAME)["refs/heads/agent/large"] == made


@pytest.mark.vault
async def test_a_repository_that_names_by_sha256(proxy: Proxy, host: GitHost, tmp_path: Path) -> None:
    """The same rules hold for it."""
    host.make("acme/new", "--object-format=sha256")
    vault_id, _ = await add_login(proxy, host.origin, VALUE)
    grant = proxy.peer.grant(vault_ids=(vault_id,), git_rules=(rule(host.url("acme/new")),))
    async with sandbox(proxy, grant, tmp_path / "box", host) as box:
        await box.ok("clone", "--quiet", host.url("acme/new"), "app")
        for name in ("one", "two"):
            made = await box.commit("app", name, "x\n")
            await box.ok("push", "--quiet", "origin", "HEAD:refs/heads/agent/a", cwd="app")
        assert host.references("acme/new")["refs/heads/agent/a"] == made
        await box.ok("commit", "--quiet", "--amend", "--message", "another past", cwd="app")
        said = await box.git("push", "--force", "origin", "HEAD:refs/heads/agent/a", cwd="app")
        assert "no force push is let through" in said.text, said.text


@pytest.mark.vault
async def test_what_a_sandbox_is_told_before_its_tools_run(world: World) -> None:
    """Its repositories, with what it may push."""
    from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
    from services.kit.channels import connect

    async with connect(world.proxy.address, world.proxy.tls / "sandbox") as channel:
        request = pb.PrepareDoorsRequest(sandbox_id=world.box.sandbox_id)
        metadata = (("x-handmesh-grant", world.box.grant),)
        told = await VaultProxyServiceStub(channel).PrepareDoors(request, metadata=metadata)  # type: ignore[misc]
    assert list(told.repositories) == [rule(world.host.url(NAME), AGENT)]
