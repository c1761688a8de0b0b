"""Shows what a call says while it runs, under the id of the event that its result will be.

A call that ends soon is not followed, and none is while nobody watches: whether somebody does is asked now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from handmesh.session.v1.session_pb2 import Preview
from services.harness.adapters.codec import finished_id
from services.harness.journal import Journal
from services.kit.errors import ServiceError

SOON_SECONDS = 0.5  # in which most calls end
LOOK_SECONDS = 2.0  # between two looks at whether anybody watches, and between two tries to follow
PIECE_SECONDS = 0.05  # between two pieces: what a call says meanwhile comes as one
PIECE_CHARACTERS = 16_000  # of one preview: the session service passes on 64 KiB

Follow = Callable[[int], AsyncGenerator[tuple[str, int], None]]  # from an offset on, with the offset behind each piece


async def show(journal: Journal, call_id: str, follow: Follow) -> None:
    """Shows a call's output until the call has ended, or until cancelled. What a failure costs is previews."""
    watched, pause = False, SOON_SECONDS
    while not watched:
        await asyncio.sleep(pause)
        watched, pause = await journal.watched(), LOOK_SECONDS
    previews = await journal.previews()
    offset = shown = 0
    while True:
        try:
            async with aclosing(follow(offset)) as pieces:
                async for text, reached in pieces:
                    for start in range(0, len(text), PIECE_CHARACTERS):
                        piece = text[start : start + PIECE_CHARACTERS]
                        previews.show(Preview(event_id=finished_id(call_id), offset=shown, tool_output=piece))
                        shown += len(piece)
                        await previews.flush()
                    offset = reached
                    await asyncio.sleep(PIECE_SECONDS)
            return
        except ServiceError:
            await asyncio.sleep(LOOK_SECONDS)
