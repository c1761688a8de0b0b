"""The memory tool: the API's commands and words on memory stores, each command once, and nothing beyond the stores."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.harness.config import Config, MemoryStore
from services.harness.core import ToolResult
from services.harness.mesh.memory import MAX_TREE_FILES, NEEDS, SCHEMA, MemoryTools
from services.harness.mesh.memory_texts import MAX_LISTED, MAX_VIEW_CHARACTERS
from services.harness.mesh.tool import Asked
from services.harness.ports import Standing
from services.kit.errors import Conflict, Unauthenticated
from tests.support.harness_ports import MemoryLog
from tests.support.memories import TENANT, NearMemories

NOTES, SHARED = "/memories/notes", "/memories/shared"


class Desk:
    """A session with two stores, of which it may only read one."""

    def __init__(self, notes: str, shared: str, memories: NearMemories) -> None:
        self.notes, self.shared, self.memories = notes, shared, memories
        self.config = Config(
            memory_stores=(MemoryStore(notes, "notes"), MemoryStore(shared, "shared", True, "What all of us know."))
        )
        self.calls = 0

    async def ask(self, command: str, again: int = 0, **given: Any) -> ToolResult:
        """Runs a command; with `again` it is the execution of that number."""
        self.calls += 1
        asked = Asked(
            MemoryLog(),
            self.config,
            Standing(3, "grant"),
            "memory",
            {"command": command, **given},
            f"t{again or self.calls}",
        )
        return await MemoryTools(self.memories).execute(asked)

    async def said(self, command: str, again: int = 0, **given: Any) -> str:
        """Runs a command that has to work, and returns what it says."""
        result = await self.ask(command, again, **given)
        assert result.outcome == "OK", result.output
        return result.output

    async def wrong(self, command: str, again: int = 0, **given: Any) -> str:
        """Runs a command that must not work, and returns what the model is told."""
        result = await self.ask(command, again, **given)
        assert result.outcome == "TOOL_ERROR", result.output
        return result.output

    async def put(self, path: str, content: bytes, store: str = "") -> None:
        """Writes a file as somebody else does."""
        await self.memories.whole.write(store or self.notes, path, content, None, TENANT, "")

    async def content(self, path: str) -> bytes:
        """Reads a file of `notes`."""
        return (await self.memories.whole.read(self.notes, path, 0, TENANT))[1]

    async def paths(self) -> list[str]:
        """Lists the files of `notes`."""
        return [each.path for each in await self.memories.whole.list_files(self.notes, "", TENANT)]

    async def versions(self, path: str) -> int:
        """Counts a file's versions."""
        return len(await self.memories.whole.list_versions(self.notes, path, TENANT))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A fresh desk."""
    memories = NearMemories(MemoryLog().session_id)
    yield Desk(await memories.make(), await memories.make("shared"), memories)


def test_only_sessions_with_a_store_have_it() -> None:
    """The tool is the API's own; what its commands need is among what its schema knows."""
    tools = MemoryTools(NearMemories("sess"))
    assert tools.offered(Config(mesh_tools=("memory",))) == []
    (spec,) = tools.offered(Config(memory_stores=(MemoryStore("mem", "notes"),)))
    assert spec.definition() == {"type": "memory_20250818", "name": "memory"}
    assert json.loads(spec.schema) == SCHEMA
    assert {name for names in NEEDS.values() for name in names} <= set(SCHEMA["properties"])


async def test_the_root_shows_the_stores_and_what_they_are_for(desk: Desk) -> None:
    """Two levels deep, with sizes, without hidden files, and which of them may only be read."""
    await desk.put("a.md", b"x" * 1_536)
    await desk.put("deep/er/b.md", b"12")
    await desk.put(".hidden", b"1")
    await desk.put("all.md", b"", desk.shared)
    assert await desk.said("view", path="/memories") == (
        "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items:\n"
        "1.5K\t/memories\n"
        "1.5K\t/memories/notes/\n"
        "1.5K\t/memories/notes/a.md\n"
        "2B\t/memories/notes/deep/\n"
        "0B\t/memories/shared/\n"
        "0B\t/memories/shared/all.md\n"
        "\n"
        "What these directories are for:\n"
        "/memories/notes: no description\n"
        "/memories/shared (read-only): What all of us know."
    )
    assert "2B\t/memories/notes/deep/er/b.md" in await desk.said("view", path=f"{NOTES}/deep/")


