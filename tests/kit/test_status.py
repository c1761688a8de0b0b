"""What a process says of itself to who looks into a failure."""

from __future__ import annotations

from typing import Any

from handmesh.status.v1 import status_pb2 as pb
from services.kit.status import MOST_STALLS, Status


async def test_a_process_tells_when_it_stood_still() -> None:
    """A gap of more than two seconds between two signs of life is a stall; a shorter one is not; the last 20 stay."""
    now = 100.0
    status = Status(lambda: now, lambda: now)
    context: Any = None
    for pause in (1.0, 2.0, 5.0):
        now += pause
        status.tick()
    answer = await status.GetStatus(pb.GetStatusRequest(), context)
    assert [(it.begin_time.ToSeconds(), it.end_time.ToSeconds()) for it in answer.stalls] == [(103, 108)]
    assert (answer.serve_time.ToSeconds(), answer.now.ToSeconds()) == (100, 108)
    for _ in range(MOST_STALLS + 5):
        now += 3.0
        status.tick()
    answer = await status.GetStatus(pb.GetStatusRequest(), context)
    assert len(answer.stalls) == MOST_STALLS


async def test_who_asks_first_after_a_stop_is_told_of_it() -> None:
    """A stop that the process has not noticed by itself yet is in its first answer."""
    now = 100.0
    status = Status(lambda: now, lambda: now)
    now += 4.0
    answer = await status.GetStatus(pb.GetStatusRequest(), None)  # type: ignore[arg-type]
    assert [(it.begin_time.ToSeconds(), it.end_time.ToSeconds()) for it in answer.stalls] == [(100, 104)]


async def test_a_clock_that_is_set_is_no_stall() -> None:
    """Who looks into a failure is not told that a process stood still because somebody has set the machine's clock."""
    now = 100.0
    status = Status(lambda: now, lambda: 50.0)
    now += 3_600.0
    answer = await status.GetStatus(pb.GetStatusRequest(), None)  # type: ignore[arg-type]
    assert not answer.stalls
