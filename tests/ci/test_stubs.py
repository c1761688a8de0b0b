"""The committed Python stubs are what the contracts give."""

import shutil
from pathlib import Path

import pytest

from ci import stubs


def test_committed_stubs_are_fresh() -> None:
    """Whoever changes a contract commits its stubs with it (`make proto`)."""
    assert stubs.differences() == []


def test_a_stale_a_missing_and_a_left_over_stub_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail, in each of its three ways."""
    for name in ("proto", "handmesh"):
        shutil.copytree(stubs.ROOT / name, tmp_path / name)
    monkeypatch.setattr(stubs, "ROOT", tmp_path)
    error = tmp_path / "handmesh" / "error" / "v1"
    (error / "error_reason_pb2.py").write_text("# edited")
    (error / "error_reason_pb2.pyi").unlink()
    (error / "gone_pb2.py").touch()
    assert stubs.differences() == [
        "handmesh/error/v1/error_reason_pb2.py: stale",
        "handmesh/error/v1/error_reason_pb2.pyi: missing",
        "handmesh/error/v1/gone_pb2.py: no contract makes it",
    ]