async def test_a_file_is_shown_with_line_numbers(desk: Desk) -> None:
    """Whole or a range of lines, as the API's reference implementation shows it."""
    await desk.put("a.md", b"one\ntwo\nthree")
    head = f"Here's the content of {NOTES}/a.md with line numbers:\n"
    assert await desk.said("view", path=f"{NOTES}/a.md") == head + "     1\tone\n     2\ttwo\n     3\tthree"
    assert await desk.said("view", path=f"{NOTES}/a.md", view_range=[2, -1]) == head + "     2\ttwo\n     3\tthree"
    for wrong in ([0, 2], [4, 5], [3, 2]):
        assert "The file has 3 lines" in await desk.wrong("view", path=f"{NOTES}/a.md", view_range=wrong)
    await desk.put("a.png", b"\xff\xd8")
    assert "Unsupported file type" in await desk.wrong("view", path=f"{NOTES}/a.png")


async def test_a_long_file_says_where_to_go_on(desk: Desk) -> None:
    """One answer is bounded, and names the range of the rest; going on brings all of it."""
    lines = [f"line {number} " + "x" * 90 for number in range(2_500)]
    await desk.put("long.md", "\n".join(lines).encode())
    start, seen = 1, 0
    while True:
        said = await desk.said("view", path=f"{NOTES}/long.md", view_range=[start, -1])
        assert len(said) < MAX_VIEW_CHARACTERS + 300
        *shown, last = said.split("\n")[1:]
        if "are not shown" not in last:
            break
        seen += len(shown)
        start = int(last.rpartition("[")[2].partition(",")[0])
    assert seen + len(shown) + 1 == len(lines)


async def test_a_long_listing_says_what_it_leaves_out(desk: Desk) -> None:
    """No answer grows without end."""
    for number in range(MAX_LISTED + 2):
        await desk.put(f"f{number}", b"")
    said = await desk.said("view", path=NOTES)
    assert said.count("\n") == MAX_LISTED + 2
    assert said.endswith("[2 more are not shown: view a directory further down.]")


async def test_editing(desk: Desk) -> None:
    """Create, replace and insert, with the words and the results of the API's reference implementation."""
    assert await desk.said("create", path=f"{NOTES}/a.md", file_text="one\ntwo\n") == (
        f"File created successfully at: {NOTES}/a.md"
    )
    assert await desk.wrong("create", path=f"{NOTES}/a.md", file_text="x") == f"File {NOTES}/a.md already exists"
    assert await desk.said("str_replace", path=f"{NOTES}/a.md", old_str="two", new_str="2\n3") == (
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        "     1\tone\n     2\t2\n     3\t3\n     4\t"
    )
    assert await desk.said("insert", path=f"{NOTES}/a.md", insert_line=0, insert_text="zero\n") == (
        f"The file {NOTES}/a.md has been edited."
    )
    assert await desk.content("a.md") == b"zero\none\n2\n3\n"
    assert "within the range [0, 4]" in await desk.wrong("insert", path=f"{NOTES}/a.md", insert_line=5, insert_text="x")
    assert "did not appear verbatim" in await desk.wrong("str_replace", path=f"{NOTES}/a.md", old_str="x", new_str="y")
    assert "did not appear verbatim" in await desk.wrong("str_replace", path=f"{NOTES}/a.md", old_str="", new_str="y")
    told = await desk.wrong("str_replace", path=f"{NOTES}/a.md", old_str="e", new_str="y")
    assert "Multiple occurrences of old_str `e` in lines: 1, 2" in told
    for command, more in (
        ("str_replace", {"old_str": "a", "new_str": "b"}),
        ("insert", {"insert_line": 0, "insert_text": "x"}),
    ):
        assert "does not exist" in await desk.wrong(command, path=f"{NOTES}/none.md", **more)


async def test_deleting_and_renaming(desk: Desk) -> None:
    """Files and whole directories, also from one store to another."""
    for path in ("a/1", "a/2", "ab", "b"):
        await desk.put(path, path.encode())
    assert await desk.said("rename", old_path=f"{NOTES}/a", new_path=f"{NOTES}/c/d") == (
        f"Successfully renamed {NOTES}/a to {NOTES}/c/d"
    )
    assert await desk.paths() == ["ab", "b", "c/d/1", "c/d/2"]
    assert await desk.content("c/d/1") == b"a/1"
    assert "already exists" in await desk.wrong("rename", old_path=f"{NOTES}/b", new_path=f"{NOTES}/ab")
    assert "is a file, not a directory" in await desk.wrong("rename", old_path=f"{NOTES}/b", new_path=f"{NOTES}/ab/x")
    assert "lies in itself" in await desk.wrong("rename", old_path=f"{NOTES}/c", new_path=f"{NOTES}/c/x")
    assert "does not exist" in await desk.wrong("rename", old_path=f"{NOTES}/z", new_path=f"{NOTES}/y")
    assert await desk.said("delete", path=f"{NOTES}/c") == f"Successfully deleted {NOTES}/c"
    assert "does not exist" in await desk.wrong("delete", path=f"{NOTES}/c")
    assert await desk.paths() == ["ab", "b"]


