"""The runner's pure parts, and that it runs where it must: alone, on Python 3.8, without a library."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.sandbox import runner
from services.sandbox.runner import shell
from services.sandbox.runner.output import Output, clean, read_chunk, readable
from services.sandbox.runner.result import Ending, compose
from services.sandbox.runner.search import _compiled
from services.sandbox.runner_archive import archive

SOURCES = sorted(Path(runner.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_runner_is_plain_python(source: Path) -> None:
    """Its syntax is Python 3.8's, and it imports itself and the standard library only."""
    tree = ast.parse(source.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(name.name.split(".")[0] in sys.stdlib_module_names for name in node.names)
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names


def test_the_runner_starts_from_its_archive(tmp_path: Path) -> None:
    """One file is all it needs; without a configuration it says what is wrong and ends."""
    file = tmp_path / "runner.pyz"
    file.write_bytes(archive())
    assert zipfile.ZipFile(file).testzip() is None
    run = subprocess.run([sys.executable, "-I", "-S", file, "{}"], capture_output=True, text=True, env={}, timeout=30)
    assert "TypeError" in run.stderr and "workspace" in run.stderr


@given(st.lists(st.binary(max_size=64)), st.integers(2, 80))
def test_output_keeps_head_and_tail(parts: list[bytes], limit: int) -> None:
    """What fits is whole; of what does not, the beginning and the end stay, and the cut is marked."""
    output = Output("/nowhere/at/all", limit, 0)
    for part in parts:
        output.write(part)
    whole = b"".join(parts)
    assert output.total == len(whole) and output.truncated == (len(whole) > limit)
    if not output.truncated:
        assert output.text() == readable(whole)
    else:
        left_out = int(re.search(r"\[\.\.\. (\d+) bytes left out \.\.\.\]", output.text()).group(1))  # type: ignore[union-attr]
        assert 0 < left_out <= len(whole) and len(output.text().encode()) <= 3 * limit + 60


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=40), st.integers(8, 60))
def test_no_character_is_cut_in_two(text: str, limit: int) -> None:
    """The cut never turns text into replacement characters."""
    output = Output("/nowhere/at/all", limit, 0)
    output.write(text.encode())
    assert output.text().count("\ufffd") <= text.count("\ufffd")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_chunks_make_up_the_output(tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int) -> None:
    """Read while it is written and after, whole characters each time, together the same text."""
    path = str(tmp_path_factory.getbasetemp() / "chunks")
    Path(path).write_bytes(data[:cut])
    first, offset = read_chunk(path, 0, ended=False)
    Path(path).write_bytes(data)
    rest, end = read_chunk(path, offset, ended=True)
    assert end == len(data) and first + rest == data.decode("utf-8", "replace")
    assert read_chunk(path, end, ended=True) == ("", end)


def test_chunks_stay_under_their_limit(tmp_path: Path) -> None:
    """Replacement characters are three bytes long: a chunk of them has fewer."""
    path = tmp_path / "noise"
    path.write_bytes(b"\xff" * 40_000)
    offset, texts = 0, []
    while (chunk := read_chunk(str(path), offset, ended=True))[0]:
        offset = chunk[1]
        texts.append(chunk[0])
    assert "".join(texts) == "\ufffd" * 40_000 and max(len(text.encode()) for text in texts) <= 32 << 10


def test_a_chunk_is_never_read_from_what_is_no_file(tmp_path: Path) -> None:
    """A FIFO or a link in place of the output is no output, and nothing is waited for."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/hostname")
    for name in ("fifo", "link", "nowhere"):
        assert read_chunk(str(tmp_path / name), 0, ended=True) == ("", 0)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", ".py"], ["d/a.py", "a.pyc"]),
        ("**/*.py", ["a.py", "d/a.py", "d/e/a.py"], ["a.py/b"]),
        ("src/**", ["src/a", "src/d/a"], ["src", "x/src/a"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("[!ab]x", ["cx"], ["ax"]),
        ("{a,b*}.txt", ["a.txt", "bcd.txt"], ["c.txt"]),
        ("a,b}", ["a,b}"], ["a"]),
        ("a.b+(c)|^$", ["a.b+(c)|^$"], ["axb"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    """Each wildcard means what it means in a shell with globstar; other characters mean themselves."""
    matches = _compiled(pattern).fullmatch
    assert [path for path in yes if not matches(path)] == [] and [path for path in no if matches(path)] == []


def test_text_for_the_model_is_clean() -> None:
    """No escape sequence, no NUL, no lone surrogate comes through."""
    assert readable(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B \0") == "red x \ufffd"
    assert clean("odd\udcff name\0") == "odd? name\ufffd"


def test_a_shells_state_is_the_users_own() -> None:
    """What bash keeps itself and what is ours is not restored; the rest is, whatever it looks like."""
    saved = b'cd -- /x\numask 0022\ndeclare -r BASHOPTS="a"\ndeclare -i RANDOM\ndeclare -x HANDMESH_MARK="1"\n'
    saved += b'declare -- __handmesh_code="0"\ndeclare -x A="1"\ndeclare -a UIDS=()\nf () \n{ \n    :\n}\n'
    expected = b'cd -- /x\numask 0022\ndeclare -x A="1"\ndeclare -a UIDS=()\nf () \n{ \n    :\n}\n'
    assert shell.kept(saved) == expected


TIMED_OUT = "said\n[timed out after 2 s; all its processes were killed]"
OUT_OF_MEMORY = "said\n[out of memory: the sandbox may use 256 MiB; the kernel killed a process]"


def _ending(**known: object) -> Ending:
    first = {"command": True, "text": "said\n", "status": 0, "stopped": None, "out_of_memory": False, "side": b""}
    return Ending(**{**first, "timeout": 2.0, "seconds": 0.1, **known})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "outcome", "text"),
    [
        ({}, "OK", "said"),
        ({"text": ""}, "OK", "(no output)"),
        ({"status": 7 << 8}, "TOOL_ERROR", "said\n[exit code: 7]"),
        ({"status": 9}, "TOOL_ERROR", "said\n[killed by signal 9 (SIGKILL)]"),
        ({"status": 40}, "TOOL_ERROR", "said\n[killed by signal 40]"),
        ({"stopped": "TIMEOUT", "status": 9}, "TIMEOUT", TIMED_OUT),
        ({"stopped": "TIMEOUT", "status": None}, "TIMEOUT", TIMED_OUT),
        ({"stopped": "INTERRUPTED", "status": 9}, "INTERRUPTED", "said\n[interrupted; all its processes were killed]"),
        ({"status": 9, "out_of_memory": True, "memory_bytes": 1 << 28}, "OUT_OF_MEMORY", OUT_OF_MEMORY),
        ({"out_of_memory": True}, "OK", "said\n[out of memory; the kernel killed a process]"),
        ({"side": None, "state_limit": 5}, "OK", "said\n[variables and functions over 5 bytes were not kept]"),
        ({"command": False, "side": b'{"text": "x\\n", "failed": false}'}, "OK", "x\n"),
        ({"command": False, "side": b'{"text": "no", "failed": true}', "status": 256}, "TOOL_ERROR", "no"),
        ({"command": False, "side": b'{"te', "status": 9}, "TOOL_ERROR", "said\n\n[killed by signal 9 (SIGKILL)]"),
    ],
)
def test_results_say_how_it_ended(known: dict[str, object], outcome: str, text: str) -> None:
    """Each way to end is an outcome of its own, and is said in the text for the model."""
    result = compose(_ending(**known))
    assert (result["outcome"], result["text"]) == (outcome, text)
