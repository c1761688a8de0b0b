"""Every harness type keeps what the port promises: each check, on each folder of `loops/`."""

from __future__ import annotations

import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from services.harness import loops
from services.harness.conformance import CHECKS, NotAsked, Stand, stand_of
from services.harness.ports import NotAvailable
from tests.drills.size import FULL
from tests.support.requirements import in_ci

TYPES = sorted(module.name for module in pkgutil.iter_modules(loops.__path__))


@pytest.fixture
def stand(request: pytest.FixtureRequest) -> Stand:
    """A type."""
    try:
        found = stand_of(f"{loops.__name__}.{request.param}")
        return replace(found, step=min(found.step, 3)) if FULL else found
    except (NotAvailable, ImportError) as reason:
        if in_ci():
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("stand", TYPES, indirect=True)
async def test_type(stand: Stand, check: Callable[[Stand], Awaitable[None]]) -> None:
    """The type does what each must; each check states its rule in its docstring."""
    try:
        await check(stand)
    except NotAsked as reason:
        assert str(reason).startswith("it ")  # the type has no use for it
