"""Slots of Claude Code: bounded, in order, and never kept by somebody who only waits."""

from __future__ import annotations

import asyncio

from services.harness.loops.claude_code.slots import Slots


class Holder:
    def __init__(self) -> None:
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


async def test_no_more_than_so_many_in_the_order_of_asking() -> None:
    """The third waits until one leaves; who stops waiting costs nobody a slot."""
    slots, first, second, third, fourth = Slots(1), Holder(), Holder(), Holder(), Holder()
    await slots.take(first)
    asking = [asyncio.create_task(slots.take(each)) for each in (second, third, fourth)]
    await asyncio.sleep(0)
    slots.leave(first)
    slots.leave(first)  # a second time changes nothing
    asking[0].cancel()  # it has the slot, and has not heard of it
    await asyncio.wait(asking[:2])
    assert (asking[0].cancelled(), asking[1].done(), asking[2].done()) == (True, True, False)
    asking[2].cancel()
    await asyncio.wait(asking)
    slots.leave(third)
    await slots.take(fourth)
    assert not any(each.gone for each in (first, second, third, fourth))


async def test_who_waits_for_calls_gives_way() -> None:
    """Whether it waits already when its slot is wanted, or begins to then. Who works is left alone."""
    slots, first, second, third = Slots(2), Holder(), Holder(), Holder()
    await slots.take(first)
    await slots.take(second)
    slots.waits(first)
    slots.works(first)
    asking = asyncio.create_task(slots.take(third))
    await asyncio.sleep(0)
    assert not asking.done() and not first.gone
    slots.waits(second)
    await asking
    assert (first.gone, second.gone) == (False, True)
    slots.waits(first)
    await slots.take(Holder())
    assert first.gone
