"""Where a credential may be sent, and which addresses may be called at all.

A URL is read strictly: what two parsers might read differently is refused, not repaired. What counts in the end is the
address that a name resolves to, so that is judged too, after every wrapping of an IPv4 address is taken off.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

URL_CHARACTERS = 2048

_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[^/?#\\@:\[\]%]+)(?::([0-9]{1,5}))?(?:[/?][!\x22$-~]*)?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}

# Ports of services that are no web servers: a request, or a TLS greeting, is an attack on them.
_FOREIGN_PORTS = frozenset(
    {1433, 1521, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3306, 3389, 4222, 5432, 5672, 5900, 5984, 6000, 6222, 6379}
    | {6443, 6660, 6667, 8200, 8201, 8222, 8300, 8301, 8500, 9042, 9092, 9200, 9300, 10250, 11211, 15672, 25565, 27017}
)
# Addresses at which clouds hand out credentials. Some are public, some private: never called, whatever is allowed.
_METADATA = frozenset(
    ipaddress.ip_address(each)
    for each in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class UrlRefused(ValueError):
    """A URL or an address that is never called. Its text says why and holds no part of the URL."""


@dataclass(frozen=True)
class Origin:
    """Scheme, host and port: what a credential is bound to. Normal form: lower case, the port always there."""

    scheme: str
    host: str  # a name, `192.0.2.1`, or `2001:db8::1` without brackets
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}")


def origin_of(url: str) -> Origin:
    """Reads the origin of an http or https URL. Raises UrlRefused for everything that is not plainly one."""
    if len(url) > URL_CHARACTERS:
        raise UrlRefused(f"the URL has more than {URL_CHARACTERS} characters")
    # Before lowering the case: U+212A KELVIN SIGN and its like turn into ASCII there.
    match = _URL.fullmatch(url[:8].lower() + url[8:]) if url.isascii() else None
    if match is None:
        raise UrlRefused("expected https://host[:port]/path, in ASCII, without user, fragment or spaces")
    scheme, host, port = match.groups()
    number = _DEFAULT_PORTS[scheme] if port is None else int(port)
    if not 1 <= number <= 65535:
        raise UrlRefused("the port is no port")
    return Origin(scheme, _host(host.lower()), number)


def _host(host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise UrlRefused("the host is no IPv6 address") from None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # What ends in a number is an address to some parsers: 127.1, 0x7f000001, 2130706433, 017700000001, 0.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise UrlRefused("an address is written as four plain numbers") from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlRefused("the host is no plain ASCII host name")
    return host


def host_and_port(text: str) -> tuple[str, int | None]:
    """Reads `host[:port]`; the port is None where none is written. Raises UrlRefused."""
    if set(text) & set("/?"):
        raise UrlRefused("there is more than a host and a port")
    origin = origin_of(f"http://{text}")
    explicit = text.rpartition("]")[2].rpartition(":")[1] != ""
    return origin.host, origin.port if explicit else None


@dataclass(frozen=True)
class Allowed:
    """Hosts of a development machine or a private network: they may be plain http, loopback or private addresses.

    `entries` are (host, port); port None means every port of the host.
    """

    entries: frozenset[tuple[str, int | None]] = frozenset()

    def __str__(self) -> str:
        return ",".join(sorted(host if port is None else f"{host}:{port}" for host, port in self.entries)) or "none"

    def covers(self, origin: Origin) -> bool:
        """Says whether the origin is one of them."""
        return bool({(origin.host, None), (origin.host, origin.port)} & self.entries)


def parse_allowed(value: str) -> Allowed:
    """Reads `host[:port], ...`. Raises ValueError with what was expected."""
    entries: set[tuple[str, int | None]] = set()
    for each in filter(None, (part.strip() for part in value.split(","))):
        try:
            entries.add(host_and_port(each))
        except UrlRefused:
            raise ValueError("host[:port], separated by commas") from None
    return Allowed(frozenset(entries))


def check_origin(origin: Origin, allowed: Allowed) -> None:
    """Raises UrlRefused unless the origin may be called at all, as far as its spelling tells."""
    if allowed.covers(origin):
        return
    if origin.scheme != "https":
        raise UrlRefused("only https is called")
    if origin.port in _FOREIGN_PORTS or (origin.port < 1024 and origin.port != 443):
        raise UrlRefused("the port is not one of web servers")


def check_addresses(addresses: Iterable[str], private_ok: bool) -> list[str]:
    """Returns the addresses that a name resolved to, if every one of them may be called. Raises UrlRefused else."""
    checked = []
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        for inner in _unwrapped(address):
            _check_address(inner, private_ok)
        checked.append(str(address))
    if not checked:
        raise UrlRefused("the name has no address")
    return checked


def _unwrapped(address: Address) -> list[Address]:
    """Returns the addresses that a packet to this one may end at."""
    if not isinstance(address, ipaddress.IPv6Address):
        return [address]
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        return [low]  # nothing but a spelling of the IPv4 address
    found: list[Address] = [address]
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    isatap = (int(address) >> 32) & 0xFFFFFFFF in _ISATAP
    if isatap or address in _NAT64_LOCAL or (address in _COMPATIBLE and int(address) > 1):
        found.append(low)
    return found


def _check_address(address: Address, private_ok: bool) -> None:
    never = address.is_multicast or address.is_unspecified or address.is_link_local or address in _METADATA
    # IPv6 loopback counts as reserved to Python.
    if never or (address.is_reserved and not address.is_loopback):
        raise UrlRefused("the name resolves to an address that is never called")
    if not address.is_global and not private_ok:
        raise UrlRefused("the name resolves to a loopback, private or reserved address")
