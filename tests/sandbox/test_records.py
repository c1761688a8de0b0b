"""What is kept of sandboxes on the disk."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from services.kit.ids import mint
from services.sandbox.hand import Labels, SandboxInfo
from services.sandbox.records import Records, finished


def _info(request_id: str = "", create_time: float = 1.0) -> SandboxInfo:
    labels = Labels(mint("sbx"), "default", create_time, "sess", "hand", request_id, 1)
    return SandboxInfo(labels, "bubblewrap", ("bash", "read"), 60.0)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    """By id, by request and in the list, for another object over the same folder."""
    records = Records(tmp_path / "sandboxes")
    record = records.create(_info("sess/hand/1"))
    record = records.save(finished(replace(record, facts={"pid": 7, "boot": "x"}), ("disk",)))
    again = Records(tmp_path / "sandboxes")
    assert again.get(record.sandbox_id) == again.by_request("sess/hand/1") == record
    assert again.all() == [record] and record.ready and record.info.unenforced_limits == ("disk",)
    assert again.get(mint("sbx")) is None and again.by_request("sess/hand/2") is None


def test_a_record_is_what_was_saved_last(tmp_path: Path) -> None:
    """Shorter than before, longer, or longer than a page; nothing is left beside it."""
    records = Records(tmp_path)
    record = records.create(_info())
    for length in (1_000, 10, 2_000, 9_000, 1, 5_000, 0):
        record = records.save(replace(record, facts={"x": "y" * length}))
        assert Records(tmp_path).get(record.sandbox_id) == record
    assert sorted(path.name for path in record.folder.iterdir()) == ["door", "sandbox.json"]


def test_records_are_listed_oldest_first(tmp_path: Path) -> None:
    """By the time of their making, whatever their ids."""
    records = Records(tmp_path)
    made = [records.create(_info(create_time=moment)) for moment in (3.0, 1.0, 2.0)]
    assert [record.sandbox_id for record in records.all()] == [
        made[1].sandbox_id,
        made[2].sandbox_id,
        made[0].sandbox_id,
    ]


def test_a_folder_without_a_record_is_unfinished(tmp_path: Path) -> None:
    """A crash at the very start leaves a folder, which is found and removed."""
    records = Records(tmp_path)
    kept = records.create(_info())
    (tmp_path / "sbx_x").mkdir()
    assert records.unfinished() == [tmp_path / "sbx_x"]
    records.remove(tmp_path / "sbx_x")
    records.remove(tmp_path / "sbx_x")
    assert records.unfinished() == [] and records.all() == [kept]


def test_nobody_else_may_look_in(tmp_path: Path) -> None:
    """Folders are the service's alone."""
    record = Records(tmp_path / "a").create(_info())
    assert [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "a", record.folder, record.door)] == ["0o700"] * 3


def test_importing_the_service_is_lean() -> None:
    """Neither the Docker SDK nor a backend is imported before it is used."""
    script = """
import services.sandbox.__main__, sys
print([name for name in sys.modules if name.startswith(("docker", "services.sandbox.hands."))])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
