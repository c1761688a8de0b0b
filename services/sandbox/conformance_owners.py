"""What every hand must do when its owner changes, as numbered checks against the port (see `conformance`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from services.kit.errors import Conflict, Gone
from services.sandbox.conformance import Stand, command, refused
from services.sandbox.hand import CUSTODY, Labels, Move, Outcome, Owner, Reader, SandboxInfo

ONE, TWO = "sess_one", "sess_two"


def _given(labels: Labels, session_id: str) -> Labels:
    past = (*labels.past, Owner(labels.generation, labels.session_id))
    return replace(labels, session_id=session_id, generation=labels.generation + 1, past=past)


async def _found(stand: Stand, sandbox_id: str) -> SandboxInfo:
    found = await stand.hand.find(sandbox_id)
    assert found is not None
    return found


async def check_01_the_owner_record_is_kept(stand: Stand) -> None:
    """All of it is given back, by `find` and by `list`, also to a service that starts again."""
    made = await stand.sandbox(session_id=ONE, hand="main")
    labels = _given(made.labels, TWO)
    move = Move(TWO, "box", 12.5, stage="OWNED", from_session_id=ONE)
    labels = replace(labels, standing="box", description="a box", tenant="acme", move=move)
    labels = replace(labels, readers=(Reader("sess_three", "eye", 3, told=True),))
    changed = await stand.hand.relabel(made.labels.sandbox_id, made.labels, labels)
    assert changed == replace(made, labels=labels)
    stand.hand = await stand.reopen()
    assert await _found(stand, made.labels.sandbox_id) == changed
    assert [info for info in await stand.hand.list() if info.labels.session_id == TWO] == [changed]


async def check_02_of_many_changes_one_is_made(stand: Stand) -> None:
    """Compare and set: who knows an older owner record is told so, and changes nothing; the generation goes up once."""
    made = await stand.sandbox(session_id=ONE)
    sandbox_id = made.labels.sandbox_id
    wanted = [_given(made.labels, f"sess_{number}") for number in range(8)]
    answers = await asyncio.gather(
        *(stand.hand.relabel(sandbox_id, made.labels, labels) for labels in wanted), return_exceptions=True
    )
    done = [answer for answer in answers if isinstance(answer, SandboxInfo)]
    lost = [answer for answer in answers if isinstance(answer, Conflict)]
    assert (len(done), len(lost), {each.reason for each in lost}) == (1, 7, {"GENERATION_CONFLICT"})
    assert await _found(stand, sandbox_id) == done[0]
    assert {each.metadata["generation"] for each in lost} == {"2"}
    await refused(Gone, "SANDBOX_GONE", stand.hand.relabel("sbx_none", made.labels, wanted[0]))


async def check_03_a_request_finds_what_the_record_says(stand: Stand) -> None:
    """A sandbox that was given away is not its old request's any more, and is the one's that it has now."""
    made = await stand.sandbox("first", session_id=ONE)
    sandbox_id = made.labels.sandbox_id
    await stand.hand.relabel(sandbox_id, made.labels, replace(_given(made.labels, TWO), request_id="second"))
    assert (await stand.sandbox("second", session_id=TWO)).labels.sandbox_id == sandbox_id
    assert (await stand.sandbox("first", session_id=ONE)).labels.sandbox_id != sandbox_id


async def check_04_nothing_starts_for_an_older_owner(stand: Stand) -> None:
    """Behind a fence what runs goes on and its result is for its caller; what is new under the old generation is not
    started, under the new one it is."""
    sandbox_id = await stand.id(session_id=ONE)
    old = replace(command("until test -e go; do sleep 0.01; done; echo ended"), generation=1)
    await stand.hand.start(sandbox_id, old)
    await stand.hand.fence(sandbox_id, 2)
    await stand.hand.fence(sandbox_id, 2)
    late = replace(command("touch late"), generation=1)
    await refused(Conflict, "GENERATION_CONFLICT", stand.hand.start(sandbox_id, late))
    await refused(Conflict, "GENERATION_CONFLICT", stand.hand.run(sandbox_id, late))
    assert not await stand.hand.start(sandbox_id, old)
    new = replace(command("touch go; test ! -e late"), generation=2)
    assert (await stand.hand.run(sandbox_id, new)).outcome is Outcome.OK
    assert (await stand.hand.run(sandbox_id, old)).text == "ended"
    known = {info.execution_id: info.generation for info in await stand.hand.executions(sandbox_id)}
    assert known == {old.execution_id: 1, new.execution_id: 2}


async def check_05_a_fence_outlives_the_service(stand: Stand) -> None:
    """It is the sandbox that keeps it."""
    sandbox_id = await stand.id(session_id=ONE)
    await stand.hand.fence(sandbox_id, 3)
    stand.hand = await stand.reopen()
    late = replace(command("true"), generation=2)
    await refused(Conflict, "GENERATION_CONFLICT", stand.hand.run(sandbox_id, late))


async def check_06_epochs_are_of_a_generation(stand: Stand) -> None:
    """The new owner's epochs begin anew; what the old one says of its own neither counts nor matters any more."""
    sandbox_id = await stand.id(session_id=ONE)
    await stand.hand.run(sandbox_id, replace(command("true", epoch=70), generation=1))
    await stand.hand.fence(sandbox_id, 2)
    await stand.hand.cancel(sandbox_id, "of_before", 80, 1)
    assert (await stand.hand.run(sandbox_id, replace(command("true", epoch=5), generation=2))).outcome is Outcome.OK
    stale = replace(command("true", epoch=4), generation=2)
    await refused(Conflict, "EPOCH_STALE", stand.hand.run(sandbox_id, stale))


async def check_07_the_new_owner_has_the_files_and_not_the_shell(stand: Stand) -> None:
    """Files stay. Variables that the old owner's tools were given, and its shell's state, are gone."""
    stand.needs(CUSTODY)
    sandbox_id = await stand.id(session_id=ONE)
    await stand.hand.outfit(sandbox_id, {"GIVEN": "to one"}, generation=1)
    said = "echo ${GIVEN:-none} ${MINE:-none} $PWD"
    first = "mkdir sub; cd sub; export MINE=one; echo $GIVEN > ../kept"
    await stand.hand.run(sandbox_id, replace(command(first), generation=1))
    assert (await stand.bash(sandbox_id, said)).text.split()[:2] == ["to", "one"]
    await stand.hand.fence(sandbox_id, 2)
    late = stand.hand.outfit(sandbox_id, {"GIVEN": "to one"}, generation=1)
    await refused(Conflict, "GENERATION_CONFLICT", late)
    heard = (await stand.hand.run(sandbox_id, replace(command(f"{said}; cat kept"), generation=2))).text.split()
    assert (heard[:2], heard[3:], heard[2].endswith("sub")) == (["none", "none"], ["to", "one"], False)


CHECKS = tuple(value for name, value in sorted(globals().items()) if name.startswith("check_"))
