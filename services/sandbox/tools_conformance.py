"""What the tools of every hand do as users know it from the hosted product: numbered checks, as in `conformance`.

The words are those of `agent_toolset_20260401`: names, input fields, and what is said when something fails.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from services.sandbox.conformance import PNG, Stand
from services.sandbox.hand import ENV, File, Outcome

BEGUN_PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"


class Box:
    """A sandbox, and what its tools say."""

    def __init__(self, stand: Stand, sandbox: str, root: str = "") -> None:
        """Holds a sandbox of a stand. `root` is its workspace as tools name it."""
        self._stand = stand
        self.sandbox = sandbox
        self.root = root

    async def ok(self, name: str, **given: Any) -> str:
        """Returns what a tool says that must do as asked."""
        result = await self._stand.run(self.sandbox, name, **given)
        assert result.outcome is Outcome.OK, result
        return result.text

    async def no(self, name: str, **given: Any) -> str:
        """Returns what a tool says that must fail."""
        result = await self._stand.run(self.sandbox, name, **given)
        assert result.outcome is Outcome.TOOL_ERROR, result
        return result.text

    async def found(self, name: str, **given: Any) -> list[str]:
        """Returns the lines of a search, with paths from the workspace on."""
        return [line.replace(f"{self.root}/", "") for line in (await self.ok(name, **given)).splitlines()]

    async def sh(self, command: str) -> str:
        """Returns what a command prints."""
        return (await self._stand.bash(self.sandbox, command)).text


async def box(stand: Stand, *files: File) -> Box:
    """Makes a sandbox with files in it."""
    sandbox = await stand.id(files=files)
    return Box(stand, sandbox, (await stand.bash(sandbox, "pwd -P")).text)


async def check_01_read_says_what_is_there(stand: Stand) -> None:
    """Text without line numbers; a range has both its ends, no line end behind it, and may start before the first."""
    it = await box(stand, File("/workspace/a", "one\ntwo é\nthree\n".encode()), File("/workspace/empty", b""))
    assert await it.ok("read", file_path="a") == "one\ntwo é\nthree\n"
    assert await it.ok("read", file_path=f"{it.root}/../{it.root.rsplit('/', 1)[-1]}/a") == "one\ntwo é\nthree\n"
    assert await it.ok("read", file_path="a", view_range=[2, 2]) == "two é"
    assert await it.ok("read", file_path="a", view_range=[0, 2]) == "one\ntwo é"
    assert await it.ok("read", file_path="a", view_range=[3, 99]) == "three\n"
    for last in (0, -1):
        assert await it.ok("read", file_path="a", view_range=[2, last]) == "two é\nthree\n"
    assert await it.no("read", file_path="a", view_range=[4, 5]) == "read: a has only 3 lines"
    assert "[3, 2] is empty" in await it.no("read", file_path="a", view_range=[3, 2])
    assert await it.ok("read", file_path="empty") == "(the file is empty)"
    assert await it.no("read", file_path="b") == "read: b: no such file or directory"
    assert await it.no("read", file_path="a/b") == "read: a/b: not a directory"
    assert (await it.no("read", file_path=".")).startswith("read: .: is a directory")


async def check_02_read_of_what_is_large(stand: Stand) -> None:
    """A file over 256 KiB is read by ranges; a line that is longer is cut and counted as one line."""
    it = await box(stand)
    await it.sh("seq 100000 > many; { echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; } > long")
    said = await it.no("read", file_path="many")
    assert said.startswith("read: many is 588895 bytes, exceeds 262144-byte limit") and "view_range" in said
    assert await it.ok("read", file_path="many", view_range=[99999, 100000]) == "99999\n100000"
    assert "[... cut in line " in (await it.ok("read", file_path="many", view_range=[1, -1]))[-80:]
    cut = await it.ok("read", file_path="long", view_range=[1, -1])
    assert cut.startswith("first\nxxx") and cut.endswith("xxx\n[... cut in line 2: 262144 bytes is the most ...]")
    assert await it.ok("read", file_path="long", view_range=[3, 3]) == "last"


async def check_03_read_of_what_is_no_text(stand: Stand) -> None:
    """Other encodings lose no more than their odd bytes; binary files are refused; line ends stay."""
    it = await box(
        stand,
        File("/workspace/latin", b"caf\xe9\n"),
        File("/workspace/dos", b"a\r\nb\r\n"),
        File("/workspace/zeros", bytes(10)),
        File("/workspace/wide", "text".encode("utf-16")),
    )
    assert await it.ok("read", file_path="latin") == "caf\ufffd\n"
    assert await it.ok("read", file_path="dos") == "a\r\nb\r\n"
    assert await it.ok("read", file_path="dos", view_range=[1, 1]) == "a\r"
    assert await it.no("read", file_path="zeros") == "read: zeros: not a text file (10 bytes)"
    assert (await it.no("read", file_path="wide")).startswith("read: wide: not a text file")


async def check_04_pictures_and_documents_are_shown(stand: Stand) -> None:
    """By what they are, whatever their name; no larger than the model's API takes them; never by lines."""
    it = await box(stand, File("/workspace/a.txt", PNG), File("/workspace/b.pdf", BEGUN_PDF))
    for name, kind, media_type in (("a.txt", "image", "image/png"), ("b.pdf", "document", "application/pdf")):
        result = await stand.run(it.sandbox, "read", file_path=name)
        (block,) = json.loads(result.content_json)
        assert (block["type"], block["source"]["media_type"]) == (kind, media_type)
        assert await it.no("read", file_path=name, view_range=[1, 2]) == (
            "read: view_range is not supported for image/PDF files"
        )
    await it.sh("head -c 3932161 /dev/zero >> a.txt; head -c 5300000 /dev/zero >> b.pdf")
    assert "exceeds 3932160-byte limit for image/png files" in await it.no("read", file_path="a.txt")
    assert "exceeds 5242880-byte limit for application/pdf files" in await it.no("read", file_path="b.pdf")


