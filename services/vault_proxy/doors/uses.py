"""Uses of credentials at the egress door, told as few events: a program may make a thousand requests in a second.

The first use is told at once. Those that follow, of the same credential at the same host with the same end, are counted
for a second and told as one event with their number. So nothing is left out, and neither a session's log nor the audit
is filled by a loop in a sandbox.
"""

from __future__ import annotations

import asyncio

from services.vault_proxy.audit import Audit, Bound

WINDOW_SECONDS = 1.0
MOST_COUNTED = 10_000  # credentials and hosts that are counted; what comes past that is told at once

Key = tuple[str, str, str, str, str]


class Uses:
    """Tells of uses."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._counted: dict[Key, tuple[Bound, int]] = {}

    def note(self, session_id: str, host: str, credential: Bound, result: str) -> None:
        """Takes note of a use, at once. `result` is `ok` or an ErrorReason by name."""
        key = session_id, host, credential.vault_id, credential.credential_id, result
        if key in self._counted:
            self._counted[key] = credential, self._counted[key][1] + 1
            return
        self._audit.used(session_id, host, "", credential, result)
        if len(self._counted) < MOST_COUNTED:
            self._counted[key] = credential, 0

    def turn(self) -> None:
        """Tells what was counted, and begins anew."""
        counted, self._counted = self._counted, {}
        for key, (credential, times) in counted.items():
            if times:
                session_id, host, _, _, result = key
                self._audit.used(session_id, host, "", credential, result, times)
                self._counted[key] = credential, 0

    async def keep_turning(self) -> None:
        """Tells what was counted each second, for ever."""
        while True:
            await asyncio.sleep(WINDOW_SECONDS)
            self.turn()
