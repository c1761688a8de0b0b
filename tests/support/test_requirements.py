"""The rule for what a machine lacks."""

import pytest

from tests.support import requirements


@pytest.fixture
def _lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks everything."""
    monkeypatch.setattr(requirements, "lack_of", lambda marker: f"no {marker}")


@pytest.mark.usefixtures("_lacking")
def test_a_laptop_skips_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CI a lack is a skip that says what is missing."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no docker"):
        requirements.require("docker")


@pytest.mark.usefixtures("_lacking")
def test_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI=true the same lack is a failure, so that nothing goes untested unseen."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no docker"):
        requirements.require("docker")


@pytest.mark.usefixtures("_lacking")
def test_live_tests_never_run_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model key is no requirement of CI."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception):
        requirements.require("live")


def test_other_markers_ask_for_nothing() -> None:
    """Markers such as parametrize or asyncio name no requirement."""
    assert requirements.lack_of("parametrize") is None
