"""Calls without a deadline of their own."""

from __future__ import annotations

import asyncio

import pytest

from services.kit.overdue import Overdue, OverdueError


async def test_only_what_is_late_is_ended() -> None:
    """Work that takes too long is cancelled, work that began later or is done is not."""
    overdue = Overdue(0.05)
    ended: list[str] = []

    async def work(name: str, event: asyncio.Event) -> None:
        try:
            await event.wait()
        finally:
            ended.append(name)

    go = asyncio.Event()
    late = asyncio.create_task(overdue.within(work("late", asyncio.Event())))
    done = asyncio.create_task(overdue.within(work("done", go)))
    await asyncio.sleep(0)
    go.set()
    await done
    with pytest.raises(OverdueError):
        await late
    assert ended == ["done", "late"]
    again = asyncio.create_task(overdue.within(work("again", asyncio.Event())))
    with pytest.raises(OverdueError):
        await again


async def test_a_caller_that_leaves_is_no_overdue_call() -> None:
    """A cancellation from elsewhere stays one."""
    overdue = Overdue(60)
    call = asyncio.create_task(overdue.within(asyncio.Event().wait()))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
