"""Destroys sandboxes that nobody needs any more: those of sessions that are over, and forgotten ones of nobody.

What a session has come to is asked of the session service. Its stream of revocations says at once when a session ends;
rounds find what the stream has missed, also what happened while this service was down. A session service that does
not answer, or does not say clearly that a session is over, costs no sandbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from services.kit.errors import ServiceError
from services.kit.logs import Log
from services.sandbox import counting
from services.sandbox.backends import Backends
from services.sandbox.hand import Hand, SandboxInfo
from services.sandbox.owners import Owners
from services.sandbox.owners_core import Goal
from services.sandbox.reaper_core import Fate, Judge, concerned, idle_since, is_nobodys
from services.sandbox.sandboxes import Sandboxes

ROUND_SECONDS = 20.0  # with the 30 s that a session must be missed for, well within a minute
TICK_SECONDS = 5.0
QUESTIONS_PER_SECOND = 25.0  # so that rounds are no load; with more than 500 sessions a round takes longer
RECONNECT_SECONDS = 0.5
MOST_NEWS = 10_000  # what is more is left to the round

_log = Log("services.sandbox.reaper")


class Sessions(Protocol):
    """The session service. See `session_client.SessionClient` for what the methods promise."""

    async def fate(self, session_id: str) -> Fate:
        """Says what became of a session."""
        ...

    def endings(self) -> AsyncIterator[str]:
        """Yields the ids of sessions that may have ended."""
        ...


Found = tuple[Hand, SandboxInfo]


class Reaper:
    """Destroys sandboxes of sessions that are over, if it can ask, and those of nobody after some time."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        backends: Backends,
        sessions: Sessions | None,
        idle_seconds: float,
        owners: Owners,
    ) -> None:
        """Does nothing yet: `run` does. `idle_seconds` is for sandboxes without a session."""
        self._sandboxes = sandboxes
        self._backends = backends
        self._sessions = sessions
        self._idle_seconds = idle_seconds
        self._owners = owners
        self._judge = Judge()
        self._news: set[str] = set()
        self._heard = asyncio.Event()  # there are news, or a round is wanted at once
        self._next_round = 0.0  # of time.monotonic()

    async def run(self) -> None:
        """Looks for what to destroy. For ever."""
        async with asyncio.TaskGroup() as tasks:
            if self._sessions is None:
                _log.warning("sandboxes of ended sessions are kept", reason="HANDMESH_SESSION_ADDRESS is not set")
            else:
                tasks.create_task(self._listen(self._sessions))
            while True:
                try:
                    await self._work()
                except Exception:  # the top of a task: there will be another turn
                    _log.error("sandboxes not reaped", exc_info=True)
                try:
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._heard.wait()
                except TimeoutError:
                    continue

    async def _listen(self, sessions: Sessions) -> None:
        while True:
            connected = False
            try:
                async for session_id in sessions.endings():
                    if not connected:
                        connected = True
                        _log.info("ends of sessions are watched")
                        self._next_round = 0.0  # for what happened before
                        self._heard.set()
                    if session_id and len(self._news) < MOST_NEWS:
                        self._news.add(session_id)
                        self._heard.set()
            except ServiceError as error:
                if connected:
                    _log.info("ends of sessions are not watched", reason=error.reason)
            except Exception:  # the top of a task: it listens again
                _log.error("ends of sessions are not watched", exc_info=True)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _work(self) -> None:
        """Does what is due: news, second looks at sessions that are missed, and now and then a round of all."""
        self._heard.clear()
        now = time.monotonic()
        news, self._news = self._news, set()
        whole_round = now >= self._next_round
        wanted = news | self._judge.due(now)
        if not whole_round and not wanted:
            return
        found = [each for each in await self._backends.listed() if not each[1].labels.pool]
        owners = {session_id for _, info in found for session_id in concerned(info.labels)}
        if whole_round:
            self._next_round = now + ROUND_SECONDS
            self._judge.keep_only(owners)
            await self._end_idle([each for each in found if is_nobodys(each[1].labels)])
        if self._sessions is not None:
            await self._ask(self._sessions, found, sorted(owners if whole_round else owners & wanted))

    async def _ask(self, sessions: Sessions, found: list[Found], session_ids: Iterable[str]) -> None:
        for session_id in session_ids:
            try:
                fate = await sessions.fate(session_id)
            except ServiceError as error:
                _log.warning("session not asked for", session_id=session_id, reason=error.reason)
                if error.code == "UNAVAILABLE":
                    return  # nor would it answer for the others; the next round asks again
                fate = Fate.UNKNOWN
            if self._judge.may_go(session_id, fate, time.monotonic()):
                mine = [each for each in found if session_id in concerned(each[1].labels)]
                await asyncio.gather(*(self._part(hand, info, session_id, fate.name) for hand, info in mine))
            await asyncio.sleep(1.0 / QUESTIONS_PER_SECOND)

    async def _end_idle(self, found: Iterable[Found]) -> None:
        """Ends sandboxes of nobody in which nothing was begun for long."""
        for hand, info in found:
            if time.time() - info.labels.create_time < self._idle_seconds:
                continue
            try:
                since = idle_since(info.labels, await hand.executions(info.labels.sandbox_id))
            except ServiceError:
                continue  # it has just died, or does not answer: the hand's own tidying is for those
            if since is not None and time.time() - since >= self._idle_seconds:
                await self._release(hand, info, "IDLE")

    async def _part(self, hand: Hand, info: SandboxInfo, session_id: str, why: str) -> None:
        """Takes a sandbox from a session that is over: a standing hand stands outside again, others are destroyed."""
        labels = info.labels
        if labels.session_id == session_id and not labels.standing:
            await self._release(hand, info, why)
            return
        try:
            if labels.session_id != session_id:
                await self._owners.shares.unshare(labels.sandbox_id, session_id)
            elif labels.move is None:
                goal = Goal("", labels.standing)
                await self._owners.transfer(labels.sandbox_id, goal, labels.generation, 0.0)
        except ServiceError as error:
            _log.warning("hand not taken back", sandbox_id=labels.sandbox_id, reason=error.reason)

    async def _release(self, hand: Hand, known: SandboxInfo, why: str) -> None:
        """Destroys a sandbox unless it has another owner by now."""
        labels = known.labels
        try:
            info = await hand.find(labels.sandbox_id)
            mine = info is not None and info.labels.session_id == labels.session_id and info.labels.move is None
            if mine:
                await self._sandboxes.release(labels.sandbox_id)
                counting.REAPED.add(why.lower())
                _log.info("sandbox reaped", sandbox_id=labels.sandbox_id, session_id=labels.session_id, why=why)
        except ServiceError as error:
            counting.REAP_FAILURES.add()
            _log.warning("sandbox not reaped", sandbox_id=labels.sandbox_id, reason=error.reason)
