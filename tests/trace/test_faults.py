"""Which part failed: eighteen faults that are planted on a mesh of real processes are named right, and no other is.

In all of it nothing is shown that a person, a model or a tool wrote: `Ground.diagnosis` looks for it in every form.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from handmesh.diagnosis.evidence import PARTS
from handmesh.diagnosis.verdict import Diagnosis
from tests.drills.size import FULL
from tests.trace.faults import FAULTS, GENTLE, HEALTHY
from tests.trace.ground import Ground, ground

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.timeout(90),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """The mesh that is hurt, and mended again."""
    async with ground(tmp_path_factory.mktemp("trace")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gentle(mesh: Ground) -> dict[str, Diagnosis]:
    """What is said of the faults that may be planted side by side."""
    found = await asyncio.gather(*(plant(mesh) for plant in GENTLE))
    return {plant.__name__: seen for plant, seen in zip(GENTLE, found, strict=True)}


async def test_there_are_three_of_each_part() -> None:
    """Eighteen faults: of session, harness, hand, proxy, model and network three each."""
    assert Counter(fault.part for fault in FAULTS.values()) == dict.fromkeys(PARTS, 3)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_is_named(mesh: Ground, gentle: dict[str, Diagnosis], name: str) -> None:
    """The part, the kind of fault and whether it is in the way are right; evidence and a next step are told."""
    fault = FAULTS[name]
    seen = gentle.get(name) or await fault.plant(mesh)
    found = seen.verdict
    assert (found.part, found.code, found.state) == (fault.part, fault.code, fault.state), (found, seen.evidence.probes)
    assert found.what and found.seen and found.todo


@pytest.mark.parametrize("name", [name for name in HEALTHY if FULL or name != "rolled_over"])  # that one takes 6 s
async def test_what_is_no_fault_is_called_none(mesh: Ground, name: str) -> None:
    """A tool's own failure, a refusal, a person's pause, a rule's no: nothing of the mesh has failed."""
    none = HEALTHY[name]
    seen = await none.plant(mesh)
    found = seen.verdict
    assert (found.part, found.code, found.state) == ("", none.code, none.state), found


async def test_the_command_says_it_and_leaves_with_its_code(mesh: Ground) -> None:
    """`handmesh trace` as people run it: 0 for a session that is well, 15 for a model that takes no key, and a turn."""
    well = await mesh.session("hello", no_hands=True)
    ill = await mesh.session("fault key", no_hands=True)
    await asyncio.gather(mesh.logged(well, "turn_ended"), mesh.logged(ill, "turn_ended"))
    (code, said), (bad, told), (_, turn) = await asyncio.gather(
        mesh.command(well.id), mesh.command(ill.id, "--json"), mesh.command(ill.id, "--turn", "1")
    )
    assert code == 0 and "no fault" in said and "turn 1" in said
    verdict = json.loads(told)["verdict"]
    assert (bad, verdict["part"], verdict["code"], verdict["state"]) == (15, "model", "model-key", "standing")
    assert "model:" in turn
    for text in (said, told, turn):
        assert "canary" not in text.lower()
