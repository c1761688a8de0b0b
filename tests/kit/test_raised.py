"""How a call ended, as its caller takes it."""

from __future__ import annotations

import grpc
import pytest

from services.kit.channels import raised
from services.kit.errors import Broken, Unavailable

NOTHING = grpc.aio.Metadata()


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED]
)
def test_a_call_that_nobody_answered_may_be_made_again(code: grpc.StatusCode) -> None:
    """A server that stops cancels what it has not answered: it is away, and nothing is broken."""
    problem = raised(grpc.aio.AioRpcError(code, NOTHING, NOTHING), "SANDBOX_UNAVAILABLE")
    assert isinstance(problem, Unavailable)
    assert (problem.reason, problem.answered) == ("SANDBOX_UNAVAILABLE", False)


def test_a_call_that_a_server_failed_at_is_not() -> None:
    """Without details it is somebody's fault."""
    assert isinstance(raised(grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, NOTHING, NOTHING)), Broken)
