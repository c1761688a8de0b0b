"""What the vault proxy counts. Origins, servers and tools are tenants': none of them is a label."""

from __future__ import annotations

from handmesh.error.v1.error_reason_pb2 import ErrorReason
from services.kit.metrics import SLOW, Counter, Gauge, Histogram, Label

REASON = Label("reason", (name.removeprefix("ERROR_REASON_") for name, _ in ErrorReason.items()))

LOGINS = Counter(
    "handmesh_vault_logins_total",
    "Logins to the vault for a session's own token, by what came of them.",
    Label("outcome", ("minted", "failed")),
)
REFRESHES = Counter(
    "handmesh_credential_refreshes_total",
    "Accesses that were to be renewed at an authorization server, by what it said.",
    Label("outcome", ("refreshed", "revoked", "failed")),
)
CALLS = Counter(
    "handmesh_mcp_calls_total",
    "Calls of MCP servers' tools, by what came of them: the tool's answer, its failure, or why there is none.",
    Label("outcome", ("ok", "tool_error", "timeout", "unknown", *REASON.values)),
)
CALL_SECONDS = Histogram("handmesh_mcp_call_seconds", "How long calls of MCP servers' tools took.", buckets=SLOW)
_DOOR = Label("door", ("git", "egress"))
VISITS = Counter("handmesh_door_visits_total", "Connections of sandboxes that came through a door.", _DOOR)
OPEN = Gauge("handmesh_door_visits_open", "Connections of sandboxes through doors that are open now.", _DOOR)
REFUSED = Counter(
    "handmesh_door_refusals_total",
    "What sandboxes asked for at doors and were refused, by why.",
    _DOOR,
    REASON,
)
