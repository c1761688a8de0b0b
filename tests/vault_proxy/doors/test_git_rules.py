"""The git door's rules alone: what a path leads to, what may be pushed, what is a pkt-line and a request's head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vault_proxy.core import pkt_line
from services.vault_proxy.core.git_paths import FETCH, PUSH, Asked, Route, RouteRefused, repository, route
from services.vault_proxy.core.git_push import NOT_FORWARD, OTHERS, Advertisement, all_refused, moved, refusals
from services.vault_proxy.core.git_rules import Rule, allowing, may_push, repository_of, rule_of
from services.vault_proxy.core.http_head import HEAD_BYTES, MOST_HEADERS, HeadRefused, chunk_size, head_of
from services.vault_proxy.core.pkt_line import Command, LineRefused, Push, PushReader, push_of, report

ZERO, ONE, TWO = "0" * 40, "1" * 40, "2" * 40
APP = "https://git.example/acme/app"


def a_rule(repository: str = APP, *patterns: str) -> Rule:
    found = rule_of(repository, patterns)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/git.example/acme/app/info/refs?service=git-upload-pack", (Asked.REFERENCES, "acme/app", "", FETCH)),
        ("GET", "/git.example/a/b.git/info/refs?service=git-receive-pack", (Asked.REFERENCES, "a/b", ".git", PUSH)),
        ("POST", "/git.example/acme/app.git/git-upload-pack", (Asked.OBJECTS, "acme/app", ".git", FETCH)),
        ("POST", "/git.example/a/b/c/git-receive-pack", (Asked.PUSH, "a/b/c", "", PUSH)),
        ("POST", "/git.example/acme/app.git/info/lfs/objects/batch", (Asked.LFS_BATCH, "acme/app", ".git", FETCH)),
    ],
)  # fmt: skip
def test_a_path_says_what_is_asked(method: str, target: str, expected: tuple[Asked, str, str, str]) -> None:
    """Of which repository, and how its name was spelled: the host gets the same spelling."""
    found = route(method, target)
    assert (found.asked, found.path, found.ending, found.service) == expected
    assert found.authority == "git.example"


SMART = "?service=git-upload-pack"


@pytest.mark.parametrize(
    ("status", "method", "target"),
    [
        (400, "GET", "/git.example/acme/../other/app/info/refs" + SMART),
        (400, "GET", "/git.example/acme/./app/info/refs" + SMART),
        (400, "GET", "/git.example/acme/%2e%2e/app/info/refs" + SMART),
        (400, "GET", "/git.example/acme%2fapp/info/refs" + SMART),
        (400, "GET", "//git.example/acme/app/info/refs" + SMART),
        (400, "GET", "/git.example//acme/app/info/refs" + SMART),
        (400, "GET", "/git.example/acme/app//info/refs" + SMART),
        (400, "GET", "http://git.example/acme/app/info/refs" + SMART),
        (400, "GET", "/user:value@git.example/acme/app/info/refs" + SMART),
        (400, "GET", "/GIT.example/acme/app/info/refs" + SMART),
        (400, "GET", "/git.example/acme/app\\x/info/refs" + SMART),
        (400, "GET", "/git.example/acme/app/info/refs" + SMART + "&x=1"),
        (400, "GET", "/git.example/acme/app/info/refs" + SMART + "#x"),
        (400, "GET", "/git.example/" + "a/" * 20 + "info/refs" + SMART),
        (400, "GET", "*"),
        (400, "POST", "/git.example/acme/app/git-upload-pack?x=1"),
        (403, "GET", "/git.example/acme/app/info/refs"),
        (403, "GET", "/git.example/acme/app/info/refs?service=git-upload-archive"),
        (403, "POST", "/git.example/acme/app/git-upload-archive"),
        (403, "GET", "/git.example/acme/app/HEAD"),
        (403, "GET", "/git.example/acme/app/objects/info/packs"),
        (403, "GET", "/git.example/acme/app/objects/00/" + "0" * 38),
        (404, "GET", "/git.example/acme/app"),
        (404, "GET", "/git.example/api/v3/user"),
        (404, "POST", "/git.example/acme/app.git/info/lfs/locks/verify"),
        (400, "POST", "/git.example/git-upload-pack"),
        (405, "POST", "/git.example/acme/app/info/refs" + SMART),
        (405, "GET", "/git.example/acme/app/git-receive-pack"),
        (405, "CONNECT", "git.example:443"),
        (405, "DELETE", "/git.example/acme/app/info/refs"),
        (405, "HEAD", "/git.example/acme/app/info/refs" + SMART),
        (400, "GET", "/.lfs/" + "a" * 42),
    ],
)
def test_what_has_no_way_is_refused(status: int, method: str, target: str) -> None:
    """Other spellings, other protocols, other methods: each with its status."""
    with pytest.raises(RouteRefused) as refused:
        route(method, target)
    assert refused.value.status == status


@given(st.text(alphabet="/.%ab:?=&-_~@\\", max_size=60))
def test_whatever_has_a_way_has_one_spelling(text: str) -> None:
    """A path that leads somewhere has no part that a host could read as another one."""
    try:
        found = route("GET", f"/git.example/{text}/info/refs{SMART}")
    except RouteRefused:
        return
    parts = found.path.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert not set("%?\\@&=:") & set(found.path)


def test_a_rule_is_for_its_repository_alone() -> None:
    """Whether it is spelled with .git or without; one that ends in /* is for those below, and not for itself."""
    one, below = a_rule(APP + ".git"), a_rule("https://git.example/acme/libs/*")
    assert one == a_rule(APP) and str(one) == APP and str(below) == "https://git.example/acme/libs/*"
    for url, expected in [
        (APP, (one,)),
        (APP + ".git", (one,)),
        (APP + "2", ()),
        ("https://git.example/acme/App", ()),
        ("http://git.example/acme/app", ()),
        ("https://git.example:8443/acme/app", ()),
        ("https://other.example/acme/app", ()),
        ("https://git.example/acme/libs/one", (below,)),
        ("https://git.example/acme/libs/one/two", (below,)),
        ("https://git.example/acme/libs", ()),
        ("https://git.example/acme/libs2/one", ()),
    ]:
        found = repository_of(url)
        assert found is not None and allowing((one, below), found) == expected, url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "git@git.example:acme/app",
        "https://git.example",
        "https://git.example/*",
        "https://git.example/a/../b",
        "https://user@git.example/a/b",
        "file:///a/b",
        "https://git.example/a//b",
        "https://git.example/a/b?x=1",
        "ext::sh",
        "-https://git.example/a/b",
        "https://git.example/a/%2e%2e/b",
        "https://git.example/a/*/b",
        "/a/b",
    ],
)
def test_what_names_no_repository_is_no_rule(url: str) -> None:
    """A session whose configuration says so has a door that leads nowhere."""
    assert rule_of(url, ()) is None


