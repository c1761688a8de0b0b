"""Reads which slice of a log a request asks for."""

from __future__ import annotations

from handmesh.session.v1 import session_pb2 as pb
from services.kit.errors import Invalid
from services.session import codec
from services.session.reader import Anchor
from services.session.slices import Ask


def ask_of(request: pb.GetEventsRequest) -> Ask:
    """Returns the slice. Raises Invalid (`ARGUMENT_INVALID`) for a kind of event that there is not."""
    for kind in request.kinds:
        if kind not in codec.KINDS:
            raise Invalid("ARGUMENT_INVALID", "kinds holds what is no kind of event", field="kinds")
    return Ask(
        start=request.start_position,
        end=request.end_position,
        page_size=request.page_size,
        last=request.last,
        before=request.before,
        after=request.after,
        kinds=frozenset(request.kinds),
        descending=request.descending,
    )


def anchor_of(request: pb.GetEventsRequest) -> Anchor | None:
    """Returns what the slice is counted from, if it is not a position."""
    match request.WhichOneof("anchor"):
        case "anchor_position":
            return Anchor(position=request.anchor_position)
        case "anchor_event_id":
            return Anchor(event_id=request.anchor_event_id)
        case "anchor_emit_time":
            return Anchor(time=codec.nanoseconds(request.anchor_emit_time))
        case _:
            return None
