"""Private files, and the programs that pip installed."""

from pathlib import Path

import pytest

from handmesh.launcher.errors import NotInstalled
from handmesh.launcher.files import find_program, private_directory, read_strings, write_private, write_private_json


def test_a_private_file_is_its_owners_from_the_first_byte(tmp_path: Path) -> None:
    """File 0600 and folder 0700, also where both were open before; no draft is left."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    (folder / "key").touch(mode=0o644)
    write_private(folder / "key", b"new")
    assert (folder.stat().st_mode & 0o777, (folder / "key").stat().st_mode & 0o777) == (0o700, 0o600)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("key", b"new")]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the new content, never the old, and leaves no draft with half a secret."""
    write_private(tmp_path / "key", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "key", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("key", b"old")]


def test_what_is_no_object_of_strings_is_refused(tmp_path: Path) -> None:
    """A damaged credentials file is told with its path instead of being half used."""
    write_private_json(tmp_path / "good", {"user": "u"})
    assert read_strings(tmp_path / "good") == {"user": "u"}
    for content in (b"[]", b'{"user": 1}', b"{"):
        write_private(tmp_path / "bad", content)
        with pytest.raises(ValueError):
            read_strings(tmp_path / "bad")


def test_a_missing_program_is_told_with_its_package() -> None:
    """The error says what to install."""
    with pytest.raises(NotInstalled, match="pip install some-package"):
        find_program("no-such-program", "some-package")


def test_a_folder_is_closed_and_its_parents_are_left_alone(tmp_path: Path) -> None:
    """Only the folder itself changes its mode."""
    tmp_path.chmod(0o755)
    private_directory(tmp_path / "a")
    assert ((tmp_path / "a").stat().st_mode & 0o777, tmp_path.stat().st_mode & 0o777) == (0o700, 0o755)
