"""The sessions' own tokens of the vault: batch tokens, each for one session's secrets and for a minute, in memory only.

Blocking calls run in the store's threads; what is kept is touched on the event loop alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from services.kit.errors import Unavailable
from services.vault_proxy import counting
from services.vault_proxy.ports import Pass
from services.vault_proxy.secret import Secret
from services.vault_proxy.unwound import unwound

SPARE_SECONDS = 5.0  # before its end a token is not used any more
MOST_KEPT = 4_000

Key = tuple[str, int]  # session id, epoch
Mint = Callable[[Secret[str]], Awaitable[tuple[Secret[str], float]]]  # a voucher -> a token, and its life in seconds


@dataclass(eq=False)
class _Kept:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one login of a session at a time
    token: Secret[str] | None = None
    ends: float = 0.0
    failed: tuple[float, Unavailable] | None = None  # the last login that failed, and when


class Tokens:
    """Keeps each session's token while it lives. `mint` logs in."""

    def __init__(self, mint: Mint) -> None:
        self._mint = mint
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()

    async def token(self, holder: Pass, unless: Secret[str] | None = None) -> Secret[str]:
        """Returns a session's token that is not the one given. Raises what the pass and the login raise.

        A login that fails has failed for all who waited for it: they do not log in one after the other.
        """
        key = (holder.session_id, holder.epoch)
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        asked = time.monotonic()
        async with kept.lock:
            if kept.failed is not None and kept.failed[0] >= asked:
                raise unwound(kept.failed[1])
            if kept.token is None or kept.token is unless or time.monotonic() >= kept.ends - SPARE_SECONDS:
                kept.token = None
                try:
                    token, seconds = await self._mint(await holder.voucher())
                except Unavailable as problem:
                    counting.LOGINS.add("failed")
                    kept.failed = (time.monotonic(), unwound(problem))
                    raise
                counting.LOGINS.add("minted")
                kept.token, kept.ends = token, time.monotonic() + seconds
            return kept.token

    def forget(self, session_id: str, below_epoch: int) -> None:
        """Drops a session's tokens of epochs below one, or with 0 all. They lapse in the vault within a minute."""
        for key in [key for key in self._kept if key[0] == session_id and (below_epoch == 0 or key[1] < below_epoch)]:
            del self._kept[key]

    def clear(self) -> None:
        """Drops all."""
        self._kept.clear()
