"""One mesh for all tests of this folder: what a cell kills is started again, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.crash.crew import Crew
from tests.crash.crew import crew as start


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def crew(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Crew]:
    """A running crew."""
    async with start(tmp_path_factory.mktemp("crash")) as running:
        yield running
