"""Memory stores in sandboxes: what tools change gets to the store, and nobody's change is lost."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from services.kit.errors import Conflict, Gone, Invalid, Unavailable
from services.kit.ids import mint
from services.sandbox.backends import Backends
from services.sandbox.doorman import Doorman
from services.sandbox.environments import BUILT_IN
from services.sandbox.hand import HandSettings
from services.sandbox.mounts import Mount, Mounts
from services.sandbox.owners import Owners
from services.sandbox.owners_core import Goal
from services.sandbox.owners_records import OwnerRecords
from services.sandbox.resources import Blob, Resources
from services.sandbox.sandboxes import Call, Sandboxes, Wanted
from services.sandbox.session import Memory, Whose
from tests.support.git import planting
from tests.support.owners import MemoryLogs

STORE, SESSION = mint("mem"), mint("sess")
NOTES = "/workspace/notes"


class Kept:
    """A session service that keeps everything here, for one tenant."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.away = False
        self.writes = 0

    async def tenant_of(self, session_id: str) -> str:
        return "default"

    async def download(self, whose: Whose, blob_id: str) -> AsyncGenerator[bytes, None]:
        if whose.tenant != "default" or blob_id not in self.blobs:
            raise Gone("BLOB_NOT_FOUND", "no such blob", blob_id=blob_id)
        for start in range(0, len(self.blobs[blob_id]), 100_000):
            yield self.blobs[blob_id][start : start + 100_000]

    async def upload(self, whose: Whose, content: AsyncIterator[bytes], media_type: str) -> str:
        blob_id = mint("blob")
        self.blobs[blob_id] = b"".join([piece async for piece in content])
        return blob_id

    async def memories(self, whose: Whose, store_id: str) -> list[Memory]:
        self._check(whose, store_id)
        return [Memory(path, sha(content), len(content)) for path, content in sorted(self.files.items())]

    async def read_memory(self, whose: Whose, store_id: str, path: str) -> tuple[Memory, bytes]:
        self._check(whose, store_id)
        if path not in self.files:
            raise Gone("MEMORY_NOT_FOUND", "no such file")
        return Memory(path, sha(self.files[path]), len(self.files[path])), self.files[path]

    async def write_memory(self, whose: Whose, store_id: str, path: str, content: bytes, expected: str) -> str:
        self._check(whose, store_id)
        if "\\" in path:
            raise Invalid("ARGUMENT_INVALID", "a path has no backslash")
        self._expect(path, expected)
        self.files[path] = content
        self.writes += 1
        return sha(content)

    async def delete_memory(self, whose: Whose, store_id: str, path: str, expected: str) -> None:
        self._check(whose, store_id)
        self._expect(path, expected)
        del self.files[path]

    def _check(self, whose: Whose, store_id: str) -> None:
        if self.away:
            raise Unavailable("SESSION_UNAVAILABLE", "it is away")
        if (whose.tenant, store_id) != ("default", STORE):
            raise Gone("MEMORY_NOT_FOUND", "no such memory store")

    def _expect(self, path: str, expected: str) -> None:
        now = sha(self.files[path]) if path in self.files else ""
        if now != expected:
            raise Conflict("MEMORY_CONFLICT", "the file's content is another", sha256=now)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Stand:
    """The service over processes and a kept session service."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.session = folder, Kept()
        self.session.files = {"a": b"1", "deep/b c": b"2"}
        self.open()

    def open(self) -> None:
        self.backends = Backends(HandSettings(self.folder, allow_unisolated=True))
        self.resources = Resources(self.session, Mounts(self.folder / "mounts"))
        self.sandboxes = Sandboxes(self.backends, BUILT_IN, None, self.resources, planting=planting(self.folder))

    async def mounted(self, read_only: bool = False, **given: str) -> str:
        wanted = Wanted("process", SESSION, resources=(Mount(NOTES, STORE, read_only),), **given)  # type: ignore[arg-type]
        return (await self.sandboxes.provision(wanted)).labels.sandbox_id

    async def bash(self, sandbox_id: str, command: str) -> str:
        result = await self.sandboxes.execute(Call(sandbox_id, "bash", f'{{"command": "{command}"}}'))
        return result.text


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A stand whose sandboxes are released at the end."""
    it = Stand(tmp_path / "state")
    yield it
    it.session.away = False
    for info in await it.sandboxes.living(""):
        await it.sandboxes.release(info.labels.sandbox_id)
    await it.backends.close()


