"""Exit codes are a contract with scripts."""

import pytest

from handmesh.cli import exits
from handmesh.session.v1 import event_pb2


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (event_pb2.TURN_END_REASON_DONE, 0),
        (event_pb2.TURN_END_REASON_FAILED, 1),
        (event_pb2.TURN_END_REASON_REFUSED, 3),
        (event_pb2.TURN_END_REASON_LIMIT, 4),
        (event_pb2.TURN_END_REASON_INTERRUPTED, 5),
        (event_pb2.TURN_END_REASON_UNSPECIFIED, 1),
        (99, 1),
    ],
)
def test_each_end_of_a_turn_has_its_code(reason: int, code: int) -> None:
    """The codes are those of the documentation; only a turn that is done is 0."""
    assert exits.of_turn(event_pb2.TurnEnded(reason=reason)) == code


def test_every_reason_of_the_contract_is_known() -> None:
    """A new reason in the contract needs a code here."""
    known = [value for value in event_pb2.TurnEndReason.values() if value]
    assert set(exits._BY_REASON) == set(known)


@pytest.mark.parametrize(("status", "code"), [("INVALID_ARGUMENT", 2), ("OUT_OF_RANGE", 2), ("UNAVAILABLE", 1)])
def test_a_malformed_request_is_the_users(status: str, code: int) -> None:
    """A request that stays wrong is a usage error; all else is a failure."""
    assert exits.of_status(status) == code
