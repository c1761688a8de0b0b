"""Big content through four processes: a client's picture and a hand's reach the model, and lie beside the log."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from handmesh.client import Client, Session
from handmesh.session.v1.event_pb2 import Event
from tests.e2e.test_mesh import ends, only, outcomes, turn

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\x02\0\0\0" + bytes(8) + b"IEND\xaeB`\x82"


async def held(session: Session, blob_id: str) -> bytes:
    return b"".join([piece async for piece in session.download(blob_id)])


def tokens(events: list[Event]) -> list[int]:
    """What each answer had to read, cached or not."""
    usages = [it.usage for it in only(events, "model_replied")]
    return [it.input_tokens + it.cache_read_input_tokens + it.cache_creation_input_tokens for it in usages]


async def test_pictures_of_clients_and_hands_reach_the_model(client: Client) -> None:
    """Both lie in blobs, whole; the events refer to them; the model is given images, which it counts as such."""
    mine = PNG + bytes(1_500_000)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(mine).decode()}
    content = [{"type": "text", "text": "picture"}, {"type": "image", "source": source}]
    session = await client.create_session(content=content)
    events = await turn(session)
    assert (ends(events), outcomes(events)) == (["DONE"], ["OK", "OK"])
    reference = json.loads(only(events, "message_received")[0].content_json)[1]
    assert (reference["type"], reference["size"]) == ("handmesh_blob", len(mine))
    assert await held(session, reference["blob_id"]) == mine
    read = only(events, "tool_finished")[1]
    (blob,) = read.blobs
    assert json.loads(read.result.content_json)[-1]["blob_id"] == blob.blob_id
    theirs = await held(session, blob.blob_id)
    assert theirs == PNG + bytes(2_000_000)
    assert hashlib.sha256(theirs).hexdigest() == blob.sha256
    asked = tokens(events)
    assert asked[0] >= 1_500  # the client's picture
    assert asked[2] >= asked[1] + 1_500  # and then the hand's
