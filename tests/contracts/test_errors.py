"""Every reason that the code gives is in the contract."""

from __future__ import annotations

import ast
from pathlib import Path

from handmesh.error.v1.error_reason_pb2 import ErrorReason
from services.kit import errors

ROOT = Path(__file__).parents[2]
REASONS = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 - an enum, not a dict
KINDS = {kind.__name__ for kind in errors.ServiceError.__subclasses__()} | {"ModelFailure", "ServiceError"}


def _given() -> dict[str, str]:
    """Finds the first argument of every error that is made anywhere under services/."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "services").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
                reason = node.args[0]
                if isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                    found[reason.value] = f"{file.relative_to(ROOT)}:{node.lineno}"
    return found


def test_every_reason_is_in_the_contract() -> None:
    """Callers branch on reasons: one that is not in the enum cannot be looked up."""
    given = _given()
    assert len(given) > 10
    assert {reason: where for reason, where in given.items() if reason not in REASONS} == {}


def test_every_kind_of_error_has_a_status_of_its_own() -> None:
    """A status comes back as the kind that was raised."""
    codes = [kind.code for kind in errors.ServiceError.__subclasses__()]
    assert len(codes) == len(set(codes))
