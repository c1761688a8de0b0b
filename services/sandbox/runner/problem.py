"""What a caller of the runner is told when a request cannot be met."""

from __future__ import annotations


class Problem(Exception):
    """A reason of the error contract and a line for people."""

    def __init__(self, reason: str, message: str, **metadata: int) -> None:
        """Takes what the caller is told."""
        super().__init__(message)
        self.answer: dict[str, str | int] = {"error": reason, "message": message, **metadata}
