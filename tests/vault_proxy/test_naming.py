"""What the model calls a tool."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vault_proxy.core.naming import offered_name, server_of

VALID = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("lookup_order", "shop__lookup_order"),
        ("a__b", "shop__a__b"),
        ("get-it", "shop__get-it"),
        ("x" * 122, "shop__" + "x" * 122),
    ],
)
def test_a_plain_name_is_kept(tool: str, name: str) -> None:
    """What the model's API takes is not changed."""
    assert offered_name("shop", tool) == name


@pytest.mark.parametrize(
    "tool", ["orders.get", "wetter_für", "給我", "a b", "x" * 123, "x" * 500, "a/b", "\x1b[2J", "-\0-"]
)
def test_another_name_is_made_valid_and_stays_apart(tool: str) -> None:
    """Dots, Unicode and length are mended, and the hash keeps what would fall together apart."""
    name = offered_name("shop", tool)
    assert VALID.fullmatch(name)
    assert server_of(name) == "shop"
    assert name != offered_name("shop", re.sub(r"[^a-zA-Z0-9_-]", "_", tool)[:122])


def test_two_servers_with_the_same_tool_stay_apart() -> None:
    """The server's name is the first half."""
    assert offered_name("a", "search") != offered_name("b", "search")


@pytest.mark.parametrize("name", ["bash", "shop_tool", "__x", "shop__", "Shop__x", "a.b__x", "", "__", "-a__b"])
def test_what_is_no_name_has_no_server(name: str) -> None:
    """Only `server__tool` names a server."""
    assert server_of(name) is None


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_are_valid_and_tell_tools_apart(one: str, other: str) -> None:
    """Any two different tools have two different valid names."""
    first, second = offered_name("s-1", one), offered_name("s-1", other)
    assert VALID.fullmatch(first)
    assert server_of(first) == "s-1"
    assert (first == second) == (one == other)