def test_a_port_is_part_of_a_host() -> None:
    """As it is spelled in the rule, or with the port that https has."""
    rules = (a_rule(APP), a_rule("http://127.0.0.1:3000/acme/app"))
    for authority, expected in [
        ("git.example", rules[:1]),
        ("git.example:443", rules[:1]),
        ("git.example:80", ()),
        ("127.0.0.1:3000", rules[1:]),
        ("127.0.0.1", ()),
    ]:
        assert repository(Route(Asked.OBJECTS, authority, "acme/app"), rules)[1] == expected, authority


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("refs/heads/agent/x", True),
        ("refs/heads/agent/x/y", True),
        ("refs/heads/agent", False),
        ("refs/heads/agents/x", False),
        ("refs/heads/main", False),
        ("refs/tags/agent/x", False),
        ("refs/heads/agent/../main", False),
        ("refs/heads/agent//x", False),
        ("refs/heads/agent/.x", False),
        ("refs/heads/agent/x.lock", False),
        ("refs/heads/agent/", False),
        ("refs/heads/agent/x\n", False),
        ("refs/heads/agent/x y", False),
        ("refs/heads/agent/ü", False),
        ("HEAD", False),
        ("refs/heads/fix", True),
        ("refs/heads/fix2", False),
    ],
)
def test_a_reference_is_of_a_pattern(reference: str, expected: bool) -> None:
    """And is spelled as git spells references."""
    assert may_push([a_rule(APP, "refs/heads/agent/*", "refs/heads/fix", "*")], reference) is expected


