"""The rules of seeds: which URLs and refs are taken, what a ref stands for, what is evicted."""

from __future__ import annotations

import pytest

from services.kit.errors import Invalid
from services.sandbox import seeds_rules as rules
from services.sandbox.seeds_rules import Kept, Repository, Sources, Target, parse_sources

A, B = "a" * 40, "b" * 40
SOURCES = parse_sources("git.lan:3000, file:///srv/git")


def asked(url: str, ref: str = "") -> Repository:
    """Makes a request for a repository."""
    return Repository("/workspace/x", url, ref)


HOSTILE_URLS = [
    "",
    "git.example/o/r",
    "ext::sh -c touch% /tmp/x",
    "--upload-pack=touch /tmp/x",
    "-oProxyCommand=x",
    "ssh://git@git.example/o/r",
    "git@git.example:o/r",
    "git://git.example/o/r",
    "http://git.example/o/r",
    "https://user:CANARY@git.example/o/r",
    "https://CANARY@git.example/o/r",
    "https://git.example/o/r?access_token=CANARY",
    "https://git.example/o/r#CANARY",
    "https://git.example/../r",
    "https://git.example",
    "https://git.example/",
    "https://git.example:22/o/r",
    "https://git.example/o r",
    "https://git.example/o\nr",
    "https://git.example\\@evil.example/o/r",
    "https://2130706433/o/r",
    "https://-git.example/o/r",
    "https://git.exämple/o/r",
    "https://git.example/" + "r" * 2048,
    "http://git.lan:3001/o/r",
    "file:///etc/repo",
    "file:///srv/git",
    "file:///srv/git/../../etc",
    "file:///srv/gitx/r",
    "file://host/srv/git/r",
    "/srv/git/r",
]
HOSTILE_REFS = [
    *("-x", "--upload-pack=x", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "a@{1}", "a//b"),
    *("/a", "a/", "a.", ".a", "a/.b", "a.lock", "a.lock/b", "@", "a\nb", "a\0b", "a\x7f", "\u202e", "r" * 256),
]


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_what_is_no_plain_url_of_an_allowed_host_is_refused(url: str) -> None:
    """The error is typed and repeats nothing of the URL, which may hold a password."""
    with pytest.raises(Invalid) as refused:
        rules.check_repository(asked(url), SOURCES if url != "file:///srv/git" else Sources(folders=("/srv/git/r",)))
    assert refused.value.reason == "RESOURCE_INVALID"
    assert "CANARY" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "scheme", "private_ok"),
    [
        ("https://git.example/o/r.git", "https", False),
        ("https://git.example:8443/o/r/", "https", False),
        ("http://git.lan:3000/o/r", "http", True),
        ("https://git.lan:3000/o/r", "https", True),
        ("file:///srv/git/o/r.git", "file", True),
    ],
)
def test_plain_urls_are_taken_as_they_are(url: str, scheme: str, private_ok: bool) -> None:
    """https from anywhere; http, private addresses and folders only where the operator has said so."""
    remote = rules.check_repository(asked(url), SOURCES)
    assert (remote.url, remote.scheme, remote.private_ok) == (url, scheme, private_ok)


@pytest.mark.parametrize("ref", HOSTILE_REFS)
def test_what_is_no_name_of_a_ref_is_refused(ref: str) -> None:
    """Nothing reaches git that it could read as an option, a pattern or a range."""
    with pytest.raises(Invalid) as refused:
        rules.check_repository(asked("https://git.example/o/r", ref), SOURCES)
    assert refused.value.reason == "RESOURCE_INVALID"


@pytest.mark.parametrize("ref", ["", "main", "HEAD", "feat/x-1", "v1.0", "große", "refs/heads/main", A, "a@b", "#1"])
def test_names_of_refs_are_taken(ref: str) -> None:
    """Whatever git takes as the name of a branch or a tag is one."""
    rules.check_repository(asked("https://git.example/o/r", ref), SOURCES)


@pytest.mark.parametrize(
    ("ref", "said", "expected"),
    [
        ("", f"ref: refs/heads/main\tHEAD\n{A}\tHEAD\n", Target(A, "main")),
        ("", f"{A}\tHEAD\n", Target(A)),
        ("", "", None),
        ("x", f"{A}\trefs/heads/x\n{B}\trefs/tags/x\n", Target(A, "x")),
        ("x", f"{A}\trefs/tags/x\n{B}\trefs/tags/x^{{}}\n", Target(B)),
        ("x", f"{A}\trefs/heads/other/refs/heads/x\n", None),
        ("refs/heads/x", f"{A}\trefs/heads/x\n", Target(A, "x")),
        ("refs/tags/x", f"{A}\trefs/tags/x\n", Target(A)),
        ("refs/pull/1/head", f"{A}\trefs/pull/1/head\n", None),
        ("x", "garbage\n\t\nref: refs/heads/x\trefs/heads/x\n", None),
    ],
)
def test_a_ref_stands_for_what_git_clone_would_take(ref: str, said: str, expected: Target | None) -> None:
    """A branch comes before a tag, an annotated tag means its commit, and only whole names count."""
    assert rules.target(said, ref) == expected


def test_the_longest_unused_goes_first_and_what_is_held_stays() -> None:
    """Only as much goes as must, and nothing that a sandbox shows."""
    kept = [Kept("old", 10, 1.0, False), Kept("held", 10, 0.0, True), Kept("new", 10, 2.0, False)]
    assert rules.to_evict(kept, 30) == []
    assert rules.to_evict(kept, 29) == ["old"]
    assert rules.to_evict(kept, 0) == ["old", "new"]


def test_the_operators_sources_are_read_and_shown() -> None:
    """What is read is shown again the same way; what is neither a host nor a folder is told."""
    assert str(SOURCES) == "git.lan:3000,file:///srv/git"
    assert str(Sources()) == "none"
    for wrong in ("https://x/y", "file://relative", "file:///a/../b"):
        with pytest.raises(ValueError, match="host"):
            parse_sources(wrong)
