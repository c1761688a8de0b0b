"""Makes content fit for the model's API, once for a session: what is made is an event, so later requests are alike."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence

from services.harness import images
from services.harness.adapters import codec
from services.harness.blocks import REFERENCE, spelled
from services.harness.core import Replied, Said
from services.harness.journal import Journal
from services.harness.loops.messages.told import Block
from services.harness.ports import Pictures
from services.harness.shelf import content_of
from services.harness.turn.state import State


async def render(journal: Journal, pictures: Pictures | None, said: Sequence[Said], state: Callable[[], State]) -> None:
    """Emits ContentRendered for each image or document in it that the API would refuse and nobody has made fit."""
    facts = [fact for fact in said if not isinstance(fact, Replied)]
    contents = [content_of(fact) for fact in facts]
    pictured = [
        content for content in contents if '"image' in content or '"document' in content or REFERENCE in content
    ]
    if not pictured:
        return
    blobs = await journal.shelf.opened(facts, ())
    for block, unfit in _unfit(pictured, blobs):
        source = images.identity(block)
        if source in state().renditions:
            continue
        made = await _made(block, unfit, pictures)
        result, refs = await journal.shelf.fitted_blocks(spelled(made))
        await journal.say(codec.rendered(source, result, unfit.why, refs))


def _unfit(contents: Sequence[str], blobs: Mapping[str, Sequence[Block]]) -> list[tuple[Block, images.Unfit]]:
    found: list[tuple[Block, images.Unfit]] = []
    for content in contents:
        for block in json.loads(content):
            for each in blobs.get(str(block.get("blob_id")), ()) if block.get("type") == REFERENCE else (block,):
                verdict = images.judge(each)
                if isinstance(verdict, images.Unfit):
                    found.append((each, verdict))
    return found


async def _made(block: Block, unfit: images.Unfit, pictures: Pictures | None) -> list[Block]:
    """Returns a smaller image when that is what it takes and can be made, else a note of what is not shown."""
    if unfit.shrinkable and pictures is not None:
        smaller = await pictures.shrink(base64.b64decode(block["source"]["data"]))
        if smaller is not None:
            data, media_type = smaller
            source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
            shown: Block = {"type": "image", "source": source}
            if images.judge(shown) is None:
                return [shown, {"type": "text", "text": f"[shown smaller than it is: {unfit.why}]"}]
    return [images.note(unfit)]
