"""Which URLs and addresses may be called, and how an origin is compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.origin import (
    Allowed,
    Origin,
    UrlRefused,
    check_addresses,
    check_origin,
    origin_of,
    parse_allowed,
)

REFUSED_URLS = [
    "http://good.example/",
    "http://127.0.0.1/mcp",
    "https://127.1/mcp",
    "https://0x7f000001/mcp",
    "https://0X7F.1/mcp",
    "https://2130706433/mcp",
    "https://017700000001/mcp",
    "https://0177.0.0.1/mcp",
    "https://①②⑦.⓪.⓪.①/mcp",
    "https://１２７.0.0.1/mcp",
    "https://0/mcp",
    "https://localhost./mcp",
    "https://good.example./mcp",
    "file:///etc/passwd",
    "gopher://good.example/",
    "unix:/run/docker.sock",
    "unix:///run/docker.sock",
    "ftp://good.example/",
    "//good.example/",
    "good.example/mcp",
    "",
    "https://",
    "https:///mcp",
    "https://good@evil.example/",
    "https://good:pw@evil.example/",
    "https://evil.example#@good.example/",
    "https://good.example/mcp#part",
    "https://good.example\\@evil.example/",
    "https://good.example\r\nX: y/",
    "https://good.example/\r\nX: y",
    "https://good.exa\tmple/",
    "https://good.example /",
    " https://good.example/",
    "https://good.example%2f.evil.example/",
    "https://good.example%00/",
    "https://gооd.example/",
    "https://goo\u212a.example/",
    "https://[::1%25lo]/",
    "https://[::1",
    "https://[1.2.3.4]/",
    "https://good.example:22/",
    "https://good.example:6379/",
    "https://good.example:8200/",
    "https://good.example:80/",
    "https://good.example:0/",
    "https://good.example:65536/",
    "https://good.example:443:443/",
    "https://-good.example/",
    "https://good..example/",
    "https://" + "a" * 64 + ".example/",
    "https://good.example/" + "a" * 3000,
]

REFUSED_ADDRESSES = [
    "127.0.0.1",
    "127.255.255.255",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:0:7f00:1::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "2a00:1450:4001::5efe:7f00:1",
]


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_a_url_that_is_not_plainly_https_is_refused(url: str) -> None:
    """Refused by its spelling alone: before anything is looked up."""
    with pytest.raises(UrlRefused) as refused:
        check_origin(origin_of(url), Allowed())
    assert "evil" not in str(refused.value)


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    """Every wrapping of an IPv4 address is taken off first; one bad address among good ones is enough."""
    with pytest.raises(UrlRefused):
        check_addresses([address], private_ok=False)
    with pytest.raises(UrlRefused):
        check_addresses(["93.184.216.34", address, "2606:4700::1111"], private_ok=False)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"])
def test_a_public_address_is_called(address: str) -> None:
    """The control: what is public passes, also in its IPv6 spellings."""
    assert len(check_addresses([address], private_ok=False)) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.7", "fd12::1"])
def test_an_allowed_host_may_be_private(address: str) -> None:
    """The development allow-list opens loopback and private addresses."""
    assert len(check_addresses([address], private_ok=True)) == 1


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fe80::1", "0.0.0.0", "::", "224.0.0.1"],
)
def test_nothing_opens_the_addresses_of_cloud_credentials(address: str) -> None:
    """Link-local and metadata addresses are refused even when a host is allowed."""
    with pytest.raises(UrlRefused):
        check_addresses([address], private_ok=True)


def test_a_name_without_an_address_is_refused() -> None:
    """Nothing to connect to is no reason to connect somewhere."""
    with pytest.raises(UrlRefused):
        check_addresses([], private_ok=True)


@pytest.mark.parametrize(
    ("url", "origin", "text"),
    [
        ("https://Good.Example/mcp", Origin("https", "good.example", 443), "https://good.example"),
        ("HTTPS://good.example:443", Origin("https", "good.example", 443), "https://good.example"),
        ("https://good.example:8443/x?y=1", Origin("https", "good.example", 8443), "https://good.example:8443"),
        ("http://127.0.0.1:80/", Origin("http", "127.0.0.1", 80), "http://127.0.0.1"),
        ("https://[2001:DB8:0::1]:9000/a", Origin("https", "2001:db8::1", 9000), "https://[2001:db8::1]:9000"),
        (
            "https://xn--bcher-kva.example/",
            Origin("https", "xn--bcher-kva.example", 443),
            "https://xn--bcher-kva.example",
        ),
    ],
)
def test_origins_have_one_form(url: str, origin: Origin, text: str) -> None:
    """Scheme, host and port are compared, whatever the URL's spelling; the text is read back as the same."""
    assert origin_of(url) == origin
    assert str(origin) == text
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    "other", ["http://good.example", "https://good.example:8443", "https://a.good.example", "https://good.example.org"]
)
def test_another_origin_is_another(other: str) -> None:
    """Scheme, port and every label count."""
    assert origin_of(other) != origin_of("https://good.example")


def test_the_allow_list_is_read() -> None:
    """With a port only that port, without one every port; both schemes; nothing else."""
    allowed = parse_allowed("127.0.0.1:8080, mcp.corp.example ,[::1]:9")
    yes = ["http://127.0.0.1:8080/x", "https://127.0.0.1:8080", "http://mcp.corp.example:81", "http://[::1]:9/"]
    no = ["http://127.0.0.1:8081", "http://a.mcp.corp.example", "http://[::1]:10", "http://127.0.0.2:8080"]
    assert [allowed.covers(origin_of(url)) for url in yes] == [True] * 4
    assert [allowed.covers(origin_of(url)) for url in no] == [False] * 4
    assert parse_allowed("") == Allowed()


@pytest.mark.parametrize("value", ["a b", "http://a", "a/b", "user@a", "a:b", "*", "127.1"])
def test_a_wrong_allow_list_is_refused(value: str) -> None:
    """A setting that is not understood stops the service, it does not open or close something by guess."""
    with pytest.raises(ValueError, match="host"):
        parse_allowed(value)


@given(st.text())
def test_reading_a_url_never_fails_otherwise(url: str) -> None:
    """Any text is an origin or a refusal."""
    try:
        origin = origin_of(url)
    except UrlRefused:
        return
    assert origin_of(str(origin)) == origin
