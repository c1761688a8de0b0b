"""Errors, named for what the caller does next.

    ServiceError                 status                what the caller does
    ├── Invalid                  INVALID_ARGUMENT      mends the request
    ├── OutOfRange               OUT_OF_RANGE          asks for a position that exists
    ├── Unauthenticated          UNAUTHENTICATED       shows who it is
    ├── Denied                   PERMISSION_DENIED     asks somebody else
    ├── Gone                     NOT_FOUND             makes or finds another one
    ├── Exists                   ALREADY_EXISTS        takes another id
    ├── Conflict                 ABORTED               reads on and decides again
    ├── Refused                  FAILED_PRECONDITION   mends the state first
    ├── Full                     RESOURCE_EXHAUSTED    comes back later
    ├── Unavailable              UNAVAILABLE           says the same again
    ├── Unimplemented            UNIMPLEMENTED         uses a newer server
    └── Broken                   INTERNAL              tells the operator the incident

`reason` is a name of `handmesh.error.v1.ErrorReason` without its prefix. The message is for people and is sent to
the caller: it holds no secret and no text of somebody else's exception.
"""

from __future__ import annotations


class ServiceError(Exception):
    """Something that a caller is told, with a reason that programs branch on."""

    code = "INTERNAL"  # a name of grpc.StatusCode; this module knows no grpc
    answered = True  # False for a call that nobody answered: the reason is then the caller's own

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None, **metadata: str | int) -> None:
        """Takes a reason, one line for people, seconds to wait before a retry, and metadata for programs."""
        super().__init__(f"{message} [{reason}]")
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.metadata = {key: str(value) for key, value in metadata.items()}


class Invalid(ServiceError):
    """The request is wrong and stays wrong."""

    code = "INVALID_ARGUMENT"


class OutOfRange(ServiceError):
    """A position that the log does not have yet."""

    code = "OUT_OF_RANGE"


class Unauthenticated(ServiceError):
    """Nobody known asked."""

    code = "UNAUTHENTICATED"


class Denied(ServiceError):
    """Somebody known asked for what is not theirs to ask."""

    code = "PERMISSION_DENIED"


class Gone(ServiceError):
    """The thing is not there, or not the caller's."""

    code = "NOT_FOUND"


class Exists(ServiceError):
    """The id stands for something else already."""

    code = "ALREADY_EXISTS"


class Conflict(ServiceError):
    """The world has moved on: read, then decide again."""

    code = "ABORTED"


class Refused(ServiceError):
    """The state forbids it until somebody changes the state."""

    code = "FAILED_PRECONDITION"


class Full(ServiceError):
    """A named limit is reached."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(ServiceError):
    """A part cannot be reached: the same call may work later."""

    code = "UNAVAILABLE"


class Unimplemented(ServiceError):
    """This server does not do that yet."""

    code = "UNIMPLEMENTED"


class Broken(ServiceError):
    """Our own fault. The details are in the log under the incident's id, never on the wire."""

    code = "INTERNAL"
