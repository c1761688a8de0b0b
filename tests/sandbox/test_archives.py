"""Archives of strangers: what is in them comes out, and what could do harm is refused before a byte is written."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
import zipfile
import zlib

import pytest

from services.sandbox.runner.archives import BadArchive, Limits, check, clean_path, entries

LIMITS = Limits(size=1 << 20, entries=100)


def tar_of(*members: tarfile.TarInfo | tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Makes a tar. A member with a size gets so many zeros."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for member in members:
            if isinstance(member, tuple):
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
            else:
                tar.addfile(member, io.BytesIO(bytes(member.size)))
    return buffer.getvalue()


def zip_of(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    """Makes a deflated zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def of_type(kind: bytes, name: str = "a", link: str = "b") -> tarfile.TarInfo:
    """Makes a member that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def content(data: bytes) -> dict[str, bytes | None]:
    """Reads an archive as a whole."""
    found = {it.path: None if it.content is None else b"".join(it.content) for it in entries(data, LIMITS)}
    assert check(data, LIMITS) == len(found)
    return found


def refusal(data: bytes, limits: Limits = LIMITS) -> str:
    """Returns why an archive is refused."""
    with pytest.raises(BadArchive) as told:
        check(data, limits)
    return str(told.value)


FILES = (("./a", b"1"), ("b/c/d", b"x" * 200_000), ("naïve name", b""))
EXPECTED = {"a": b"1", "b/c/d": b"x" * 200_000, "naïve name": b""}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tars_come_out(form: int) -> None:
    """All three forms, plain and gzipped, also gzipped in two parts."""
    data = tar_of(*FILES, form=form)
    assert content(data) == EXPECTED
    assert content(gzip.compress(data)) == EXPECTED
    assert content(gzip.compress(data[:70_000]) + gzip.compress(data[70_000:])) == EXPECTED


def test_a_zip_comes_out() -> None:
    """Names, directories and content; `./` alone is nothing."""
    assert content(zip_of(("a", b"1"), ("b/", b""), ("b/c/d", b"22"), ("./", b""))) == {
        "a": b"1",
        "b": None,
        "b/c/d": b"22",
    }
    assert content(zip_of()) == {}


def test_whether_a_file_may_be_run_is_kept() -> None:
    """From the mode in a tar, and from the upper half of the attributes in a zip."""
    run, plain = tarfile.TarInfo("run"), tarfile.TarInfo("plain")
    run.mode, plain.mode = 0o4755, 0o644
    assert [it.executable for it in entries(tar_of(run, plain), LIMITS)] == [True, False]
    info = zipfile.ZipInfo("run")
    info.external_attr = 0o100755 << 16
    assert [it.executable for it in entries(zip_of((info, b"")), LIMITS)] == [True]


@pytest.mark.parametrize(
    "name",
    [
        *("/a", "..", "../a", "a/../b", "a/./b", "a//b", "a/..", "./../a", "a\\b", "a\nb", "a\x7f", "//", "/"),
        *("x" * 256, "/".join("d" * 33), "/".join(["y" * 200] * 6)),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(name: str) -> None:
    """Absolute ones, `..`, two spellings of one path, controls, and those that are too long or too deep."""
    with pytest.raises(BadArchive):
        clean_path(name)
    refusal(tar_of((name, b"")))
    refusal(zip_of((name, b"")))


def test_a_nul_in_a_name_is_refused() -> None:
    """Python's zipfile would cut the name there, and so hide what the archive means elsewhere."""
    data = zip_of(("a_b", b"")).replace(b"a_b", b"a\0b")
    assert "control character" in refusal(data)
    info = tarfile.TarInfo("a")
    info.pax_headers = {"path": "a\0b"}
    assert "control character" in refusal(tar_of(info))


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        b"S",
        b"Z",
    ],
)
def test_only_files_and_directories_are_taken(kind: bytes) -> None:
    """No link, device, pipe, sparse file or what nobody knows."""
    assert refusal(tar_of(of_type(kind)))


def test_a_link_in_a_zip_is_refused() -> None:
    """There it is a mode in the attributes."""
    info = zipfile.ZipInfo("a")
    info.external_attr = 0o120777 << 16
    assert "links and devices" in refusal(zip_of((info, b"/etc")))