def test_a_push_is_refused_as_a_whole() -> None:
    """With the reason at each reference that has one, and a word at the others."""
    rules = [a_rule(APP, "refs/heads/a/*")]
    named = [(ZERO, ONE, "refs/heads/a/new"), (ONE, TWO, "refs/heads/main"), (ONE, ZERO, "refs/heads/a/x")]
    push = Push(tuple(Command(*each) for each in named))
    why = refusals(push, rules)
    assert all_refused(push, why) == [
        ("refs/heads/a/new", OTHERS),
        ("refs/heads/main", "this session may push only to refs/heads/a/*"),
        ("refs/heads/a/x", "no reference is deleted"),
    ]
    assert refusals(Push(push.commands[:1]), rules) == {}
    assert moved(push) == push.commands[1:]


def test_what_has_a_host_do_more_is_refused() -> None:
    """Push options, certificates, one reference twice."""
    rules, command = [a_rule(APP, "refs/heads/a/*")], Command(ZERO, ONE, "refs/heads/a/b")
    assert "push options" in refusals(Push((command,), frozenset({"push-options"})), rules)[command.reference]
    assert "once" in refusals(Push((command, Command(ZERO, TWO, command.reference))), rules)[command.reference]
    named = f"{ZERO} {ONE} refs/heads/a/b".encode()
    for lines in ([], [named], [b"pusher x", b"", named, b"-----BEGIN PGP SIGNATURE-----", b"push-cert-end"]):
        signed = push_of([b"push-cert\0report-status", b"certificate version 0.1", *lines])
        assert signed.commands == ((command,) if lines else ())
        assert "signed" in refusals(signed, rules)["this push"]


def test_a_host_does_not_offer_what_is_not_let_through() -> None:
    """The first reference keeps the rest of its capabilities; everything after it goes by as it is."""
    said = pkt_line.pkt_line(b"# service=git-receive-pack\n") + b"0000"
    first = pkt_line.pkt_line(f"{ONE} refs/heads/main\0report-status push-cert=x push-options ofs-delta\n".encode())
    rest = pkt_line.pkt_line(f"{TWO} refs/heads/x\n".encode()) + b"0000"
    expected = said + pkt_line.pkt_line(f"{ONE} refs/heads/main\0report-status ofs-delta no-thin\n".encode()) + rest
    whole = said + first + rest
    for step in (1, 5, 1000):
        advertisement = Advertisement()
        told = b"".join(advertisement.feed(whole[at : at + step]) for at in range(0, len(whole), step))
        assert told + advertisement.end() == expected


@given(st.binary(max_size=200))
def test_what_is_no_advertisement_is_refused_or_passed_on_unread(data: bytes) -> None:
    """Whatever a host says: one error at most."""
    try:
        Advertisement().feed(data)
    except LineRefused:
        return


COMMANDS = st.lists(
    st.builds(Command, st.just(ZERO), st.just(ONE), st.from_regex(r"refs/heads/[a-z]{1,8}", fullmatch=True)),
    min_size=1,
    max_size=pkt_line.MOST_COMMANDS,
)


@given(COMMANDS, st.integers(1, 200), st.binary(max_size=50))
def test_a_push_is_read_however_its_parts_fall(commands: list[Command], step: int, pack: bytes) -> None:
    """What is read and what is left make up what came."""
    lines = [f"{each.old} {each.new} {each.reference}".encode() for each in commands]
    lines[0] += b"\0report-status side-band-64k"
    data = b"".join(map(pkt_line.pkt_line, lines)) + b"0000" + pack
    reader = PushReader()
    for at in range(0, len(data), step):
        push = reader.feed(data[at : at + step])
        if push is not None:
            break
    assert push == Push(tuple(commands), frozenset({"report-status", "side-band-64k"}))
    assert reader.said + reader.rest == data[: at + step]


