"""What a door does not do, as a value on its way to the sandbox and to the log."""

from __future__ import annotations


class Refusal(Exception):
    """Something is refused: with an HTTP status, an ErrorReason by name, and one line that says what would do.

    `target` is what was asked for, as far as it can be read. `told` says whether the session hears of it: of what is
    refused, but not of a host that does not answer.
    """

    def __init__(self, status: int, reason: str, message: str, target: str = "", told: bool = True) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.target = target
        self.told = told


def malformed(message: str, status: int = 400) -> Refusal:
    """Returns the refusal of what is no proper request."""
    return Refusal(status, "DOOR_REQUEST_INVALID", message)


def unreachable(target: object, what: str) -> Refusal:
    """Returns the answer for a host that does not do its part: which nobody refused."""
    return Refusal(502, "SERVER_UNAVAILABLE", f"{target} {what}", str(target), told=False)
