"""Text from a model or a tool must not reach the terminal as orders."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmesh.cli.escape import escaped, one_line

ANY_TEXT = st.text(st.characters(codec=None))


@given(ANY_TEXT)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    """What is printed holds no control, format, surrogate, private or unassigned character but line end and tab."""
    unsafe = [
        each for each in escaped(text) if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    ]
    assert set(unsafe) <= {"\n", "\t"}


@given(st.lists(ANY_TEXT))
def test_pieces_are_escaped_like_the_whole(pieces: list[str]) -> None:
    """A stream may be cut anywhere: escaping piece by piece gives what escaping the whole gives."""
    assert "".join(map(escaped, pieces)) == escaped("".join(pieces))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]52;c;cm0=\x07", "\\x1b[2J\\x1b]52;c;cm0=\\x07"),
        ("\x1b]8;;http://evil.example\x1b\\here", "\\x1b]8;;http://evil.example\\x1b\\here"),
        ("safe\u202egpj.exe", "safe\\u202egpj.exe"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\x9b31m", "\\x9b31m"),
        ("100%\r[INFO] all good", "100%\\r[INFO] all good"),
        ("\udc80\x00", "\\udc80\\x00"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve 日本語 🎉\n\tindented", "naïve 日本語 🎉\n\tindented"),
    ],
)
def test_known_tricks_are_spelled_out(text: str, shown: str) -> None:
    """Colours, clipboard writes, hidden links, bidi, zero-width and overwriting are shown, and good text is left."""
    assert escaped(text) == shown


@given(ANY_TEXT, st.integers(1, 80))
def test_one_line_is_one_line_and_short(text: str, limit: int) -> None:
    """A line never breaks and never exceeds its limit, whatever the text."""
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.splitlines() in ([], [line])


def test_one_line_marks_what_is_cut() -> None:
    """A reader sees that something is missing."""
    assert one_line("a b  c", 10) == "a b c"
    assert one_line("x" * 11, 10) == "x" * 9 + "…"
    assert one_line(" " * 10_000_000 + "x", 10) == "…"