async def check_05_edit_says_why_it_did_nothing(stand: Stand) -> None:
    """The words that models know: not found, appears N times. What fails leaves the file as it was."""
    it = await box(stand, File("/workspace/a", b"x = 1\nx = 1\n"))

    async def edit(old: str, new: str, **more: Any) -> str:
        return await it.no("edit", file_path="a", old_string=old, new_string=new, **more)

    assert (await edit("y", "z")).startswith("edit: old_string not found in a")
    assert (await edit("X = 1", "z")).startswith("edit: old_string not found in a")
    assert (await edit("x = 1", "z")).startswith("edit: old_string appears 2 times in a (must be unique")
    assert await edit("", "z") == "edit: old_string is empty"
    assert await edit("x", "x") == "edit: old_string and new_string are the same"
    assert await it.sh("cat a") == "x = 1\nx = 1"
    assert await it.no("edit", file_path="b", old_string="x", new_string="y") == ("edit: b: no such file or directory")
    assert await it.ok("edit", file_path="a", old_string="1\nx", new_string="1\ny") == "edited a (1 replacement)"
    assert await it.ok("edit", file_path="a", old_string="1", new_string="2", replace_all=True) == (
        "edited a (2 replacements)"
    )
    assert await it.ok("read", file_path="a") == "x = 2\ny = 2\n"


async def check_06_edit_keeps_what_it_does_not_name(stand: Stand) -> None:
    """Line ends of either kind, bytes that are no text, the mode, and links."""
    it = await box(stand, File("/workspace/dos", b"a\r\nb\r\nc\r\n"), File("/workspace/bytes", b"\xff\0old\xfe"))
    await it.sh("chmod 750 dos; ln -s dos link; ln bytes other")
    await it.ok("edit", file_path="link", old_string="a\nb", new_string="1\n2\n3")
    assert await it.sh("od -An -c dos | tr -d ' \\n'; stat -c %a dos; readlink link") == (
        "1\\r\\n2\\r\\n3\\r\\nc\\r\\n750\ndos"
    )
    await it.ok("edit", file_path="bytes", old_string="old", new_string="newer")
    assert await it.sh("od -An -c other | tr -d ' \\n'") == "377\\0newer376"


async def check_07_write_makes_a_whole_file(stand: Stand) -> None:
    """Directories are made; what is there keeps its mode; a link stays one, also when it leads nowhere yet."""
    it = await box(stand)
    assert await it.ok("write", file_path="a/b/c.sh", content="é\n") == "wrote 3 bytes to a/b/c.sh"
    await it.sh("chmod 755 a/b/c.sh; ln -s b/c.sh a/link; ln -s b/later a/dangling")
    await it.ok("write", file_path="a/link", content="two\n")
    await it.ok("write", file_path="a/dangling", content="three\n")
    assert await it.sh("cat a/b/c.sh a/b/later; stat -c %a a/b/c.sh a/b/later; find a -type l | sort") == (
        "two\nthree\n755\n644\na/dangling\na/link"
    )
    await it.ok("write", file_path="empty", content="")
    assert await it.sh("stat -c %s empty; ls -A") == "0\na\nempty\noutputs"
    assert await it.no("write", file_path="empty/x", content="") == "write: empty/x: not a directory"
    assert (await it.no("write", file_path="a", content="")).startswith("write: a: is a directory")