async def test_a_directory_is_no_file(desk: Desk) -> None:
    """And no file a directory, whatever the store itself would take: a mount of it has to be one or the other."""
    await desk.put("a/b", b"x")
    assert "already exists" in await desk.wrong("create", path=f"{NOTES}/a", file_text="x")
    assert "is a file, not a directory" in await desk.wrong("create", path=f"{NOTES}/a/b/c", file_text="x")
    assert "is not a file" in await desk.wrong("insert", path=f"{NOTES}/a", insert_line=0, insert_text="x")
    assert await desk.paths() == ["a/b"]


OUTSIDE = [
    ("/etc/passwd", "must start with /memories"),
    ("notes/a", "must start with /memories"),
    ("/memoriesx", "must start with /memories"),
    ("/memories/../etc", "would escape"),
    ("/memories/notes/../shared/a", "would escape"),
    ("/memories/notes/a/..", "would escape"),
    ("/memories//etc", "empty part"),
    ("/memories/notes/./a", "empty part"),
    ("/memories/other/a", "does not exist"),
    ("/memories/notes/a\\..\\b", "backslash"),
    ("/memories/notes/a\x00b", "control"),
    ("/memories/notes/" + "x" * 600, "512 bytes"),
    ("/memories/notes/e\u0301", "normal form"),
]


@pytest.mark.parametrize(("path", "why"), OUTSIDE, ids=[ascii(path)[:40] for path, _ in OUTSIDE])
async def test_no_path_leads_elsewhere(desk: Desk, path: str, why: str) -> None:
    """A path that leaves the stores is refused by every command, and nothing comes of it."""
    await desk.put("a", b"x")
    await desk.put("secret", b"x", desk.shared)
    commands: list[dict[str, Any]] = [
        {"command": "create", "path": path, "file_text": "x"},
        {"command": "rename", "old_path": f"{NOTES}/a", "new_path": path},
    ]
    if not why.startswith(("backslash", "control", "512", "normal")):  # such a file is only not there
        commands += [{"command": "view", "path": path}, {"command": "delete", "path": path}]
        commands += [{"command": "rename", "old_path": path, "new_path": f"{NOTES}/b"}]
    for given in commands:
        assert why in await desk.wrong(**given)
    assert await desk.paths() == ["a"]


async def test_the_directories_themselves_stay(desk: Desk) -> None:
    """A store is not made, removed or renamed by a model."""
    for path in ("/memories", "/memories/", NOTES, f"{NOTES}/"):
        assert "itself" in await desk.wrong("delete", path=path)
        assert "itself" in await desk.wrong("create", path=path, file_text="x")
        assert "itself" in await desk.wrong("rename", old_path=path, new_path=f"{NOTES}/x")


async def test_what_may_only_be_read_is_not_written(desk: Desk) -> None:
    """By no command, and moving out of it is a deletion there."""
    await desk.put("a", b"x", desk.shared)
    await desk.put("b", b"x")
    assert "\tx" in await desk.said("view", path=f"{SHARED}/a")
    for given in (
        {"command": "create", "path": f"{SHARED}/b", "file_text": "x"},
        {"command": "str_replace", "path": f"{SHARED}/a", "old_str": "x", "new_str": "y"},
        {"command": "insert", "path": f"{SHARED}/a", "insert_line": 0, "insert_text": "y"},
        {"command": "delete", "path": f"{SHARED}/a"},
        {"command": "rename", "old_path": f"{SHARED}/a", "new_path": f"{NOTES}/a"},
        {"command": "rename", "old_path": f"{NOTES}/b", "new_path": f"{SHARED}/b"},
    ):
        assert await desk.wrong(**given) == f"The directory {SHARED} is read-only."


async def test_what_others_change_meanwhile_is_told(desk: Desk) -> None:
    """Nothing of theirs is lost: the model reads again, and decides again."""
    await desk.put("a", b"one")

    async def meanwhile() -> None:
        await desk.put("a", b"one of theirs")

    desk.memories.before_write = meanwhile
    told = await desk.wrong("str_replace", path=f"{NOTES}/a", old_str="one", new_str="two")
    assert told == f"The file {NOTES}/a was changed by somebody else meanwhile: nothing was written. View it again."
    assert await desk.content("a") == b"one of theirs"
    desk.memories.before_write = None
    await desk.said("str_replace", path=f"{NOTES}/a", old_str="one", new_str="two")
    assert await desk.content("a") == b"two of theirs"


