"""The errors of the Messages API, as values.

Nothing is raised here: a check yields an `ApiError`, the server writes it. The shape on the wire is the real one,
`{"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The status each error type has when a script does not name one, and the other way round.
STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
TYPE_OF_STATUS = {status: kind for kind, status in STATUS_OF_TYPE.items()}

# What the API says when it fails by itself; scripts may say something else.
MESSAGE_OF_TYPE = {
    "authentication_error": "invalid x-api-key",
    "rate_limit_error": "This request would exceed your organization's rate limit. Please try again later.",
    "api_error": "Internal server error",
    "timeout_error": "Request timed out",
    "overloaded_error": "Overloaded",
}


@dataclass(frozen=True)
class ApiError:
    """One refusal: HTTP status, error type, message; `retry_after` in seconds; `details` as the API's `details`."""

    status: int
    type: str
    message: str
    retry_after: float | None = None
    details: Mapping[str, Any] | None = field(default=None)

    def body(self, request_id: str) -> dict[str, Any]:
        """Returns the JSON body of the refusal."""
        error: dict[str, Any] = {"type": self.type, "message": self.message}
        if self.details is not None:
            error["details"] = dict(self.details)
        return {"type": "error", "error": error, "request_id": request_id}


def invalid(message: str) -> ApiError:
    """Returns a 400 with the sentence that says what is wrong with the request."""
    return ApiError(400, "invalid_request_error", message)


def scripted(status: int | None, kind: str | None, message: str | None, retry_after: float | None) -> ApiError:
    """Returns the error that a script asks for; what it leaves out follows from the rest (529 is an overload)."""
    if kind is None:
        kind = TYPE_OF_STATUS.get(status or 500, "invalid_request_error" if (status or 500) < 500 else "api_error")
    if status is None:
        status = STATUS_OF_TYPE.get(kind, 500)
    return ApiError(status, kind, message or MESSAGE_OF_TYPE.get(kind, "scripted error"), retry_after)
