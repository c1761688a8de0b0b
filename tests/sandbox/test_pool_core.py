"""What is kept in a pool, and when it is tried again."""

from __future__ import annotations

from dataclasses import fields, replace

from services.sandbox.hand import Labels, Limits, Recipe
from services.sandbox.pool_core import LONGEST_PAUSE_SECONDS, MAX_FREE_SECONDS, Plan, fingerprint, pause, plan

RECIPE = Recipe("build", "docker", image="a")


def _free(name: str, pool: str = "p", create_time: float = 1000.0) -> Labels:
    return Labels(name, "build", create_time, pool=pool)


def test_a_fingerprint_stands_for_what_a_sandbox_is_made_by() -> None:
    """It changes with each field of the recipe and with the runner, but for what makes no other sandbox."""
    changed = {
        "name": "x",
        "backend": "x",
        "image": "x",
        "rootfs": "x",
        "runtime": "x",
        "env": {"A": "1"},
        "tools": ("read",),
        "limits": Limits(cpus=1.0),
    }
    same = fingerprint(RECIPE, b"runner")
    for field in fields(Recipe):
        if field.name in ("pool", "description"):
            other = replace(RECIPE, **{field.name: type(getattr(RECIPE, field.name))(7)})
            assert fingerprint(other, b"runner") == same
        elif field.name in changed:
            assert fingerprint(replace(RECIPE, **{field.name: changed[field.name]}), b"runner") != same, field.name
    assert fingerprint(RECIPE, b"newer") != same
    assert fingerprint(Recipe("build", "docker", image="a"), b"runner") == same


def test_what_fits_is_kept_oldest_first() -> None:
    """Those with an owner are nobody's business here."""
    found = [_free("a"), _free("b"), replace(_free("c"), pool="", session_id="s")]
    assert plan(found, {"p": 2, "q": 1}, 1000.0) == Plan({"p": ("a", "b"), "q": ()}, ())


def test_what_no_pool_wants_is_dropped() -> None:
    """Those of a recipe that has changed, and the oldest of too many."""
    found = [_free("a"), _free("b"), _free("old", "before")]
    assert plan(found, {"p": 1}, 1000.0) == Plan({"p": ("b",)}, ("a", "old"))
    assert plan(found, {}, 1000.0) == Plan({}, ("a", "b", "old"))


def test_old_ones_go_one_at_a_time() -> None:
    """So that a pool is never emptied by their age."""
    found = [_free("a"), _free("b")]
    assert plan(found, {"p": 2}, 1001.0 + MAX_FREE_SECONDS) == Plan({"p": ("b",)}, ("a",))


def test_pauses_grow_to_a_limit() -> None:
    """A backend that is away is not asked again and again."""
    assert [pause(failures) for failures in (1, 2, 3, 1000)] == [1.0, 2.0, 4.0, LONGEST_PAUSE_SECONDS]
