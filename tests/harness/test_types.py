"""Which harness types a process is, and what it says of the others."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

import pytest

from services.harness import loops
from services.harness.ports import HarnessType
from services.harness.settings import Settings, names
from services.harness.types import LEFT_OUT, Listed, TypesError, found

OWN = """
from services.harness.loops.echo import Echo
from services.harness.turn.loop import TurnType
from services.harness.turn.traits import Traits

DESCRIPTION = "Mine."

def make(settings):
    return TurnType(Traits("{name}", tools=False), DESCRIPTION, Echo)
"""
MISSING = "import no_such_library\n" + OWN
REFUSING = """
from services.harness.ports import NotAvailable

DESCRIPTION = "Needs much."

def make(settings):
    raise NotAvailable("pip install much")
"""


def settings(*types: str) -> Settings:
    """Settings of which only the types matter."""
    rest = {"session_address": "", "sandbox_address": "", "vault_proxy_address": "", "listen": "", "tls_dir": Path()}
    others = ("client_listen", "api_keys_file", "model_key_file", "model_base_url", "model_prices_file")
    return Settings(
        **rest,  # type: ignore[arg-type]
        **dict.fromkeys(others),  # type: ignore[arg-type]
        log_level="info",
        preload=False,
        capacity=1,
        harness_types=types,
        claude_code_processes=1,
    )


def by_name(listed: tuple[Listed, ...]) -> dict[str, tuple[str, bool]]:
    """Says of each type why it is not had, and whether it was made."""
    return {each.name: (each.unavailable, each.kind is not None) for each in listed}


def test_a_process_is_all_that_it_can_be() -> None:
    """Every folder is listed, with a description, and made unless something is missing, which is said."""
    listed = found(settings())
    assert [each.name for each in listed] == sorted(module.name for module in pkgutil.iter_modules(loops.__path__))
    assert all((each.kind is None) == bool(each.unavailable) for each in listed)
    assert all(each.description for each in listed if each.kind is not None)
    assert {"echo", "messages", "review"} <= {each.name for each in listed if each.kind is not None}


def test_the_operator_chooses() -> None:
    """Only what is wanted is made; the rest is listed as left out."""
    listed = by_name(found(settings("echo")))
    assert listed["echo"] == ("", True) and listed["messages"] == (LEFT_OUT, False)
    assert names("echo, acme.brain") == ("echo", "acme.brain")
    for wrong in ("", "echo,,review"):
        with pytest.raises(ValueError, match="names, joined by commas"):
            names(wrong)


def test_a_type_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dotted path is a module with `make`; its last part is the type's name."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "brain.py").write_text(OWN.format(name="brain"))
    monkeypatch.syspath_prepend(tmp_path)
    listed = by_name(found(settings("acme.brain", "echo")))
    assert (listed["brain"], listed["echo"], listed["review"]) == (("", True), ("", True), (LEFT_OUT, False))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("nothing", "there is no type nothing; there are "),
        ("acme.Brain", "not 'Brain'"),
        ("acme.absent", "names absent, which cannot be had: the Python package acme.absent is not there"),
        ("acme.missing", "names missing, which cannot be had: the Python package no_such_library is not there"),
        ("acme.refusing", "names refusing, which cannot be had: pip install much"),
    ],
)
def test_what_cannot_be_had_is_no_silent_loss(
    wanted: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is told to be a type that it cannot be does not start, and says why."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "missing.py").write_text(MISSING.format(name="missing"))
    (tmp_path / "acme" / "refusing.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypesError) as problem:
        found(settings(wanted))
    assert said in str(problem.value)


def test_a_missing_library_costs_only_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be imported is listed with what is missing; the others are made."""

    def nothing(settings: Settings) -> HarnessType:
        raise ModuleNotFoundError("No module named 'much'", name="much")

    monkeypatch.setattr("services.harness.loops.review.make", nothing)
    listed = by_name(found(settings()))
    assert listed["review"] == ("the Python package much is not there", False) and listed["echo"] == ("", True)
    assert "services.harness.loops.review" in sys.modules
