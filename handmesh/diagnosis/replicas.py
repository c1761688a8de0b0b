"""What the replicas of a service say: each is asked, and what they say is taken together.

One of them has the session, or was away, and which one a caller of theirs had asked nobody knows any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from handmesh.client.errors import HandmeshError
from handmesh.client.health import listens
from handmesh.diagnosis.evidence import Process
from handmesh.harness.v1 import harness_pb2
from handmesh.replicas.channel import split

if TYPE_CHECKING:
    from handmesh.client.channels import Link

T = TypeVar("T")


async def asked(link: Link, ask: Callable[[Link], Awaitable[T]]) -> list[T | HandmeshError]:
    """Asks each replica that a link names, all at once. What one does not answer is in its place."""
    addresses = split(link.address)
    links = [link] if len(addresses) == 1 else [link.to(address) for address in addresses]
    try:
        return list(await asyncio.gather(*(_answer(ask(each)) for each in links)))
    finally:
        for each in links:
            if each is not link:
                await each.close()


async def _answer(asking: Awaitable[T]) -> T | HandmeshError:
    try:
        return await asking
    except HandmeshError as problem:
        return problem


async def any_listens(link: Link) -> bool:
    """Says whether anything accepts connections at one of a link's addresses."""
    return any(await asyncio.gather(*(listens(address) for address in split(link.address))))


def answered(said: Sequence[T | HandmeshError]) -> list[T]:
    """Returns what was answered."""
    return [it for it in said if not isinstance(it, HandmeshError)]


def of_session(
    said: Sequence[harness_pb2.ListRunsResponse | HandmeshError], session_id: str
) -> harness_pb2.ListRunsResponse:
    """Returns the answer of the harness that is at work on the session; of any when none is.

    Raises HandmeshError when one does not answer that may be it.
    """
    answers = answered(said)
    for answer in answers:
        if any(run.session_id == session_id for run in answer.runs):
            return answer
    for problem in said:
        if isinstance(problem, HandmeshError):
            raise problem
    return answers[0]


def together(processes: Sequence[Process]) -> Process:
    """Returns what replicas say of themselves as one: as young as the youngest, and still when one of them was."""
    return Process(
        " or ".join(it.instance for it in processes),
        max(it.began for it in processes),
        tuple(stall for it in processes for stall in it.stalls),
    )
