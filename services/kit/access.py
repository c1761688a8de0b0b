"""Which method may be called by whom, and what a client's key must allow. A method without a row fails a test.

`client` shows an API key or an issuer's token, `hand` the token of a hand that dials out; the services show
certificates; `anyone` is for probes and tools. `READ`, `RUN` and `ADMIN` are rows for clients of at least that scope.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

ANYONE = frozenset({"anyone"})
CLIENT = frozenset({"client"})
MESH = frozenset({"session", "harness", "sandbox", "vault_proxy"})


class Scope(enum.IntEnum):
    """What a client may do; each includes those before it. The numbers are those of `session.v1.Scope`."""

    READ = 1
    RUN = 2
    ADMIN = 3
    OPERATOR = 4

    @property
    def word(self) -> str:
        """How files, commands and errors spell it."""
        return self.name.lower()


class Row(frozenset[str]):
    """The kinds of callers that a method takes. Clients among them need the scope."""

    scope: Scope | None

    def __new__(cls, kinds: Iterable[str], scope: Scope | None = None) -> Row:
        row = super().__new__(cls, kinds)
        row.scope = scope
        return row

    def __or__(self, other: Iterable[str]) -> Row:  # type: ignore[override]
        scopes = [it for it in (self.scope, getattr(other, "scope", None)) if it is not None]
        return Row({*self, *other}, max(scopes, default=None))


HARNESS = Row({"harness"})
READ = Row(CLIENT, Scope.READ)
RUN = Row(CLIENT, Scope.RUN)
ADMIN = Row(CLIENT, Scope.ADMIN)
OPERATOR = Row(CLIENT, Scope.OPERATOR)
SANDBOX = frozenset({"sandbox"})  # what a sandbox is filled from, and what it leaves
REPLICAS = frozenset({"vault_proxy"})  # each asks the others for what it does not know
GRANT_CHECKERS = Row({"sandbox", "vault_proxy"})
CALLER_CHECKERS = Row({"harness", "sandbox", "vault_proxy"})
HAND = Row({"hand"})  # who shows something like a token: whether it is one, the sandbox service asks

_SESSION = {
    "CreateSession": RUN | HARNESS,
    "GetSession": READ | HARNESS | SANDBOX,  # its reaper asks whether a session has ended, too
    "ListSessions": READ,
    "UpdateSession": RUN,
    "EndSession": RUN | HARNESS,
    "ArchiveSession": RUN,
    "DeleteSession": ADMIN,
    "ForkSession": RUN,
    "ImportSession": ADMIN,  # what it writes, nobody else has seen
    "VerifySession": READ,
    "EmitEvent": RUN | HARNESS | {"vault_proxy", "sandbox"},  # each what the log's table of emitters lets it
    "EmitEvents": RUN | HARNESS | {"vault_proxy"},
    "SendMessage": HARNESS,
    "GetEvents": READ | HARNESS,
    "WatchEvents": READ | HARNESS,
    "PublishPreviews": HARNESS,
    "ClaimWork": HARNESS,
    "ReleaseWork": HARNESS,
    "OfferWork": HARNESS,
    "ListServedTypes": READ | HARNESS,
    "ListAuditEntries": READ,
    "CheckGrant": GRANT_CHECKERS,
    "VouchVault": ADMIN,
    "RedeemVoucher": Row({"vault_proxy"}),
    "CreateHandToken": ADMIN,
    "ListHandTokens": ADMIN,
    "RevokeHandToken": ADMIN,
    "CheckHandToken": Row({"sandbox"}),
    "CreateApiKey": ADMIN,
    "ListApiKeys": ADMIN,
    "RevokeApiKey": ADMIN,
    "CheckCaller": CALLER_CHECKERS,
    "WatchRevocations": CALLER_CHECKERS,
    "UploadBlob": RUN | HARNESS | SANDBOX,
    "DownloadBlob": READ | HARNESS | SANDBOX,
    "ListBlobs": READ | HARNESS,
}
_MEMORY = {
    "CreateMemoryStore": RUN,
    "ListMemoryStores": READ,
    "DeleteMemoryStore": ADMIN,
    "WriteMemory": RUN | HARNESS | SANDBOX,
    "ReadMemory": READ | HARNESS | SANDBOX,
    "ListMemories": READ | HARNESS | SANDBOX,
    "ListMemoryVersions": READ | HARNESS,
    "DeleteMemory": RUN | HARNESS | SANDBOX,
    "FindMemory": READ | HARNESS,
}
_HARNESS = {
    "Wake": RUN,
    "ListHarnessTypes": READ,
    "ListRuns": READ,  # those of the caller's tenant; an operator sees all
    "Drain": OPERATOR,  # a harness works for every tenant
}
_SANDBOX = {
    "Provision": RUN | HARNESS,
    "Execute": RUN | HARNESS,
    "WatchExecution": READ | HARNESS,
    "CancelExecution": RUN | HARNESS,
    "ListExecutions": READ | HARNESS,
    "ListTools": READ | HARNESS,
    "ListSandboxes": READ | HARNESS,
    "ListEnvironments": READ | HARNESS,
    "Release": RUN | HARNESS,
    "PutResources": RUN | HARNESS,
    "ListFiles": READ | HARNESS,
    "ReadFile": READ | HARNESS,
    "Checkpoint": RUN | HARNESS,
    "Transfer": RUN | HARNESS,
    "ShareHand": RUN | HARNESS,
    "ConnectHand": HAND,
    "ReportExecution": HAND,
}
_VAULT_PROXY = {
    "ListTools": READ | HARNESS,
    "Execute": RUN | HARNESS | REPLICAS,
    "WatchExecution": READ | HARNESS,
    "CancelExecution": RUN | HARNESS | REPLICAS,
    "PrepareDoors": Row({"sandbox"}),
    "OpenDoor": Row({"sandbox"}),
    "CreateVault": ADMIN,
    "GetVault": READ,
    "ListVaults": READ,
    "ArchiveVault": ADMIN,
    "AddCredential": ADMIN,
    "UpdateCredential": ADMIN,
    "ListCredentials": READ,
    "ArchiveCredential": ADMIN,
    "ValidateCredential": ADMIN,
    "StartConnection": ADMIN,
    "FinishConnection": ADMIN,
}
_ANY = Row(ANYONE)

ACCESS: Mapping[str, Row] = {
    f"/{service}/{method}": row
    for service, methods in {
        "handmesh.session.v1.SessionService": _SESSION,
        "handmesh.session.v1.MemoryService": _MEMORY,
        "handmesh.harness.v1.HarnessService": _HARNESS,
        "handmesh.sandbox.v1.SandboxService": _SANDBOX,
        "handmesh.vault_proxy.v1.VaultProxyService": _VAULT_PROXY,
        "handmesh.status.v1.StatusService": {"GetStatus": _ANY},  # also when nobody can say who asks
        "grpc.health.v1.Health": {"Check": _ANY, "Watch": _ANY, "List": _ANY},
        "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _ANY},
    }.items()
    for method, row in methods.items()
}
