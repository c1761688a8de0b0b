"""What doors refuse, told to the session: behind the answer, the same once a minute, and not too many.

A sandbox can ask for anything as often as it likes. What it is told at the door is told it each time; the log, which
has a bound and is read by people and by the model, is told what is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from handmesh.session.v1 import event_pb2
from services.vault_proxy import counting
from services.vault_proxy.audit import Audit
from services.vault_proxy.doors.visit import Visit

AGAIN_SECONDS = 60.0  # the same refusal is said once in so long
MOST_OF_A_SESSION = 20  # refusals said in that time; the last of them says that there are more
MOST_SESSIONS = 10_000  # that are remembered; the one that was refused something the longest ago is forgotten
TARGET_CHARACTERS = 300
MESSAGE_CHARACTERS = 600

MORE = "more is refused; what is refused in the next minute is not said"


class Refusals:
    """Tells sessions what their sandboxes were refused. Has an Audit of its own, so no flood pushes out a use."""

    def __init__(self, audit: Audit, now: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._now = now
        self._said: dict[str, dict[tuple[str, ...], float]] = {}  # session -> what was refused -> when it was said

    def tell(self, visit: Visit, door: str, target: str, reason: str, message: str) -> None:
        """Takes note of a refusal, at once. Never waits, never raises.

        `door` is `git` or `egress`, `target` what was asked for (`host:port`, or a repository's URL without a user),
        `reason` an ErrorReason by name, `message` one line that says what would be allowed. Neither holds a secret.
        """
        counting.REFUSED.add(door, reason)
        target, message = _plain(target, TARGET_CHARACTERS), _plain(message, MESSAGE_CHARACTERS)
        message = self._worth_saying(visit.access.session_id, (visit.sandbox_id, door, target, reason), message)
        if message:
            refused = event_pb2.DoorRefused(
                sandbox_id=visit.sandbox_id, door=door, target=target, reason=reason, message=message
            )
            self._audit.refused(visit.access.session_id, refused)

    def _worth_saying(self, session_id: str, what: tuple[str, ...], message: str) -> str:
        """Returns the message to say; none for what was said lately, and MORE for the last one for a while."""
        now = self._now()
        kept = {key: at for key, at in self._said.pop(session_id, {}).items() if now - at < AGAIN_SECONDS}
        self._said[session_id] = kept
        while len(self._said) > MOST_SESSIONS:
            del self._said[next(iter(self._said))]
        if what in kept or len(kept) >= MOST_OF_A_SESSION:
            return ""
        kept[what] = now
        return MORE if len(kept) == MOST_OF_A_SESSION else message

    def forget(self, session_id: str) -> None:
        """Forgets a session that has ended."""
        self._said.pop(session_id, None)

    async def tell_on(self) -> None:
        """Tells what comes, for ever."""
        await self._audit.tell()

    async def flush(self) -> None:
        """Waits until all is told, for a few seconds at most."""
        await self._audit.flush()


def _plain(text: str, characters: int) -> str:
    """Returns one line of visible ASCII: it is what a stranger wrote, and is shown on terminals and to the model."""
    shown = "".join(each if " " <= each <= "~" else "?" for each in text[: characters + 1])
    return shown if len(shown) <= characters else shown[: characters - 3] + "..."
