"""Which method may be called by whom. A method without a row is refused, and fails a test.

`client` shows an API key, `hand` the token of a hand that dials out; the services show certificates; `anyone` is for
probes and tools.
"""

from __future__ import annotations

ANYONE = frozenset({"anyone"})
CLIENT = frozenset({"client"})
MESH = frozenset({"session", "harness", "sandbox", "vault_proxy"})
HARNESS = frozenset({"harness"})
READERS = CLIENT | HARNESS
HANDS = READERS | {"sandbox"}  # what a sandbox is filled from, and what it leaves
REPLICAS = frozenset({"vault_proxy"})  # each asks the others for what it does not know
GRANT_CHECKERS = frozenset({"sandbox", "vault_proxy"})
HAND = frozenset({"hand"})  # who shows something like a token: whether it is one, the sandbox service asks

_SESSION = {
    "CreateSession": READERS,
    "GetSession": HANDS,  # its reaper asks whether a session has ended, too
    "ListSessions": CLIENT,
    "UpdateSession": CLIENT,
    "EndSession": READERS,
    "ArchiveSession": CLIENT,
    "DeleteSession": CLIENT,
    "ForkSession": CLIENT,
    "ImportSession": CLIENT,
    "VerifySession": CLIENT,
    "EmitEvent": CLIENT | HARNESS | {"vault_proxy", "sandbox"},  # each what the log's table of emitters lets it
    "EmitEvents": CLIENT | HARNESS | {"vault_proxy"},
    "SendMessage": HARNESS,
    "GetEvents": READERS,
    "WatchEvents": READERS,
    "PublishPreviews": HARNESS,
    "ClaimWork": HARNESS,
    "ReleaseWork": HARNESS,
    "OfferWork": HARNESS,
    "ListServedTypes": READERS,
    "ListAuditEntries": CLIENT,
    "CheckGrant": GRANT_CHECKERS,
    "VouchVault": CLIENT,
    "RedeemVoucher": frozenset({"vault_proxy"}),
    "CreateHandToken": CLIENT,
    "ListHandTokens": CLIENT,
    "RevokeHandToken": CLIENT,
    "CheckHandToken": frozenset({"sandbox"}),
    "WatchRevocations": GRANT_CHECKERS,
    "UploadBlob": HANDS,
    "DownloadBlob": HANDS,
    "ListBlobs": READERS,
}
_MEMORY = {
    "CreateMemoryStore": CLIENT,
    "ListMemoryStores": CLIENT,
    "DeleteMemoryStore": CLIENT,
    "WriteMemory": HANDS,
    "ReadMemory": HANDS,
    "ListMemories": HANDS,
    "ListMemoryVersions": READERS,
    "DeleteMemory": HANDS,
    "FindMemory": READERS,
}
_HARNESS = {"Wake": CLIENT, "ListHarnessTypes": CLIENT, "ListRuns": CLIENT, "Drain": CLIENT}
_SANDBOX = {
    "Provision": READERS,
    "Execute": READERS,
    "WatchExecution": READERS,
    "CancelExecution": READERS,
    "ListExecutions": READERS,
    "ListTools": READERS,
    "ListSandboxes": READERS,
    "ListEnvironments": READERS,
    "Release": READERS,
    "PutResources": READERS,
    "ListFiles": READERS,
    "ReadFile": READERS,
    "Checkpoint": READERS,
    "Transfer": READERS,
    "ShareHand": READERS,
    "ConnectHand": HAND,
    "ReportExecution": HAND,
}
_VAULT_PROXY = {
    "ListTools": READERS,
    "Execute": READERS | REPLICAS,
    "WatchExecution": READERS,
    "CancelExecution": READERS | REPLICAS,
    "PrepareDoors": frozenset({"sandbox"}),
    "OpenDoor": frozenset({"sandbox"}),
    "CreateVault": CLIENT,
    "GetVault": CLIENT,
    "ListVaults": CLIENT,
    "ArchiveVault": CLIENT,
    "AddCredential": CLIENT,
    "UpdateCredential": CLIENT,
    "ListCredentials": CLIENT,
    "ArchiveCredential": CLIENT,
    "ValidateCredential": CLIENT,
    "StartConnection": CLIENT,
    "FinishConnection": CLIENT,
}

ACCESS: dict[str, frozenset[str]] = {
    f"/{service}/{method}": who
    for service, methods in {
        "handmesh.session.v1.SessionService": _SESSION,
        "handmesh.session.v1.MemoryService": _MEMORY,
        "handmesh.harness.v1.HarnessService": _HARNESS,
        "handmesh.sandbox.v1.SandboxService": _SANDBOX,
        "handmesh.vault_proxy.v1.VaultProxyService": _VAULT_PROXY,
        "handmesh.status.v1.StatusService": {"GetStatus": CLIENT},
        "grpc.health.v1.Health": {"Check": ANYONE, "Watch": ANYONE, "List": ANYONE},
        "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": ANYONE},
    }.items()
    for method, who in methods.items()
}