async def check_08_what_may_not_be_touched_stays(stand: Stand) -> None:
    """Read-only and unreadable files say so, although their directory would let them be replaced."""
    it = await box(stand, File("/workspace/a", b"old\n"))
    await it.sh("chmod 444 a; echo secret > s; chmod 0 s; ln -s loop loop")
    if await it.sh("echo x 2>/dev/null >> a && echo root") != "root":  # a backend whose tools are root may do anything
        assert await it.no("write", file_path="a", content="new\n") == "write: a: permission denied"
        assert await it.no("edit", file_path="a", old_string="old", new_string="new") == "edit: a: permission denied"
        assert await it.no("read", file_path="s") == "read: s: permission denied"
        assert await it.sh("cat a") == "old"
    assert await it.no("read", file_path="loop") == "read: loop: too many levels of symbolic links"
    assert (await it.no("write", file_path="/proc/x", content="")).startswith("write: /proc/x: ")


async def check_09_a_full_disk_leaves_the_file_as_it_was(stand: Stand) -> None:
    """What does not fit is said, and nothing of it is written."""
    info = await stand.sandbox(files=[File("/workspace/a", b"old\n")])
    stand.asks(info, "disk")
    it = Box(stand, info.labels.sandbox_id)
    full = "No space left" in await it.sh("cat /dev/zero > full")
    content = "x" * 1_000_000
    for tool, given in (("write", {"content": content}), ("edit", {"old_string": "old", "new_string": content})):
        if full:  # where only each file has a limit there is room for another one
            said = await it.no(tool, file_path="a", **given)
            assert said == f"{tool}: a: no space left on device"
            assert await it.sh("cat a; ls -A") == "old\na\nfull\noutputs"
    await it.sh("rm full; ulimit -f")
    assert await it.ok("write", file_path="a", content=content) == "wrote 1000000 bytes to a"


async def check_10_glob(stand: Stand) -> None:
    """Newest first, absolute, directories too; `**` over directories; at most 200, and what is left out is said."""
    it = await box(stand)
    await it.sh(
        "mkdir -p src/deep .hid; cd src; touch -d @1 a.py; touch -d @3 deep/b.py; touch -d @2 c.md; cd ..;"
        "touch -d @4 .hid/d.py; ln -s src link; mkdir many; cd many; seq 250 | xargs touch -d @5"
    )

    async def found(pattern: str, **more: Any) -> list[str]:
        return await it.found("glob", pattern=pattern, **more)

    assert await found("**/*.py") == [".hid/d.py", "src/deep/b.py", "src/a.py"]
    assert await found("src/*.{py,md}") == ["src/c.md", "src/a.py"]
    assert await found("*.py", path="src") == ["src/a.py"]
    assert await found("./src/[a-b].py") == await found("src/?.py") == ["src/a.py"]
    assert await found("sr*") == ["src"]
    assert await found("nothing*") == ["no matches"]
    many = await found("many/*")
    assert len(many) == 201 and many[-1] == "[50 more match; the 200 newest are listed]"
    assert (await it.no("glob", pattern="/etc/*")).startswith("glob: absolute pattern not permitted")
    assert await it.no("glob", pattern="../*") == "glob: '..' is not permitted in the pattern"
    assert await it.no("glob", pattern="*", path="nowhere") == "glob: nowhere: not a directory"


TREE = (
    "mkdir -p b b-a .hidden .git node_modules many; printf 'one\\ntwo foo\\nthree' > a.txt;"
    "printf 'foo\\r\\nbar foo\\r\\n' > b/crlf; printf foo > b-a/x; echo foo > .hidden/y; echo foo > .git/z;"
    "echo foo > node_modules/q; printf 'foo\\n\\0foo\\n' > binary; { yes foo | head -n 100000; printf '\\0'; } > late;"
    "printf 'foo \\351 x\\nfoo\\377\\n' > latin; { head -c 5000 /dev/zero | tr '\\0' x; echo foo; } > long;"
    "printf 'a\\ffoo\\n\\342\\200\\250foo\\n\\n' > odd; printf '\\357\\273\\277foo\\n' > bom; echo a.txt > .gitignore;"
    "ln -s a.txt link; ln -s b dirlink; mkfifo fifo; echo foo > shut; chmod 0 shut; echo foo > $'co:lon\\nline';"
    "yes 'foo foo foo foo foo foo' | head -n 20000 > many/lines;"
    "{ echo foo; head -c 17M /dev/zero | tr '\\0' x; } > big"
)


