"""Network policies: what a recipe may say of a network, and how people and models are told. Pure."""

from __future__ import annotations

import re
from typing import Any

from services.sandbox.checker import Checker
from services.sandbox.hand import NO_NETWORK, Network, Recipe

MAX_HOSTS = 256  # of a network
_HOST_CHARACTERS = 253
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}(:[0-9]{{1,5}})?")


def network(check: Checker, key: str, value: Any) -> Network:
    """Reads a recipe's `network`: the word for none, or a table."""
    if value == NO_NETWORK:
        return Network()
    if not isinstance(value, dict):
        check.wrong(key, value, f"{NO_NETWORK!r}, or a table with allow, allow_package_managers, allow_mcp_servers")
        return Network()
    check.known(value, key, ("allow", "allow_package_managers", "allow_mcp_servers"))
    hosts = check.texts(value, key, "allow", "names or *.names in lower case, each with :port or without", _is_host)
    if len(hosts) > MAX_HOSTS:
        check.wrong(f"{key}.allow", f"{len(hosts)} hosts", f"at most {MAX_HOSTS}")
    return Network(hosts, check.flag(value, key, "allow_package_managers"), check.flag(value, key, "allow_mcp_servers"))


def _is_host(text: str) -> bool:
    name, _, port = text.partition(":")
    return len(name) <= _HOST_CHARACTERS and _HOST.fullmatch(text) is not None and (not port or 0 < int(port) < 65536)


def described(recipe: Recipe) -> str:
    """Returns what people and models are told of an environment: the operator's words, and what it may reach."""
    network = recipe.network
    reach = [
        *network.allow,
        *(["package managers' hosts"] if network.allow_package_managers else []),
        *(["the hosts of the session's MCP servers"] if network.allow_mcp_servers else []),
    ]
    if not reach:
        return recipe.description
    return f"{recipe.description} Network, by HTTP only: {', '.join(reach)}.".strip()
