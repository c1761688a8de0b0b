"""What a server may do to a call."""

from __future__ import annotations

from services.kit.errors import Unavailable


class SessionLost(Exception):
    """The server does not know its session any more. Nothing was done: connect again and repeat."""


class CredentialRefused(Exception):
    """The server answered 401. Nothing was done."""


class ServerLost(Unavailable):
    """No answer. `begun` says whether the server may have done something."""

    def __init__(self, server: str, why: str, begun: bool) -> None:
        done = "the tool may have run" if begun else "the tool did not run"
        super().__init__("SERVER_UNAVAILABLE", f"the MCP server {server} {why}; {done}", server=server)
        self.begun = begun