async def check_11_grep(stand: Stand) -> None:
    """`path:number:line` by path, the same lines with ripgrep and without it, down to cuts and odd files."""
    stand.needs(ENV)
    bare = replace(stand, recipe=replace(stand.recipe, env={**stand.recipe.env, "PATH": "/nowhere"}), made=stand.made)
    one, two = await box(stand), await box(bare)
    for it in (one, two):
        assert await it.sh(f"PATH=/usr/bin:/bin; {TREE}; echo made") == "made"

    async def both(pattern: str, **more: Any) -> list[str]:
        first, second = [await it.found("grep", pattern=pattern, **more) for it in (one, two)]
        assert first == second, pattern
        return first

    assert (await both("two|thr"))[:2] == ["a.txt:2:two foo", "a.txt:3:three"]
    found = await both("foo$")
    assert [line.split(":")[0] for line in found[:6]] == [".hidden/y", "a.txt", "b/crlf", "b/crlf", "b-a/x", "bom"]
    assert "truncated" in found[-1] and sum(len(line) for line in found) < 110_000
    assert await both("foo", path="b") == ["b/crlf:1:foo", "b/crlf:2:bar foo"]
    assert await both("foo", path="long") == [f"long:1:{'x' * 2000} [... 3003 more characters]"]
    for pattern in ("^foo", "(?i)FOO [0-9]", "[[:alpha:]]{3}o*bar|bar", "^$", "nothing at all", r"\bfoo\b", "(?<=tw)o"):
        await both(pattern)
    for path in ("link", "dirlink", "late", "binary", "big", "latin", "odd", ".git"):
        await both("foo", path=path)
    for it in (one, two):
        assert (await it.no("grep", pattern="(")).startswith("grep: invalid regex: ")
        assert await it.no("grep", pattern="x", path="nowhere") == "grep: nowhere: no such file or directory"
        assert await it.no("grep", pattern="x", path="fifo") == "grep: fifo: not a regular file"


async def check_12_restart_forgets(stand: Stand) -> None:
    """`restart` says so; what was exported, and where the shell was, is forgotten; files stay."""
    it = await box(stand)
    await it.sh("export A=1; touch kept; cd /tmp")
    assert await it.ok("bash", restart=True) == "bash session restarted"
    assert await it.sh("echo ${A-none}; ls") == "none\nkept\noutputs"
    assert await it.sh("true") == "(no output)"


async def check_13_nothing_waits_for_a_person(stand: Stand) -> None:
    """What opens a pager, an editor or a prompt, or looks for a terminal, returns at once, with its text."""
    it = await box(stand)
    await it.sh(
        "git init -q; git config user.email a@b; git config user.name c; seq 500 > a; git add a; git commit -qm 1"
    )
    for asks in (
        "git log; git diff --stat; git branch -a; git --paginate show",
        "git commit --allow-empty",
        "git commit --amend; git rebase -i --root; git tag -a x; git add -p; git mergetool",
        "git -c credential.helper= fetch http://127.0.0.1:1/x",
        "sudo true; su -c true nobody; ssh localhost",
        "less a; more a; man ls; ed a",
        "python3; bash; cat; dd; tee /dev/null; sort; read -p 'name? ' x; select y in 1 2; do break; done",
        "python3 -c 'input(1)'; python3 -c 'import getpass; getpass.getpass()'",
        "python3 -c 'import pdb; pdb.set_trace()'",
        "[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none",
    ):
        result = await stand.bash(it.sandbox, asks, seconds=25.0)
        assert result.outcome in (Outcome.OK, Outcome.TOOL_ERROR), (asks, result)
        assert result.text != "(no output)", asks


async def check_14_much_may_be_printed_to_others(stand: Stand) -> None:
    """A gigabyte from one process to the next is nobody's output, and no limit's matter."""
    it = await box(stand)
    assert await it.sh("yes | head -c 1G | md5sum") == "1e072408341a777c22e44d980f1e7ff2  -"


CHECKS: tuple[Callable[[Stand], Awaitable[None]], ...] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)
