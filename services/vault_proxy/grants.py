"""What a session may do here, read off what the session service says of its grant."""

from __future__ import annotations

from dataclasses import dataclass, field

from handmesh.session.v1 import session_pb2
from services.vault_proxy.core.git_rules import Rule, rule_of
from services.vault_proxy.ports import CredentialStore, Document, Pass


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
    repositories: tuple[Rule, ...] = ()
    secrets: Pass | None = field(default=None, compare=False)  # what its secrets are read with
    vouched: bool = False  # a client's, for one use: there is no session, and `session_id` only names the access

    @property
    def told(self) -> str:
        """The session whose log is told of what is used; empty when there is none."""
        return "" if self.vouched else self.session_id

    def server(self, name: str | None) -> Server | None:
        """Returns the server of a name."""
        return next((server for server in self.servers if server.name == name), None)


def access_of(answer: session_pb2.CheckGrantResponse, secrets: Pass | None = None) -> Access:
    """Makes an access of an answer. A git rule that names no repository which a door could lead to allows nothing."""
    rules = (rule_of(each.repository, each.push_patterns) for each in answer.git_rules)
    return Access(
        session_id=answer.session_id,
        tenant=answer.tenant,
        epoch=answer.epoch,
        servers=tuple(Server(each.name, each.url, tuple(each.allowed_tools)) for each in answer.mcp_servers),
        vault_ids=tuple(answer.vault_ids),
        repositories=tuple(rule for rule in rules if rule is not None),
        secrets=secrets,
    )


async def read_secret(store: CredentialStore, access: Access, path: str) -> Document | None:
    """Reads a secret document as the session that has the access. Raises as `CredentialStore.read_secret`."""
    assert access.secrets is not None, "an access that came in by a grant has a pass"
    return await store.read_secret(path, access.secrets)