async def test_a_mount_has_the_store_and_changes_go_back(stand: Stand) -> None:
    """New, changed and deleted files, before the result is returned; what did not change is not written."""
    id = await stand.mounted()
    said = await stand.bash(id, "cat notes/a 'notes/deep/b c'; echo 3 > notes/new; echo 4 > notes/a; rm -r notes/deep")
    assert said == "12"
    assert stand.session.files == {"a": b"4\n", "new": b"3\n"}
    writes = stand.session.writes
    await stand.bash(id, "touch notes/a; echo x > elsewhere")
    assert stand.session.writes == writes


async def test_a_read_only_mount_never_writes_to_the_store(stand: Stand) -> None:
    """Its files say so, and whatever a tool does to them stays in the sandbox."""
    id = await stand.mounted(read_only=True)
    assert await stand.bash(id, "stat -c %a notes/a; chmod 666 notes/a; echo 9 > notes/a; echo 9 > notes/new") == "444"
    await stand.sandboxes.release(id)
    assert stand.session.files == {"a": b"1", "deep/b c": b"2"}


async def test_both_versions_of_a_conflict_are_kept(stand: Stand) -> None:
    """The store's under its name, the sandbox's beside it, in both places; the model is told."""
    id = await stand.mounted()
    stand.session.files["a"] = b"theirs"
    said = await stand.bash(id, "echo mine > notes/a")
    assert said.splitlines()[1:] == [
        f"[{NOTES}/a was changed by somebody else meanwhile: it has their version now, and yours is in "
        f"{NOTES}/a.conflict-1]"
    ]
    assert stand.session.files == {"a": b"theirs", "a.conflict-1": b"mine\n", "deep/b c": b"2"}
    assert await stand.bash(id, "cat notes/a notes/a.conflict-1") == "theirsmine"
    stand.session.files["a"] = b"theirs again"
    await stand.bash(id, "echo mine2 > notes/a")
    assert stand.session.files["a.conflict-2"] == b"mine2\n"


async def test_deleting_never_wins_over_a_change(stand: Stand) -> None:
    """Deleted here and changed there: it is back. Deleted there and changed here: it is there again."""
    id = await stand.mounted()
    stand.session.files["a"] = b"theirs"
    assert "it is not deleted" in await stand.bash(id, "rm notes/a")
    assert await stand.bash(id, "cat notes/a") == "theirs"
    del stand.session.files["a"]
    assert "had been deleted" in await stand.bash(id, "echo mine > notes/a")
    assert stand.session.files["a"] == b"mine\n"


async def test_the_same_change_on_both_sides_is_none(stand: Stand) -> None:
    """Also what a sync that was cut off had written already."""
    id = await stand.mounted()
    stand.session.files["a"] = b"same\n"
    assert await stand.bash(id, "echo same > notes/a") == "(no output)"


async def test_what_cannot_be_saved_is_said(stand: Stand) -> None:
    """Too large, or a name that no memory has: the rest is saved, and the model is told which is not."""
    id = await stand.mounted()
    said = await stand.bash(id, "head -c 1100000 /dev/zero > notes/big; echo 1 > 'notes/x\\\\\\\\y'; echo 2 > notes/z")
    assert "big is not saved" in said and "y is not saved" in said
    assert stand.session.files["z"] == b"2\n"


async def test_changes_wait_for_a_session_service_that_is_away(stand: Stand) -> None:
    """The result is returned with a word about it; the next call or the release writes what is left."""
    id = await stand.mounted()
    stand.session.away = True
    assert "not saved yet (SESSION_UNAVAILABLE)" in await stand.bash(id, "echo 4 > notes/a")
    stand.session.away = False
    await stand.bash(id, "true")
    assert stand.session.files["a"] == b"4\n"
    stand.session.away = True
    await stand.bash(id, "echo 5 > notes/a")
    stand.session.away = False
    await stand.sandboxes.release(id)
    assert stand.session.files["a"] == b"5\n"
    assert list((stand.folder / "mounts").iterdir()) == []


async def test_mounts_outlive_the_service(stand: Stand) -> None:
    """A service that starts again over the state goes on where the other one was."""
    id = await stand.mounted(request_id="sess/main/1")
    await stand.bash(id, "echo 4 > notes/a")
    stand.open()
    assert await stand.mounted(request_id="sess/main/1") == id  # mounted once
    assert await stand.bash(id, "echo 5 > notes/a; rm -r notes/deep") == "(no output)"
    assert stand.session.files == {"a": b"5\n"}


