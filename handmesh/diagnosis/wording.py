"""What each reason means: which part, one plain sentence, and what to do. Pure. docs/trace.md has the same codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handmesh.diagnosis.evidence import HAND, HARNESS, MODEL, PROXY, SESSION


@dataclass(frozen=True)
class Wording:
    """A verdict's words. `code` names it in docs/trace.md."""

    part: str
    code: str
    what: str
    todo: Sequence[str] = ()


MODEL_KEY = "Give the harness a key that the model's API takes (HANDMESH_MODEL_KEY_FILE), then send a message"
AGAIN = "Send a message to go on: the turn is over, the session is not"
_VAULT = "Look at the vault: is it up, is it unsealed? The proxy's health does not depend on it"

REASONS: dict[str, Wording] = {
    "MODEL_OVERLOADED": Wording(
        MODEL, "model-overloaded", "The model's API says that it has too much to do", ("It is asked again by itself",)
    ),
    "MODEL_RATE_LIMITED": Wording(
        MODEL,
        "model-rate-limited",
        "The model's API says that it got too many requests",
        ("It is asked again by itself; a higher limit, or fewer sessions at once, mends it",),
    ),
    "MODEL_UNAVAILABLE": Wording(MODEL, "model-failing", "The model's API answers with an error of its own"),
    "MODEL_STREAM_BROKEN": Wording(
        MODEL, "model-broke-off", "The model's answer broke off before its end", ("It is asked again by itself",)
    ),
    "MODEL_SILENT": Wording(
        MODEL,
        "model-silent",
        "The model was asked, and stopped saying anything before its answer was whole",
        ("It is asked again by itself",),
    ),
    "MODEL_KEY_MISSING": Wording(MODEL, "model-key", "The harness has no key for the model's API", (MODEL_KEY,)),
    "MODEL_KEY_REFUSED": Wording(MODEL, "model-key", "The model's API refuses the harness's key", (MODEL_KEY,)),
    "MODEL_REQUEST_REFUSED": Wording(
        MODEL,
        "model-refused",
        "The model's API refuses the request itself",
        ("See `handmesh events` for what it said",),
    ),
    "MODEL_ANSWER_INVALID": Wording(MODEL, "model-answer", "The model's answer cannot be taken into the log"),
    "MODEL_PRICE_UNKNOWN": Wording(
        MODEL, "model-price", "The session has a limit of cost, and nobody knows the model's price", (AGAIN,)
    ),
    "CONTEXT_FULL": Wording(MODEL, "model-context", "The conversation does not fit into the model's context"),
    "LOG_UNAVAILABLE": Wording(
        SESSION,
        "session-store",
        "The session service answers, and cannot reach the store of its log",
        ("Look at NATS: is it up, has it a leader, has it room?",),
    ),
    "SESSION_DAMAGED": Wording(
        SESSION, "session-damaged", "The session's log is damaged", ("handmesh verify SESSION says where",)
    ),
    "SESSION_FULL": Wording(
        SESSION, "session-full", "The session's log has as much as it may have", ("Fork it, or begin another one",)
    ),
    "BLOB_QUOTA": Wording(SESSION, "session-full", "The session has as many blobs as it may have"),
    "SANDBOX_GONE": Wording(HAND, "hand-gone", "A sandbox is gone"),
    "BACKEND_UNAVAILABLE": Wording(
        HAND,
        "hand-backend",
        "The sandbox service answers, and cannot reach what makes its sandboxes",
        ("Look at the sandbox service's backend: does the Docker Engine answer?",),
    ),
    "ISOLATION_UNAVAILABLE": Wording(
        HAND, "hand-isolation", "The machine cannot isolate a sandbox as the environment asks", ("handmesh doctor",)
    ),
    "ENVIRONMENT_UNKNOWN": Wording(HAND, "hand-environment", "The sandbox service has no environment of that name"),
    "RESOURCE_INVALID": Wording(HAND, "hand-resource", "What should be in the sandbox cannot be put there"),
    "WORKER_SILENT": Wording(HAND, "hand-offline", "A hand that dials out is not heard of any more"),
    "HAND_OFFLINE": Wording(
        HAND,
        "hand-offline",
        "No worker of a hand that dials out has connected",
        ("Start its worker: handmesh hand connect",),
    ),
    "HAND_UNKNOWN": Wording(HAND, "hand-unknown", "There is no standing hand of that name"),
    "HAND_TAKEN": Wording(HAND, "hand-taken", "The standing hand is another session's now"),
    "FULL": Wording(HAND, "hand-full", "There is no room for another sandbox"),
    "EXECUTION_UNKNOWN": Wording(HAND, "hand-lost", "Nobody can tell whether a call ran"),
    "VAULT_UNAVAILABLE": Wording(
        PROXY, "proxy-vault", "The vault proxy answers, and the vault is sealed or does not answer", (_VAULT,)
    ),
    "SERVER_UNAVAILABLE": Wording(
        PROXY, "proxy-server", "An MCP server cannot be reached, or does not speak MCP", ("Look at the MCP server",)
    ),
    "CREDENTIAL_REVOKED": Wording(
        PROXY,
        "proxy-credential",
        "An MCP server or its authorization server does not take the credential any more",
        ("Connect the account again: handmesh vault connect",),
    ),
    "CREDENTIAL_REFRESH_FAILED": Wording(
        PROXY,
        "proxy-refresh",
        "An authorization server does not renew the access now",
        ("Look at the authorization server; the credential itself may be good",),
    ),
    "CREDENTIAL_NOT_FOUND": Wording(PROXY, "proxy-credential", "A credential is not in the vault any more"),
    "VAULT_NOT_FOUND": Wording(PROXY, "proxy-credential", "A vault of the session is not there any more"),
    "HARNESS_TYPE_UNKNOWN": Wording(HARNESS, "harness-type", "The harness cannot be of the session's type"),
    "EVENT_UNKNOWN": Wording(HARNESS, "harness-old", "The log has an event that the harness is too old to know"),
    "CONFIG_INVALID": Wording(HARNESS, "harness-config", "The harness cannot work with the session's configuration"),
}

NO_FAULT = frozenset(
    {"TOOL_SCHEMA_INVALID", "SERVER_DENIED", "SERVER_ADDRESS_DENIED", "HOST_DENIED", "REPOSITORY_DENIED"}
    | {"REFERENCE_DENIED", "DOOR_REQUEST_INVALID", "CREDENTIAL_REFLECTED", "HAND_READ_ONLY", "TOOL_CALL_SETTLED"}
)
"""Reasons of what was refused by a rule, or left out: nothing has failed."""

OUTCOMES: dict[str, Wording] = {
    "GONE": Wording(
        HAND, "hand-gone", "A sandbox is gone, and a call with it", ("The next call gets a new sandbox by itself",)
    ),
    "OUT_OF_MEMORY": Wording(
        HAND, "hand-memory", "A tool was killed because the sandbox's memory ran out", ("Give its environment more",)
    ),
    "TIMEOUT": Wording(
        HAND, "hand-timeout", "A tool ran into its time limit and was killed", ("Give its environment more time",)
    ),
}

SERVICE_WORDS = {
    "session": "session service",
    "harness": "harness",
    "sandbox": "sandbox service",
    "vault_proxy": "vault proxy",
}
"""What people call a service."""
