"""What a session may do here, read off what the session service says of its grant."""

from __future__ import annotations

from dataclasses import dataclass

from handmesh.session.v1 import session_pb2


@dataclass(frozen=True)
class Server:
    """An MCP server that a session may use. `allowed_tools` are the server's own names; none means all."""

    name: str
    url: str
    allowed_tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Access:
    """What a grant allows."""

    session_id: str
    tenant: str
    epoch: int
    servers: tuple[Server, ...] = ()
    vault_ids: tuple[str, ...] = ()

    def server(self, name: str | None) -> Server | None:
        """Returns the server of a name."""
        return next((server for server in self.servers if server.name == name), None)


def access_of(answer: session_pb2.CheckGrantResponse) -> Access:
    """Makes an access of an answer."""
    return Access(
        session_id=answer.session_id,
        tenant=answer.tenant,
        epoch=answer.epoch,
        servers=tuple(Server(each.name, each.url, tuple(each.allowed_tools)) for each in answer.mcp_servers),
        vault_ids=tuple(answer.vault_ids),
    )
