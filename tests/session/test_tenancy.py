"""What it takes to find out that a session is somebody else's is what it takes to find out that there is none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.session.settings import Settings
from tests.session.running import Service, message, refusal, serving

CALLS: dict[str, Callable[[str], Any]] = {
    "GetSession": lambda it: pb.GetSessionRequest(session_id=it),
    "GetEvents": lambda it: pb.GetEventsRequest(session_id=it),
    "WatchEvents": lambda it: pb.WatchEventsRequest(session_id=it),
    "EmitEvent": lambda it: pb.EmitEventRequest(session_id=it, event=message()),
    "EndSession": lambda it: pb.EndSessionRequest(session_id=it),
    "ArchiveSession": lambda it: pb.ArchiveSessionRequest(session_id=it),
    "ForkSession": lambda it: pb.ForkSessionRequest(session_id=it),
    "VerifySession": lambda it: pb.VerifySessionRequest(session_id=it),
    "DeleteSession": lambda it: pb.DeleteSessionRequest(session_id=it),
    "ListBlobs": lambda it: pb.ListBlobsRequest(session_id=it),
}


class Counted:
    """Passes calls on, and notes them while it is asked to."""

    def __init__(self, part: Any, noted: list[str]) -> None:
        self._part = part
        self._noted = noted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._noted.append(f"{name} {len(given)}")
            return found(*given, **named)

        return call


async def asked(service: Service, noted: list[str], method: str, session_id: str) -> tuple[list[str], str]:
    """Calls as another tenant; returns what the store was asked meanwhile, and the answer."""
    del noted[:]
    error = await refusal(getattr(service.other, method)(CALLS[method](session_id)))
    return list(noted), f"{error.code} {error.reason} {error.message.replace(session_id, '<id>')}"


async def test_the_store_is_asked_the_same_for_both(settings: Settings, identities: Path) -> None:
    """The same questions in the same order, for a session that its owner uses right now, for one that nobody here has
    looked at since it was made, and for one that never was, from the first time on."""
    make = importlib.import_module(f"services.session.logs.{settings.log}").make
    noted: list[str] = []
    async with make(settings) as store:
        counted = replace(store, log=Counted(store.log, noted), registry=Counted(store.registry, noted))
        async with serving(settings, store, identities) as before:
            cold = await before.create(message())
        async with serving(settings, counted, identities) as service:
            warm = await service.create(message())
            await service.events(warm)
            for method in CALLS:
                for _ in range(2):
                    answers = [await asked(service, noted, method, it) for it in (warm, cold, ids.mint("sess"))]
                    assert answers[0] == answers[1] == answers[2], method
                    assert answers[0][0] and answers[0][1].startswith("NOT_FOUND SESSION_NOT_FOUND "), method
            assert (await service.status(warm), await service.status(cold)) == ("RUNNING", "RUNNING")
