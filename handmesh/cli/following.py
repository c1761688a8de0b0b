"""Follows a turn to its end: what `handmesh run` does after it has said something."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from handmesh.cli import exits
from handmesh.client import Session
from handmesh.session.v1 import event_pb2, session_pb2

Item = event_pb2.Event | session_pb2.Preview


async def until_turn_ends(session: Session, position: int, show: Callable[[Item], None]) -> int:
    """Shows what happens from the message at `position` on, until its turn has ended; returns the exit code.

    A session that is paused at a budget goes nowhere by itself: that is an end too.
    A turn that ends without having read that message was an earlier one: following goes on.
    """
    async for item in session.watch(position, previews=True):
        show(item)
        if not isinstance(item, event_pb2.Event):
            continue
        if item.HasField("turn_ended") and item.turn_ended.read_position >= position:
            return exits.of_turn(item.turn_ended)
        if item.HasField("session_ended"):
            return exits.FAILED
        if item.HasField("budget_reached"):
            return exits.LIMIT
    raise AssertionError("a watch has no end")


async def unless_told(
    session: Session, work: Coroutine[Any, Any, int], timeout: float | None, say: Callable[[str], None]
) -> int:
    """Runs `work` to its end, unless Ctrl-C or the timeout (seconds) comes first; returns the exit code.

    The first Ctrl-C asks the agent to stop, and goes on following; the second leaves at once. When the time is over the
    agent is asked to stop too.
    """
    loop = asyncio.get_running_loop()
    presses: asyncio.Queue[None] = asyncio.Queue()
    loop.add_signal_handler(signal.SIGINT, presses.put_nowait, None)
    following = asyncio.create_task(work)
    pressed = asyncio.create_task(presses.get())
    asking: asyncio.Task[int] | None = None
    deadline = None if timeout is None else loop.time() + timeout
    try:
        while True:
            waited = {following, pressed} if asking is None or asking.done() else {following, pressed, asking}
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if asking is not None and asking in done:
                asking.result()
            if following in done:
                return following.result() if asking is None else exits.CTRL_C
            if not done:
                say("the time is over: asking the agent to stop")
                await session.interrupt()
                return exits.TIMED_OUT
            if pressed in done:
                if asking is not None:
                    return exits.CTRL_C
                say("asking the agent to stop (Ctrl-C again leaves it alone)")
                asking = asyncio.create_task(session.interrupt())
                pressed = asyncio.create_task(presses.get())
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        running = [task for task in (following, pressed, asking) if task is not None and not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
