"""Reading commits out of packs, of real git and of nobody."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vault_proxy.core import pack
from services.vault_proxy.core.pack import PackReader, PackRefused, applied
from tests.support.git import Upstream, git


def packed(folder: Path, *revisions: str, thin: bool = False, name_deltas: bool = False) -> bytes:
    """Returns the pack that git makes of revisions."""
    options = ["--thin"] if thin else []
    options += [] if name_deltas else ["--delta-base-offset"]
    command = ["git", "-C", str(folder), "pack-objects", "--revs", "--stdout", "-q", "--window=50", *options]
    said = "\n".join(revisions) + "\n"
    return subprocess.run(command, input=said.encode(), check=True, capture_output=True).stdout


def read(data: bytes, step: int = 1 << 20, hash_name: str = "sha1") -> PackReader:
    reader = PackReader(hash_name)
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    return reader


def long_message(number: int) -> str:
    """A message that makes a commit worth a delta of another one."""
    return f"commit {number}\n\n" + "\n".join(f"line {at} of what is said again and again" for at in range(60))


@pytest.fixture
def history(tmp_path: Path) -> Upstream:
    """A repository with merges, and commits that are deltas of each other."""
    upstream = Upstream(tmp_path / "history")
    for number in range(12):
        git(upstream.folder, "commit", "--quiet", "--allow-empty", "--message", long_message(number))
    git(upstream.folder, "checkout", "--quiet", "-b", "side", upstream.first)
    upstream.commit("side", "side\n" * 500)
    git(upstream.folder, "checkout", "--quiet", "main")
    git(upstream.folder, "merge", "--quiet", "--no-edit", "side")
    (upstream.folder / "large").write_bytes(bytes(range(256)) * 4096)
    git(upstream.folder, "add", "--all")
    git(upstream.folder, "commit", "--quiet", "--message", "large")
    return upstream


def parents(folder: Path) -> dict[str, tuple[str, ...]]:
    rows = git(folder, "rev-list", "--all", "--parents").splitlines()
    return {row.split()[0]: tuple(row.split()[1:]) for row in rows}


@pytest.mark.parametrize("step", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("name_deltas", [False, True])
def test_all_commits_are_read_however_the_parts_fall(history: Upstream, step: int, name_deltas: bool) -> None:
    """Also those that git packed as deltas, by offset or by name."""
    data = packed(history.folder, "main", name_deltas=name_deltas)
    reader = read(data, step)
    assert reader.complete
    assert reader.parents == parents(history.folder)


def test_a_repository_that_names_by_sha256(tmp_path: Path) -> None:
    """Its commits are read likewise."""
    folder = tmp_path / "new"
    folder.mkdir()
    git(folder, "init", "--quiet", "--object-format=sha256")
    for number in range(3):
        git(folder, "commit", "--quiet", "--allow-empty", "--message", long_message(number))
    assert read(packed(folder, "main"), hash_name="sha256").parents == parents(folder)


def test_a_pack_shows_what_comes_before_what(history: Upstream) -> None:
    """Along any parent, through the pack's commits up to one that it need not have itself; not the other way round."""
    main, old = git(history.folder, "rev-parse", "main"), git(history.folder, "rev-parse", "main~5")
    side = git(history.folder, "rev-parse", "side")
    reader = read(packed(history.folder, "main", f"^{old}"))
    assert old not in reader.parents
    assert reader.leads(main, old)
    assert reader.leads(main, side)
    assert not reader.leads(old, main)
    assert not reader.leads(side, old)
    assert not reader.leads(main, main)


def test_what_is_left_out_shows_nothing(history: Upstream) -> None:
    """Past its bounds a reader keeps nothing, and a thin pack's delta of what is not there is not guessed at."""
    data = packed(history.folder, "main")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "KEPT_BYTES", 2_000)
        few = read(data)
    assert few.complete
    assert 0 < len(few.parents) < len(parents(history.folder))
    thin = packed(history.folder, "main", "^main~3", thin=True)
    assert read(thin).complete


@given(st.binary(max_size=300))
def test_what_is_no_pack_is_refused_or_waited_for(data: bytes) -> None:
    """Whatever comes: one error, or the wish for more."""
    reader = PackReader("sha1")
    try:
        reader.feed(b"PACK\0\0\0\2\0\0\0\2" + data)
    except PackRefused:
        return
    assert not reader.parents


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_what_is_no_delta_is_refused(base: bytes, delta: bytes) -> None:
    """Whatever it is."""
    try:
        applied(base, delta)
    except PackRefused:
        return


def test_an_object_has_the_size_that_it_says() -> None:
    """A bomb that says it is small is refused at once."""
    import zlib

    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(PackRefused, match="size"):
        PackReader("sha1").feed(b"PACK\0\0\0\2\0\0\0\1" + bytes([0x1F]) + bomb)


def test_nothing_comes_after_a_pack(history: Upstream) -> None:
    """What an upstream would be given beyond the objects is refused."""
    data = packed(history.folder, "main")
    with pytest.raises(PackRefused):
        read(data + b"x")
    reader = read(data)
    with pytest.raises(PackRefused):
        reader.feed(b"x")