def test_sparse_files_are_refused() -> None:
    """A pax header makes a file of a few bytes as large as it likes."""
    info = tarfile.TarInfo("a")
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40)}
    refusal(tar_of(info))
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    refusal(tar_of(info))


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a"), ("a/", "a/"), ("a/b", "a/b/c")]
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_one_path_is_one_entry(pack: object, names: tuple[str, str]) -> None:
    """Twice the same, in whatever spelling, or a file that is a directory, too."""
    if pack is tar_of:
        refusal(tar_of(*((name, b"") if not name.endswith("/") else of_type(b"5", name) for name in names)))
    else:
        refusal(zip_of(*((name, b"") for name in names)))


def test_bombs_are_refused_while_they_expand() -> None:
    """What headers say does not count; a gzip bomb, a zip bomb, a large pax header, much after the end."""
    limits = Limits(1 << 20, 100)
    assert "expands to more" in refusal(gzip.compress(bytes(50 << 20)), limits)
    assert "expands to more" in refusal(gzip.compress(tar_of(("a", bytes(2 << 20)))), limits)
    assert "expands to more" in refusal(zip_of(("a", bytes(600_000)), ("b", bytes(600_000))), limits)
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "x" * (2 << 20)}
    assert "expands to more" in refusal(gzip.compress(tar_of(info)), limits)
    assert "expands to more" in refusal(gzip.compress(tar_of(("a", b"")) + bytes(2 << 20)), limits)


def test_a_zip_that_lies_about_a_size_is_refused() -> None:
    """Never more is expanded than it says; and then the checksum is wrong."""
    data = bytearray(zip_of(("a", bytes(900_000))))
    start = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, start + 24, 10)
    refusal(bytes(data))


def test_overlapping_entries_of_a_zip_are_refused() -> None:
    """Two entries of the central directory for one compressed stream: how 40 kB become 5 GB."""
    data = zip_of(("a", bytes(100_000)), ("b", b"1"))
    first, second = data.index(b"PK\1\2"), data.rindex(b"PK\1\2")
    forged = bytearray(data)
    forged[second + 42 : second + 46] = forged[first + 42 : first + 46]
    assert "overlap" in refusal(bytes(forged))


def test_too_many_entries_are_refused() -> None:
    """Directories count, and so do those that say nothing."""
    names = [(f"{number}", b"") for number in range(101)]
    assert "more than 100 entries" in refusal(tar_of(*names))
    assert "more than 100 entries" in refusal(zip_of(*names))
    assert "more than 100 entries" in refusal(tar_of(*(of_type(b"5", "./") for _ in range(101))))


def test_other_compressions_and_encryption_are_refused() -> None:
    """Only deflate has a bound on what it makes of a byte."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("a", b"1")
    assert "another way" in refusal(buffer.getvalue())
    data = bytearray(zip_of(("a", b"1")))
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + place] |= 1
    assert "encrypted" in refusal(bytes(data))


def test_what_is_cut_off_is_refused() -> None:
    """Wherever a gzipped tar or a zip is cut, the whole is refused."""
    for data in (gzip.compress(tar_of(*FILES)), zip_of(*FILES)):
        for end in range(1, len(data), 37):
            refusal(data[:end])


def test_no_damage_is_anything_but_a_refusal() -> None:
    """Bytes changed, cut, doubled or made up: what comes is entries within the limits, or BadArchive. 3,000 tries."""
    chance = random.Random(4)
    seeds = [tar_of(*FILES), gzip.compress(tar_of(*FILES)), zip_of(*FILES), tar_of(*FILES, form=tarfile.GNU_FORMAT)]
    seeds.append(zlib.compress(b"no archive"))
    for _ in range(3_000):
        data = bytearray(chance.choice(seeds)[: chance.choice((1_500, 1 << 20))])
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(min(len(data), 2_000)) if chance.random() < 0.7 else chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    data[place : place + 4] = chance.randbytes(4)
                case _:
                    data[place:place] = data[place : place + 40]
        try:
            found = [(it.path, len(b"".join(it.content or ()))) for it in entries(bytes(data), LIMITS)]
        except BadArchive:
            continue
        assert sum(size for _, size in found) <= LIMITS.size and len(found) <= LIMITS.entries
        for path, _ in found:
            assert clean_path(path) == path and ".." not in path.split("/") and not path.startswith("/")
