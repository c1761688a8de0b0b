"""What a tool has made of its workspace can be removed."""

from __future__ import annotations

import os
from pathlib import Path

from services.sandbox.removal import remove_tree


def test_any_tree_can_be_removed(tmp_path: Path) -> None:
    """Deeper than a path can be, locked, with the names that the removal would use; what links point to stays."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    folder = tmp_path / "box"
    (folder / ".removed-0" / ".removed-1").mkdir(parents=True)
    (folder / ".removed-2").symlink_to(tmp_path / "kept")
    os.mkfifo(folder / "fifo")
    here = os.open(".", os.O_PATH)
    try:
        os.chdir(folder)
        for number in range(2_000):  # deeper than Python's stack, too
            name = f"{number:0100}"
            Path(name).mkdir()
            os.chdir(name)
            Path("link").symlink_to(tmp_path / "kept")
        Path("locked").mkdir(0)
    finally:
        os.fchdir(here)
        os.close(here)
    remove_tree(folder)
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"] and (tmp_path / "kept" / "file").exists()
