"""Who may emit what: one row for each kind of event. A kind without a row fails a test."""

from __future__ import annotations

CLIENT, HARNESS, SESSION = "client", "harness", "session"
SANDBOX, VAULT_PROXY = "sandbox", "vault_proxy"

UNKNOWN = ""  # a kind that is newer than this server: taken from a harness, and only when it is ignorable

_BY_HARNESS = frozenset({HARNESS})
_BY_CLIENT = frozenset({CLIENT})
_BY_SESSION = frozenset({SESSION})

EMITTERS: dict[str, frozenset[str]] = {
    "session_started": _BY_SESSION,
    "message_received": frozenset({CLIENT, SESSION}),  # from a session to another one, too
    "interrupt_requested": frozenset({CLIENT, SESSION}),  # who interrupts a session, interrupts those that it started
    "harness_woke": _BY_HARNESS,
    "tools_offered": _BY_HARNESS,
    "model_replied": _BY_HARNESS,
    "tool_started": _BY_HARNESS,
    "tool_finished": _BY_HARNESS,
    "tool_confirmation_requested": _BY_HARNESS,
    "tool_confirmed": _BY_CLIENT,
    "custom_tool_requested": _BY_HARNESS,
    "custom_tool_answered": _BY_CLIENT,
    "turn_ended": _BY_HARNESS,
    "error_raised": _BY_HARNESS,
    "retry_scheduled": _BY_HARNESS,
    "content_rendered": _BY_HARNESS,
    "context_compacted": _BY_HARNESS,
    "config_changed": _BY_SESSION,
    "budget_reached": _BY_HARNESS,
    "session_ended": _BY_SESSION,
    "session_archived": _BY_SESSION,
    "session_restored": _BY_SESSION,
    "session_deleted": _BY_SESSION,
    "sandbox_provisioned": _BY_HARNESS,
    "hand_attached": frozenset({SANDBOX}),
    "hand_detached": frozenset({HARNESS, SANDBOX, SESSION}),  # a fork has no hand of the session it was made from
    "hand_transferred": frozenset({SANDBOX}),
    "credential_used": frozenset({VAULT_PROXY}),
    "tools_changed": frozenset({VAULT_PROXY}),
    "door_refused": frozenset({VAULT_PROXY}),
    "child_started": _BY_SESSION,
    "child_ended": _BY_SESSION,
    "child_rested": _BY_SESSION,
    "session_forked": _BY_SESSION,
    "custom": frozenset({CLIENT, HARNESS}),
    UNKNOWN: _BY_HARNESS,
}


def may_emit(emitter: str, kind: str, *, ignorable: bool) -> bool:
    """Tells whether an emitter may emit a kind. A client's own kinds must be ignorable: no harness knows them."""
    if emitter == CLIENT and kind == "custom" and not ignorable:
        return False
    return emitter in EMITTERS.get(kind, frozenset())
