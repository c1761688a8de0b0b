"""Says why nothing happens: nobody serves the session's harness type, or all who do are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from handmesh.client.errors import HandmeshError

if TYPE_CHECKING:
    from handmesh.client import Client
    from handmesh.session.v1 import session_pb2

PATIENCE_SECONDS = 3.0  # in which a harness has said something, or something is said here
DEFAULT_TYPE = "messages"


def unserved(harness: str, served: Iterable[session_pb2.ServedType]) -> str:
    """Says why a session of a type is not taken up; nothing when it is."""
    found = {each.name: each for each in served}
    if harness not in found:
        return f"no harness of type {harness} runs"
    return "" if found[harness].room else f"all harnesses of type {harness} are at work"


async def explain(mesh: Client, session_id: str, heard: asyncio.Event, note: Callable[[str, str], None]) -> None:
    """Waits a moment for a harness to be heard, and says what is the matter when none is."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await heard.wait()
    except TimeoutError:
        try:
            harness = (await mesh.session(session_id).get()).config.harness or DEFAULT_TYPE
            if why := unserved(harness, await mesh.served_types()):
                note(f"{why}: the session waits for one. Types: handmesh harness types", "yellow")
        except HandmeshError:
            return  # whoever follows the session says what is wrong with the mesh