@pytest.mark.parametrize("later", [False, True], ids=["at once", "after others wrote"])
async def test_a_command_that_is_sent_again_changes_nothing_again(desk: Desk, later: bool) -> None:
    """A harness that died with the result in its hand: the next one's call says the same, and is no second change."""
    await desk.put("a", b"x\nx2")
    await desk.put("d/1", b"1")
    await desk.put("d/2", b"2")
    calls: list[dict[str, Any]] = [
        {"command": "create", "path": f"{NOTES}/new", "file_text": "n"},
        {"command": "str_replace", "path": f"{NOTES}/a", "old_str": "2", "new_str": "22"},
        {"command": "insert", "path": f"{NOTES}/a", "insert_line": 0, "insert_text": "y"},
        {"command": "rename", "old_path": f"{NOTES}/d", "new_path": f"{NOTES}/e"},
        {"command": "delete", "path": f"{NOTES}/e"},
    ]
    for number, given in enumerate(calls, 100):
        said = await desk.said(again=number, **given)
        if later:
            for path in ("a", "new"):
                await desk.put(path, b"of others")
        before = {path: await desk.versions(path) for path in await desk.paths()}
        again = await desk.said(again=number, **given)
        assert again.partition("\n")[0].startswith(said.partition(" Here is")[0])
        assert {path: await desk.versions(path) for path in await desk.paths()} == before
        if later:
            await desk.put("a", b"x\nx2")  # for the next command


@pytest.mark.parametrize("command", ["rename", "delete"])
@pytest.mark.parametrize("steps", range(1, 6))
async def test_a_directory_that_was_half_done_is_done_to_its_end(desk: Desk, command: str, steps: int) -> None:
    """However many of its files were moved or deleted when the harness died, each is so once in the end."""
    for number in range(3):
        await desk.put(f"d/{number}", b"%d" % number)
    given = {"path": f"{NOTES}/d"} if command == "delete" else {"old_path": f"{NOTES}/d", "new_path": f"{NOTES}/e"}
    left = steps

    async def die() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Unauthenticated("GRANT_INVALID", "dead")

    desk.memories.before_write = die
    try:
        await desk.ask(command, 7, **given)
    except Unauthenticated:
        pass
    desk.memories.before_write = None
    await desk.said(command, 7, **given)
    assert await desk.paths() == ([] if command == "delete" else ["e/0", "e/1", "e/2"])
    assert [await desk.versions(f"d/{number}") for number in range(3)] == [2, 2, 2]
    if command == "rename":
        assert [(await desk.content(f"e/{number}"), await desk.versions(f"e/{number}")) for number in range(3)] == [
            (b"%d" % number, 1) for number in range(3)
        ]


async def test_limits_are_told(desk: Desk) -> None:
    """A file over the limit, and more files than one call takes."""
    assert "1048576 bytes" in await desk.wrong("create", path=f"{NOTES}/big", file_text="x" * (1 << 20) + "x")
    for number in range(MAX_TREE_FILES + 1):
        await desk.put(f"d/{number}", b"")
    assert f"one call takes {MAX_TREE_FILES}" in await desk.wrong("delete", path=f"{NOTES}/d")


async def test_a_store_that_is_gone_is_told(desk: Desk) -> None:
    """Deleted by its owner while the session runs: an answer for the model, not a failure of the session."""
    await desk.memories.whole.delete_store(desk.notes, TENANT)
    assert await desk.wrong("view", path=NOTES) == "No such memory store."
    assert await desk.wrong("create", path=f"{NOTES}/a", file_text="x") == "No such memory store."


@pytest.mark.parametrize("command", list(NEEDS))
async def test_a_command_says_what_it_needs(desk: Desk, command: str) -> None:
    """Which fields go with which command the schema cannot say in a form that every API takes."""
    told = await desk.wrong(command)
    assert told == f"The command {command} needs {' and '.join(NEEDS[command])}."


async def test_a_fenced_harness_is_no_answer_for_the_model(desk: Desk) -> None:
    """A stale epoch or a void grant is raised: the call is the next harness's."""

    async def fenced() -> None:
        raise Conflict("EPOCH_STALE", "a newer harness")

    desk.memories.before_write = fenced
    with pytest.raises(Conflict):
        await desk.ask("create", path=f"{NOTES}/a", file_text="x")