async def test_a_hand_that_changes_its_owner_takes_no_mount_along(stand: Stand) -> None:
    """What is left to write is written for the old session, or the hand stays; then the files are plain ones."""
    sandbox_id = await stand.mounted()
    stand.session.away = True
    await stand.bash(sandbox_id, "echo late > notes/a")
    records = OwnerRecords(stand.backends, MemoryLogs())
    owners = Owners(records, stand.resources, Doorman(BUILT_IN))
    with pytest.raises(Unavailable):
        await owners.transfer(sandbox_id, Goal(mint("sess"), "box"), 1, 0.0)
    assert (await stand.sandboxes.found(sandbox_id)).labels.session_id == SESSION
    stand.session.away = False
    await owners.resume()
    assert (await stand.sandboxes.found(sandbox_id)).labels.generation == 2
    assert (stand.session.files["a"], stand.resources.has_mounts(sandbox_id)) == (b"late\n", False)
    writes = stand.session.writes
    assert await stand.bash(sandbox_id, "cat notes/a; echo mine > notes/a") == "late"
    assert stand.session.writes == writes


async def test_a_store_that_is_not_the_callers_is_not_mounted(stand: Stand) -> None:
    """Another tenant's store is not there; no sandbox is made."""
    wanted = Wanted("process", SESSION, resources=(Mount(NOTES, STORE, True),))
    with pytest.raises(Gone, match="MEMORY_NOT_FOUND"):
        await stand.sandboxes.provision(wanted, "another")
    assert await stand.sandboxes.living("") == []


async def test_a_blob_becomes_a_file(stand: Stand) -> None:
    """Large ones too; of a session only; one that is not there makes no sandbox."""
    blob_id = mint("blob")
    stand.session.blobs[blob_id] = bytes(range(256)) * 20_000
    blob = Blob("/workspace/in/data", blob_id, 0o755)
    id = (await stand.sandboxes.provision(Wanted("process", SESSION, resources=(blob,)))).labels.sandbox_id
    said = await stand.bash(id, "stat -c '%s %a' in/data; sha256sum < in/data")
    assert said == f"5120000 755\n{sha(stand.session.blobs[blob_id])}  -"
    for wanted, reason in (
        (Wanted("process", "", resources=(blob,)), "ARGUMENT_INVALID"),
        (Wanted("process", SESSION, resources=(Blob("/workspace/x", mint("blob")),)), "BLOB_NOT_FOUND"),
    ):
        with pytest.raises((Gone, Invalid), match=reason):
            await stand.sandboxes.provision(wanted, "default")
    assert len(await stand.sandboxes.living("")) == 1


async def test_a_checkpoint_makes_the_workspace_again(stand: Stand) -> None:
    """In a new sandbox, with new resources on top; memory stores are mounted anew and not brought back."""
    id = await stand.mounted()
    await stand.bash(
        id, "mkdir -p src; echo 1 > src/a; ln -s a src/b; printf '#!/bin/sh\\necho ran' > run; chmod +x run"
    )
    kept = await stand.sandboxes.checkpoint(id, 0)
    del stand.session.files["deep/b c"]
    other = await stand.mounted(checkpoint_id=kept)
    assert await stand.bash(other, "./run; cat src/b; ls notes") == "ran\n1\na"
    assert stand.session.files == {"a": b"1"}
    alone = (await stand.sandboxes.provision(Wanted("process"))).labels.sandbox_id
    with pytest.raises(Invalid, match="no owner"):
        await stand.sandboxes.checkpoint(alone, 0)


async def test_an_older_harness_neither_puts_nor_checkpoints(stand: Stand) -> None:
    """Both are fenced by the epoch, as executions are."""
    id = await stand.mounted()
    await stand.sandboxes.put(id, [], 7)
    for call in (stand.sandboxes.put(id, [Mount("/workspace/m", STORE, True)], 6), stand.sandboxes.checkpoint(id, 6)):
        with pytest.raises(Conflict, match="EPOCH_STALE"):
            await call
    await stand.sandboxes.put(id, [Mount("/workspace/m", STORE, True)], 7)
    assert await stand.bash(id, "cat m/a") == "1"
