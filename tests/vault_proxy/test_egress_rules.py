"""The rules of the egress door: the host that TLS names, hosts as they are written in settings, where values go."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit import settings
from services.kit.settings import SettingsError
from services.vault_proxy.core.client_hello import Hello, MalformedHello, read_hello
from services.vault_proxy.core.egress import Network, parse_hosts, rules_of
from services.vault_proxy.core.placeholders import CHARACTERS, PREFIX, Swap, Swapping, placeholder_of
from services.vault_proxy.secret import Secret
from services.vault_proxy.settings import Settings


def hello(name: str | None) -> bytes:
    """Returns the first message of a real TLS client."""
    out, context = ssl.MemoryBIO(), ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


REAL, NAMELESS = hello("a.example"), hello(None)


@given(st.integers(0, len(REAL)))
def test_a_hello_is_read_once_it_is_whole(length: int) -> None:
    """Not before, and not otherwise with something behind it."""
    assert read_hello(REAL[:length]) == (Hello(True, "a.example") if length == len(REAL) else None)
    assert read_hello(REAL + REAL[:length]) == Hello(True, "a.example")
    assert read_hello(NAMELESS) == Hello(True, None)


@given(st.binary(max_size=300), st.integers(0, len(REAL) - 1))
def test_whatever_comes_has_one_reading(data: bytes, at: int) -> None:
    """Bytes of any kind, and a hello with some bytes changed, are read, wait for more, or are malformed."""
    for each in (data, b"\x16\x03\x01" + data, REAL[:at] + data + REAL[at + len(data) :]):
        try:
            assert read_hello(each) is None or isinstance(read_hello(each), Hello)
        except MalformedHello:
            pass


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def name_list(*names: bytes) -> bytes:
    inner = b"".join(b"\x00" + len(name).to_bytes(2, "big") + name for name in names)
    return extension(0, len(inner).to_bytes(2, "big") + inner)


def made(extensions: bytes, behind: bytes = b"") -> bytes:
    """Returns a hello with these extensions."""
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions + behind
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def test_two_names_are_no_name() -> None:
    """In one extension or in two; nor what is no ASCII, nor what is behind the extensions, nor another message."""
    assert read_hello(made(name_list(b"A.Example"))) == Hello(True, "a.example")
    for bad in (
        made(name_list(b"a.example", b"b.example")),
        made(name_list(b"a.example") + name_list(b"b.example")),
        made(name_list("bücher.example".encode())),
        made(extension(0, b"\x00\x04\x01\x00\x01a")),
        made(name_list(b"a.example"), behind=b"x"),
        made(extension(0, b"\x00\x10\x00")),
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x00",
        b"\x17\x03\x01\x00\x01x",
        b"\x15\x03\x01\x00\x02\x01\x00",
    ):
        with pytest.raises(MalformedHello):
            read_hello(bad)
    assert read_hello(b"GET / HTTP/1.1") == Hello(tls=False)


def test_hosts_are_told_in_one_line() -> None:
    """As they were written, in all three kinds, and not without end."""
    network = Network(rules_of(["a.example", "*.b.example:8443"]), rules_of(["p.example"]), ())
    assert network.described() == (
        "allowed: a.example, *.b.example:8443; hosts of package managers (p.example); the session's MCP servers (none)"
    )
    assert Network().described() == "allowed: nothing, this environment has no network"
    assert len(Network(rules_of(f"h{n}.example" for n in range(999))).described()) < 500


@pytest.mark.parametrize(
    "value", ["a b", "http://a.example", "a.example/x", "*", "a.*.example", "bücher.example", "127.1"]
)
def test_a_host_that_cannot_be_read_is_a_wrong_setting(value: str) -> None:
    """Said at the start, not by refusing everything later."""
    with pytest.raises(ValueError, match="separated by commas"):
        parse_hosts(f"good.example,{value}")
    assert parse_hosts(" a.example, *.b.example:8443 ,") == ("a.example", "*.b.example:8443")


def test_an_authority_is_two_files(tmp_path: object) -> None:
    """One without the other is a wrong setting."""
    base = {
        "HANDMESH_LISTEN": "127.0.0.1:0",
        "HANDMESH_TLS_DIR": str(tmp_path),
        "HANDMESH_SESSION_ADDRESS": "127.0.0.1:1",
        "HANDMESH_STORE": "memory",
    }
    for name in ("CERT", "KEY"):
        with pytest.raises(SettingsError, match="go together"):
            settings.read(Settings, {**base, f"HANDMESH_VAULT_PROXY_DOOR_CA_{name}_FILE": str(tmp_path)})


def swap(value: str, name: str = "cred_a", headers: bool = True, bodies: bool = True) -> Swap:
    return Swap(name, "vault_a", placeholder_of("sess_a", name), Secret(value), headers, bodies)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_nothing_but_the_placeholder_is_changed(before: bytes, behind: bytes) -> None:
    """What surrounds it goes as it is, byte for byte."""
    one = swap("value")
    data = before + b"|" + one.placeholder.encode() + b"|" + behind
    if PREFIX.encode() in before or PREFIX.encode() in behind:
        return
    assert Swapping([one]).body(b"text/plain", data) == before + b"|value|" + behind
    assert Swapping([one]).body(b"text/plain", before + behind) == before + behind


def test_a_value_is_never_read_for_placeholders() -> None:
    """One that holds another one's placeholder is put in as it is; a placeholder cut short or changed is none."""
    second = swap("second", "cred_b")
    first = swap(second.placeholder)
    swapping = Swapping([first, second])
    assert swapping.body(b"text/plain", first.placeholder.encode()).decode() == second.placeholder
    assert set(swapping.used) == {"cred_a"}
    for none in (first.placeholder[:-1], first.placeholder.upper(), PREFIX + "a" * CHARACTERS):
        assert swapping.header(b"x-key", none.encode()) == none.encode()
    assert "second" not in repr(swapping)


def test_a_placeholder_says_nothing_and_stays_the_same() -> None:
    """The same for a session and a credential; others have others. No format writes it in another way."""
    found = {placeholder_of(session, credential) for session in ("a", "b") for credential in ("c", "d")}
    assert len(found) == 4 and placeholder_of("a", "c") in found
    assert all(each.removeprefix(PREFIX).isalnum() and len(each) == len(PREFIX) + CHARACTERS for each in found)
