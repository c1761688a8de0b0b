"""What a server's tools are called towards the model: `server__tool`, always `^[a-zA-Z0-9_-]{1,128}$`.

A tool's own name is kept where the model's API takes it. Where it does not, what the API refuses becomes `_` and a hash
of the true name is put behind, always: so the name stands for the same tool whatever else the server offers later.
"""

from __future__ import annotations

import hashlib
import re

NAME_CHARACTERS = 128
SEPARATOR = "__"
HASH_CHARACTERS = 8

SERVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")


def offered_name(server: str, tool: str) -> str:
    """Returns what the model calls a tool of a server."""
    prefix = server + SEPARATOR
    plain = _REFUSED.sub("_", tool)
    if plain and plain == tool and len(prefix) + len(plain) <= NAME_CHARACTERS:
        return prefix + plain
    mark = "-" + hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    return prefix + plain[: NAME_CHARACTERS - len(prefix) - len(mark)] + mark


def server_of(name: str) -> str | None:
    """Returns the server's half of an offered name, or None when the name is none."""
    server, separator, tool = name.partition(SEPARATOR)
    return server if separator and tool and SERVER_NAME.fullmatch(server) else None
