"""What a stored batch does to the write state, and what is wrong with it if it does not fit."""

from __future__ import annotations

from services.session import codec
from services.session.core import WriteState, fold
from services.session.integrity import Mark, fits
from services.session.log import StoredBatch


def fold_batch(state: WriteState, batch: StoredBatch, mark: Mark) -> None:
    """Folds a stored batch, or marks the state as damaged: a gap, a link that does not fit, or not the marked batch."""
    events = codec.unsealed(batch.data)
    fits_on = (batch.first_position, batch.prev_digest, batch.count) == (state.head + 1, state.digest, len(events))
    if state.damaged or not fits_on or any(e.position != p for p, e in enumerate(events, batch.first_position)):
        state.damaged = True
        return
    marked = state.head < mark.position
    for event in events:
        fold(state, codec.stored_fact(event), codec.nanoseconds(event.emit_time))
    state.size += len(batch.data)
    state.digest = batch.digest
    if marked and not fits(mark, state.head, state.digest):
        state.damaged = True
