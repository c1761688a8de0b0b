"""G28: real git in a sandbox pushes what its session may not: refused in git's own words, and the host keeps all.

How a push is read and judged is `tests/vault_proxy/doors/test_git_rules.py` and `test_pack.py`.
"""

from __future__ import annotations

import pytest

from tests.security.ground import APP, Ground

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

IDENTITY = "git config user.name a && git config user.email a@a"
REFUSED = {
    "main": "git push origin HEAD:refs/heads/main",
    "a new branch outside": "git push origin HEAD:refs/heads/agents",
    "a branch below another": "git push origin HEAD:refs/heads/main/agent/x",
    "a tag": "git push origin HEAD:refs/tags/v1",
    "notes": "git notes add -m x 2>/dev/null; git push origin refs/notes/commits:refs/notes/commits",
    "a reference of the host's": "git push origin HEAD:refs/pull/1/head",
    "deleting": "git push origin --delete agent/there",
    "deleting by nothing": "git push origin :agent/there",
    "force": "git commit -q --amend -m other && git push --force origin HEAD:refs/heads/agent/there",
    "force with a lease": "git push --force-with-lease origin HEAD:refs/heads/agent/there",
    "force by a plus": "git push origin +HEAD:refs/heads/agent/there",
    "back": "git push --force origin HEAD~1:refs/heads/agent/there",
    "one of many": "git push origin HEAD:refs/heads/agent/ok HEAD:refs/heads/main",
    "all at once": "git push --atomic origin HEAD:refs/heads/agent/ok HEAD:refs/tags/v2",
    "mirror": "git push --mirror origin",
    "in protocol 0": "git -c protocol.version=0 push origin HEAD:refs/heads/main",
    "in protocol 1": "git -c protocol.version=1 push origin HEAD:refs/heads/main",
    "in protocol 2": "git -c protocol.version=2 push origin HEAD:refs/heads/main",
    "in small buffers": "git -c http.postBuffer=1 push origin HEAD:refs/heads/main",
}


async def test_what_may_not_be_pushed_is_rejected(ground: Ground) -> None:
    """Each reads as git's own rejection with a reason, and the host's references stay as they are: also the good ones
    of a push with one bad. The control: a branch of the pattern is made, and moved forward."""
    session, sandbox_id = await ground.behind_doors()
    ready = f"cd ~/app && {IDENTITY} && echo 1 > one && git add one && git commit -q -m one"
    control = f"{ready} && git push -q origin HEAD:refs/heads/agent/there && echo pushed"
    forward = "cd ~/app && echo 2 >> one && git commit -q -a -m two && git push -q origin HEAD:refs/heads/agent/there"
    try:
        assert await ground.run(sandbox_id, control) == "pushed"
        assert await ground.run(sandbox_id, f"{forward} && echo pushed") == "pushed"
        before = ground.git.references(APP)
        assert "refs/heads/agent/there" in before
        for name, command in REFUSED.items():
            said = await ground.run(
                sandbox_id, f"cd ~/app && {{ {command}; }} 2>&1; git reset -q --hard ORIG_HEAD 2>&1"
            )
            assert "[remote rejected]" in said and "(" in said.partition("[remote rejected]")[2], f"{name}: {said}"
            assert ground.git.references(APP) == before, name
        told = await ground.refusals(session, "REFERENCE_DENIED")
        assert ground.git.url(APP) in {each.target for each in told}
    finally:
        _tidy(ground)


async def test_options_and_certificates_are_not_let_through(ground: Ground) -> None:
    """Push options are not offered, so git refuses to send them; a signed push neither. The host is not asked more."""
    _, sandbox_id = await ground.behind_doors()
    ready = f"cd ~/app && {IDENTITY} && echo 1 > one && git add one && git commit -q -m one"
    await ground.run(sandbox_id, ready)
    try:
        for option in ("--push-option=ci.skip", "--signed=true"):
            said = await ground.run(sandbox_id, f"cd ~/app && git push {option} origin HEAD:refs/heads/agent/opt 2>&1")
            assert "does not support" in said or "remote rejected" in said, said
            assert "refs/heads/agent/opt" not in ground.git.references(APP)
        said = await ground.run(sandbox_id, "cd ~/app && git push -q origin HEAD:refs/heads/agent/opt && echo pushed")
        assert said == "pushed", "the control"
    finally:
        _tidy(ground)


async def test_a_repository_to_read_is_read(ground: Ground) -> None:
    """A session whose repository has no pattern pushes nothing; it fetches."""
    _, sandbox_id = await ground.behind_doors(patterns=())
    said = await ground.run(
        sandbox_id, "cd ~/app && git push origin HEAD:refs/heads/agent/x 2>&1; git fetch -q && echo ok"
    )
    assert "may read the repository, and not push to it" in said
    assert said.endswith("ok"), "the control"
    assert "refs/heads/agent/x" not in ground.git.references(APP)


def _tidy(ground: Ground) -> None:
    """Takes away what was pushed: other tests start from main alone."""
    from tests.support.git import git

    for name in ground.git.references(APP):
        if name.startswith("refs/heads/agent/"):
            git(ground.git.folder / f"{APP}.git", "update-ref", "-d", name)
