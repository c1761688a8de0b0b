"""Where a sandbox may connect to: the rules of its environment, and what it asks for, read strictly.

A rule is `name`, `*.name` (every name below it, and not itself) or an address, each with `:port` or without; without it
means ports 80 and 443. What a sandbox asks for has no second reading: an odd spelling of an address, a user, anything
outside of ASCII or a name with a dot at its end is refused and not repaired.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.kit.origin import UrlRefused, host_and_port, origin_of

DEFAULT_PORTS = (80, 443)
SHOWN_CHARACTERS = 400  # of the rules that a refusal shows
PACKAGE_HOSTS = "HANDMESH_VAULT_PROXY_PACKAGE_HOSTS"


@dataclass(frozen=True)
class Target:
    """A host, in lower case and without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Rule:
    """Allows a host, or with `below` every name below it, at one port; None means DEFAULT_PORTS."""

    host: str
    below: bool = False
    port: int | None = None

    def allows(self, target: Target) -> bool:
        """Says whether a connection to the target is allowed by this rule."""
        if target.port not in (DEFAULT_PORTS if self.port is None else (self.port,)):
            return False
        return is_below(target.host, self.host) if self.below else target.host == self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ("*." if self.below else "") + host + ("" if self.port is None else f":{self.port}")


def is_below(host: str, name: str) -> bool:
    """Says whether a host's name is below another: `a.b.example` is below `b.example`, which is not below itself."""
    return host.endswith(f".{name}")


def fits(host: str, allowed: str) -> bool:
    """Says whether a host is the one that is allowed: a name or an address, or `*.name` for every name below."""
    return is_below(host, allowed[2:]) if allowed.startswith("*.") else host == allowed


def rule_of(text: str) -> Rule:
    """Reads a rule. Raises ValueError with what was expected."""
    below = text.startswith("*.")
    try:
        host, port = host_and_port(text[2:] if below else text)
    except UrlRefused:
        raise ValueError("host[:port] or *.host[:port], in ASCII") from None
    return Rule(host, below, port)


def rules_of(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Reads rules. Raises ValueError with what was expected."""
    return tuple(rule_of(text) for text in texts)


def parse_hosts(value: str) -> tuple[str, ...]:
    """Reads a setting of rules, separated by commas. Raises ValueError with what was expected."""
    texts = tuple(filter(None, (part.strip() for part in value.split(","))))
    try:
        rules_of(texts)
    except ValueError as expected:
        raise ValueError(f"{expected}, separated by commas") from None
    return texts


@dataclass(frozen=True)
class Network:
    """What one connection may reach. The two sets are None where the environment does not have them."""

    allow: tuple[Rule, ...] = ()
    packages: tuple[Rule, ...] | None = None
    servers: tuple[Rule, ...] | None = None

    def allows(self, target: Target) -> bool:
        """Says whether a connection to the target is allowed, as far as its name tells."""
        return any(rule.allows(target) for rule in (*self.allow, *(self.packages or ()), *(self.servers or ())))

    def described(self) -> str:
        """Says in one line what is allowed, for whoever was refused something else."""
        parts = [_shown(self.allow)] if self.allow else []
        if self.packages is not None:
            unset = f"none, until the operator fills {PACKAGE_HOSTS}"
            parts.append(f"hosts of package managers ({_shown(self.packages) or unset})")
        if self.servers is not None:
            parts.append(f"the session's MCP servers ({_shown(self.servers) or 'none'})")
        return f"allowed: {'; '.join(parts)}" if parts else "allowed: nothing, this environment has no network"


def _shown(rules: Iterable[Rule]) -> str:
    text = ", ".join(map(str, rules))
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def connect_target(text: str) -> Target:
    """Reads what CONNECT names: `host:port`. Raises UrlRefused."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or set(text) & set("/?"):
        raise UrlRefused("expected CONNECT host:port")
    origin = origin_of(f"https://{text}")
    return Target(origin.host, origin.port)


def absolute_target(text: str) -> tuple[Target, str]:
    """Reads the absolute form of a plain request: its target, and the path with its query. Raises UrlRefused."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise UrlRefused("expected http://host[:port]/path, or CONNECT host:port")
    if scheme.lower() != "http":
        raise UrlRefused("only plain http is asked for by its URL; https goes through CONNECT host:port")
    end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if "#" in path or not all("!" <= each <= "~" for each in path):
        raise UrlRefused("the path has characters that it cannot have")
    origin = origin_of(f"http://{authority}")
    return Target(origin.host, origin.port), path if path.startswith("/") else f"/{path}"


def host_header(text: str, default_port: int) -> Target:
    """Reads a Host header. Raises UrlRefused."""
    if set(text) & set("/?"):
        raise UrlRefused("the Host header is no host")
    origin = origin_of(f"https://{text}")
    explicit = text.rpartition("]")[2].rpartition(":")[1] != ""
    return Target(origin.host, origin.port if explicit else default_port)