@given(st.binary(max_size=200))
def test_what_is_no_push_is_refused_or_waited_for(data: bytes) -> None:
    """Whatever comes: one error, or the wish for more."""
    try:
        PushReader().feed(data)
    except LineRefused:
        return


@pytest.mark.parametrize(
    "lines",
    [
        [f"{ZERO} {ONE} refs/heads/{at}".encode() for at in range(pkt_line.MOST_COMMANDS + 1)],
        [b"x" * 60_000, b"x" * 60_000],
        [b"command=push"],
        [f"{ZERO} {ONE}".encode()],
        [f"{ZERO} {'1' * 64} refs/heads/a".encode()],
        [f"{ZERO} {ONE} refs/heads/a".encode(), f"{ZERO} {ONE} refs/heads/b\0report-status".encode()],
    ],
)
def test_a_push_has_its_bounds(lines: list[bytes]) -> None:
    """So many references, so many bytes, one form."""
    with pytest.raises(LineRefused):
        PushReader().feed(b"".join(map(pkt_line.pkt_line, lines)) + b"0000")


def test_a_refusal_is_said_as_the_client_asked() -> None:
    """In a side band or not; and to one that asked for no report, not at all."""
    plain = Push((), frozenset({"report-status"}))
    said = b"000eunpack ok\n0011ng refs/x no\n0000"
    assert report(plain, [("refs/x", "no")]) == said
    banded = Push((), frozenset({"report-status-v2", "side-band-64k"}))
    assert report(banded, [("refs/x", "no")]) == pkt_line.pkt_line(b"\x01" + said) + b"0000"
    assert report(Push(), [("refs/x", "no")]) == b""
    assert len(NOT_FORWARD) < 500


HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: +5\r\n\r\n",
        HEAD + b"Content-Length: 5_0\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n",
        HEAD + b"A: b\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"A: b\rTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"A: b\r\n Transfer-Encoding: chunked\r\n\r\n",
        HEAD + b"A: b\0\r\n\r\n",
        HEAD + b"A\r\n\r\n",
        HEAD + b"Host: b\r\n\r\n",
        b"POST /x HTTP/1.1\r\n\r\n",
        b"POST /x HTTP/1.0\r\nHost: a\r\n\r\n",
        b"POST /x HTTP/2.0\r\nHost: a\r\n\r\n",
        b"POST /x\r\n\r\n",
        b"POST  /x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /x y HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
        b"\r\nPOST /x HTTP/1.1\r\nHost: a\r\n\r\n",
        HEAD + b"A: b\r\n" * (MOST_HEADERS + 1) + b"\r\n",
        HEAD + b"A: " + b"b" * HEAD_BYTES + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
)
def test_a_head_that_two_might_read_differently_is_refused(data: bytes) -> None:
    """Two lengths, other framings, other line ends, folded lines, other versions, too much."""
    with pytest.raises(HeadRefused):
        head_of(data)


def test_a_head_is_read() -> None:
    """Names in lower case; a body has a length, or comes in chunks, or there is none."""
    head = head_of(HEAD + b"Git-Protocol: version=2\r\nContent-Length: 5\r\n\r\n")
    assert (head.method, head.target, head.length, head.value("git-protocol")) == ("POST", "/x", 5, "version=2")
    assert head_of(HEAD + b"Transfer-Encoding: chunked\r\n\r\n").length is None
    assert head_of(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").length == 0
    with pytest.raises(HeadRefused):
        head_of(HEAD + b"A: 1\r\nA: 2\r\n\r\n").value("a")


@given(st.binary(max_size=100))
def test_whatever_comes_is_a_head_or_refused(data: bytes) -> None:
    """Nothing else is raised."""
    try:
        head_of(HEAD + data + b"\r\n\r\n")
    except HeadRefused:
        return


def test_a_chunk_has_a_size_and_no_extension() -> None:
    """Nothing that a second parser might take for something else."""
    assert chunk_size(b"1aF") == 0x1AF
    for line in (b"", b"1;x=y", b"1 ", b" 1", b"0x1", b"+1", b"-1", b"1" * 9, b"g"):
        with pytest.raises(HeadRefused):
            chunk_size(line)
