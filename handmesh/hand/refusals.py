"""What ends a worker for good."""

from __future__ import annotations

from handmesh.client.errors import HandmeshError


class HandRefused(Exception):
    """The mesh does not take this worker, and would not if it came again: a void token, a wrong name, bad tools.

    `reason` is a name of `handmesh.error.v1.ErrorReason` without its prefix.
    """

    def __init__(self, error: HandmeshError) -> None:
        super().__init__(str(error))
        self.reason = error.reason


FINAL = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED", "ABORTED"})
"""Statuses of `ConnectHand` after which a worker does not come again."""
