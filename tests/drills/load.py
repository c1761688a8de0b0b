"""Load for drills: writers that insist, what was acknowledged to them, and a look at whether all of it is there."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import grpc

from handmesh.session.v1 import session_pb2 as pb
from services.session.verify import check, check_acknowledged
from tests.drills.process import insist, seen, whole_log
from tests.session.running import note


async def once(stub: Any, method: str, request: Any) -> Any:
    """Says it once; nothing when there was no answer."""
    try:
        return await getattr(stub, method)(request, timeout=5)
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return None


@dataclass
class Load:
    """Writers that append single events and batches, and insist; and what was acknowledged to them, kept outside."""

    stub: Any
    acknowledged: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    requests: list[tuple[str, Any, int]] = field(default_factory=list)  # method, request, position
    stopped: bool = False

    async def write(self, session: str, name: str, until_refused: bool = False) -> None:
        """Appends for ever; or until the first failure, when what is under way may be there or not."""
        chance = random.Random(name)
        number = 0
        say = once if until_refused else insist
        while not self.stopped:
            events = [note(f"{name}-{number}-{at}", chance.randrange(2_000)) for at in range(chance.choice((1, 1, 5)))]
            number += 1
            if len(events) == 1:
                request: Any = pb.EmitEventRequest(session_id=session, event=events[0])
                answer = await say(self.stub, "EmitEvent", request)
                if answer is None:
                    return
                first = answer.position
                self.requests.append(("EmitEvent", request, first))
            else:
                request = pb.EmitEventsRequest(session_id=session, events=events)
                answer = await say(self.stub, "EmitEvents", request)
                if answer is None:
                    return
                first = answer.first_position
                self.requests.append(("EmitEvents", request, first))
            self.acknowledged[session] |= {event.event_id: first + at for at, event in enumerate(events)}

    async def more(self, count: int) -> None:
        """Waits for so many more acknowledgements."""
        wanted = len(self.requests) + count
        async with asyncio.timeout(90):
            while len(self.requests) < wanted:
                await asyncio.sleep(0.002)

    async def check(self, stub: Any) -> None:
        """Reads everything back, and says some of it again."""
        for session, acknowledged in self.acknowledged.items():
            events = seen(await whole_log(stub, session))
            assert check(events) + check_acknowledged(events, acknowledged) == []
            answer = await insist(stub, "VerifySession", pb.VerifySessionRequest(session_id=session))
            assert list(answer.violations) == [] and answer.last_position == len(events)
        for method, request, position in random.Random(1).sample(self.requests, min(60, len(self.requests))):
            again = await insist(stub, method, request)
            assert again.duplicate and position == (again.position if method == "EmitEvent" else again.first_position)
