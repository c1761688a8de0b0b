"""What every hand must do with files, as numbered checks against the port (see `conformance`)."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from services.kit.errors import Gone, Invalid
from services.kit.ids import mint
from services.sandbox.conformance import Stand, refused
from services.sandbox.hand import Archive, File, Outcome, Packed, Streamed

BIG = 20 << 20


async def whole(stand: Stand, sandbox_id: str, path: str, offset: int = 0) -> bytes:
    """Reads a file to its end."""
    async with aclosing(stand.hand.read_file(sandbox_id, path, offset)) as pieces:
        return b"".join([piece async for piece in pieces])


async def pieces_of(*pieces: bytes) -> AsyncGenerator[bytes, None]:
    """Yields pieces, as a download would."""
    for piece in pieces:
        yield piece


def tar_of(*members: tuple[str, bytes], **given: Any) -> bytes:
    """Makes a tar of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in given.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def check_01_files_are_listed_by_path(stand: Stand) -> None:
    """Regular files of any depth with size and time; a file lists itself; a link is not followed, nor listed."""
    sandbox = await stand.id(files=[File("/workspace/out/a.txt", b"12"), File("/workspace/out/a/b", b"")])
    await stand.bash(sandbox, "echo 1234 > out/c; ln -s /etc out/etc; ln -s c out/d; mkdir out/empty; mkfifo out/f")
    found, more = await stand.hand.files(sandbox, "/workspace/out")
    listed = [("/workspace/out/a.txt", 2), ("/workspace/out/a/b", 0), ("/workspace/out/c", 5)]
    assert ([(file.path, file.size) for file in found], more) == (listed, False)
    assert all(file.modify_time_ns > 1_600_000_000 * 10**9 for file in found)
    assert await stand.hand.files(sandbox, "/workspace/out/c") == (found[2:], False)
    await refused(Gone, "FILE_NOT_FOUND", stand.hand.files(sandbox, "/workspace/none"))


async def check_02_a_changed_file_has_another_stamp(stand: Stand) -> None:
    """Also when its size and its time of writing are what they were."""
    sandbox = await stand.id(files=[File("/workspace/a", b"1")])
    before, _ = await stand.hand.files(sandbox, "/workspace")
    assert (await stand.hand.files(sandbox, "/workspace"))[0] == before
    await stand.bash(sandbox, "touch -r a ref; printf 2 > a; touch -r ref a; rm ref")
    after, _ = await stand.hand.files(sandbox, "/workspace")
    assert (after[0].size, after[0].modify_time_ns) == (before[0].size, before[0].modify_time_ns)
    assert after[0].stamp != before[0].stamp


async def check_03_a_list_of_files_has_an_end(stand: Stand) -> None:
    """The first thousand are listed, and that there are more is said."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "for i in $(seq -w 1 1001); do : > f$i; done")
    found, more = await stand.hand.files(sandbox, "/workspace")
    assert (len(found), found[999].path, more) == (1_000, "/workspace/f1000", True)


async def check_04_a_file_is_read_byte_for_byte(stand: Stand) -> None:
    """From any offset, in pieces of at most 64 KiB; past the end there is nothing."""
    sandbox = await stand.id()
    await stand.bash(sandbox, f"head -c {BIG} /dev/urandom > big")
    said = (await stand.bash(sandbox, "sha256sum < big")).text.split()[0]
    async with aclosing(stand.hand.read_file(sandbox, "/workspace/big")) as pieces:
        sizes = []
        digest = hashlib.sha256()
        async for piece in pieces:
            sizes.append(len(piece))
            digest.update(piece)
    assert (digest.hexdigest(), sum(sizes), max(sizes)) == (said, BIG, 64 << 10)
    tail = await whole(stand, sandbox, "/workspace/big", BIG - 10)
    assert len(tail) == 10 and await whole(stand, sandbox, "/workspace/big", BIG - 3) == tail[-3:]
    assert await whole(stand, sandbox, "/workspace/big", BIG + 1) == b""


async def check_05_a_reader_may_leave(stand: Stand) -> None:
    """Who stops half-way costs nobody anything: many in a row leave room for the next."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "head -c 3000000 /dev/zero > big")
    for _ in range(40):  # more than a runner has room for at once
        async with aclosing(stand.hand.read_file(sandbox, "/workspace/big")) as pieces:
            async for _piece in pieces:
                break
    assert (await stand.bash(sandbox, "echo well")).text == "well"
    assert len(await whole(stand, sandbox, "/workspace/big")) == 3_000_000


async def check_06_what_is_no_file_is_not_read(stand: Stand) -> None:
    """A pipe, a device and a directory are refused at once, and nothing waits for a writer."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "mkfifo pipe; ln -s /dev/zero zero; mkdir folder")
    for path in ("pipe", "zero", "folder", "none", "pipe/x"):
        await refused(Gone, "FILE_NOT_FOUND", whole(stand, sandbox, f"/workspace/{path}"))


async def check_07_what_tools_may_not_read_is_not_read(stand: Stand) -> None:
    """A link to what the sandbox hides leads nowhere: files are read as the tools' user, in the sandbox's view."""
    info = await stand.sandbox()
    stand.asks(info, "isolation")
    sandbox = info.labels.sandbox_id
    await stand.bash(sandbox, "ln -s /etc/shadow a; ln -s /proc/1/environ b; ln -s /root/.bashrc c")
    for name in "abc":
        await refused(Gone, "FILE_NOT_FOUND", whole(stand, sandbox, f"/workspace/{name}"))
    assert b"localhost" in await whole(stand, sandbox, "/etc/hosts")


async def check_08_streamed_content_becomes_a_file(stand: Stand) -> None:
    """Whatever the pieces; directories are made; an older file is replaced; twice is once."""
    content = os.urandom(1 << 20)
    sandbox = await stand.id(files=[Streamed("/workspace/in/it", lambda: pieces_of(b"", content, content[:7]), 0o755)])
    for _ in range(2):
        result = await stand.bash(sandbox, "stat -c '%s %a' in/it; sha256sum < in/it; ls -A in")
        digest = hashlib.sha256(content + content[:7]).hexdigest()
        assert result.text == f"{len(content) + 7} 755\n{digest}  -\nit"
        await stand.hand.put(
            sandbox, [Streamed("/workspace/in/it", lambda: pieces_of(content + content[:7]), mode=0o755)]
        )


async def check_09_content_that_breaks_off_is_no_file(stand: Stand) -> None:
    """What there was before stays; the error is the source's own; of a new sandbox nothing stays."""

    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"half"
        raise Gone("BLOB_NOT_FOUND", "a part of the blob is missing")

    sandbox = await stand.id(files=[File("/workspace/a", b"before")])
    await refused(Gone, "BLOB_NOT_FOUND", stand.hand.put(sandbox, [Streamed("/workspace/a", broken)]))
    await stand.until(sandbox, '[ "$(echo $(ls -A))" = "a outputs" ]')
    assert await whole(stand, sandbox, "/workspace/a") == b"before"
    await refused(Gone, "BLOB_NOT_FOUND", stand.sandbox(files=[Streamed("/workspace/a", broken)]))
    assert len(await stand.hand.list()) == 1


async def check_10_content_through_a_link_is_refused(stand: Stand) -> None:
    """A tool's link in place of a directory leads content nowhere."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "ln -s /tmp link")
    for what in (
        Streamed("/workspace/link/x", lambda: pieces_of(b"x")),
        Archive("/workspace/link", tar_of(("x", b""))),
    ):
        await refused(Invalid, "RESOURCE_INVALID", stand.hand.put(sandbox, [what]))
    assert (await stand.bash(sandbox, "ls /tmp/x 2>&1")).outcome is Outcome.TOOL_ERROR


async def check_11_archives_are_unpacked(stand: Stand) -> None:
    """A tar, here; files of any depth below the path."""
    sandbox = await stand.id(files=[Archive("/workspace/src", tar_of(("./a", b"1"), ("b/c/d", b"22"), mode=0o755))])
    assert (await stand.bash(sandbox, "cd src; cat a b/c/d; stat -c %a a")).text == "122755"


async def check_12_a_refused_archive_leaves_nothing(stand: Stand) -> None:
    """It is looked through before a byte is written, and the sandbox is not made."""
    bad = tar_of(("a", b"1"), ("../../b", b"2"))
    sandbox = await stand.id()
    await refused(Invalid, "RESOURCE_INVALID", stand.hand.put(sandbox, [Archive("/workspace/src", bad)]))
    assert (await stand.bash(sandbox, "ls -A")).text == "outputs"
    await refused(Invalid, "RESOURCE_INVALID", stand.sandbox(files=[Archive("/workspace/src", bad)]))
    assert len(await stand.hand.list()) == 1


async def check_13_a_workspace_moves_to_another_sandbox(stand: Stand) -> None:
    """Files, modes, times, both kinds of links, empty directories and odd names; not what is left out."""
    sandbox = await stand.id()
    made = (
        "umask 022; mkdir -p a/b empty secret; echo 1 > a/b/c; printf '#!/bin/sh\\necho ran' > run; chmod 750 run; "
        "ln -s a/b/c soft; ln -s /nowhere far; ln a/b/c hard; touch -d @1500000000 a/b/c; echo x > secret/x; "
        "printf n > $'new\\nline \\\\ \\303\\244'; mkfifo pipe; chmod 555 empty; head -c 3000000 /dev/urandom > big"
    )
    assert (await stand.bash(sandbox, made)).outcome is Outcome.OK
    async with aclosing(stand.hand.pack(sandbox, ["/workspace/secret"])) as pieces:
        packed = [piece async for piece in pieces]
    other = await stand.id(files=[Packed(lambda: pieces_of(*packed), 64 << 20)])
    look = (
        "ls -A1 --quoting-style=c; ./run; stat -c %a run empty; readlink soft far; stat -c '%h %Y' hard; "
        "[ hard -ef a/b/c ] && cat soft; sha256sum < big"
    )
    one, two = await stand.bash(sandbox, "rm -r secret pipe; " + look), await stand.bash(other, look)
    assert one.outcome is Outcome.OK
    assert two.text == one.text


async def check_14_a_packed_workspace_has_a_limit(stand: Stand) -> None:
    """What expands beyond it is refused, and no sandbox is made of it."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "head -c 3000000 /dev/zero > zeros")
    async with aclosing(stand.hand.pack(sandbox)) as pieces:
        packed = b"".join([piece async for piece in pieces])
    assert len(packed) < 100_000
    await refused(Invalid, "RESOURCE_INVALID", stand.sandbox(files=[Packed(lambda: pieces_of(packed), 1 << 20)]))
    await refused(Invalid, "RESOURCE_INVALID", stand.sandbox(files=[Packed(lambda: pieces_of(packed[:-9]), 9 << 20)]))
    assert len(await stand.hand.list()) == 1


async def check_15_transfers_and_commands_do_not_disturb_each_other(stand: Stand) -> None:
    """The end of a command sweeps what it left, and not a transfer that runs; and the other way round."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "head -c 3000000 /dev/zero > big")
    async with aclosing(stand.hand.read_file(sandbox, "/workspace/big")) as pieces:
        size = len(await anext(pieces))
        result = await stand.bash(sandbox, "sleep 60 & setsid sleep 60 & echo done")
        assert result.text == "done"
        async for piece in pieces:
            size += len(piece)
    assert size == 3_000_000


async def check_16_transfers_of_a_sandbox_that_is_gone(stand: Stand) -> None:
    """Each says so, also one that was under way."""
    nowhere = mint("sbx")
    await refused(Gone, "SANDBOX_GONE", stand.hand.files(nowhere, "/workspace"))
    await refused(Gone, "SANDBOX_GONE", whole(stand, nowhere, "/workspace/a"))
    await refused(Gone, "SANDBOX_GONE", anext(stand.hand.pack(nowhere)))
    sandbox = await stand.id()
    await stand.bash(sandbox, "head -c 3000000 /dev/zero > big")
    async with aclosing(stand.hand.read_file(sandbox, "/workspace/big")) as pieces:
        await anext(pieces)
        await stand.hand.release(sandbox)

        async def rest() -> None:
            async for _ in pieces:
                pass

        await refused(Gone, "SANDBOX_GONE", rest())


async def check_17_many_files_at_once(stand: Stand) -> None:
    """Transfers side by side each get what they asked for."""
    sandbox = await stand.id(files=[File(f"/workspace/{number}", b"%d" % number) for number in range(16)])
    read = await asyncio.gather(*(whole(stand, sandbox, f"/workspace/{number}") for number in range(16)))
    assert read == [b"%d" % number for number in range(16)]


async def check_18_there_is_a_folder_for_outputs(stand: Stand) -> None:
    """It is there before the first command, empty and the tools' own."""
    sandbox = await stand.id()
    assert await stand.hand.files(sandbox, "/workspace/outputs") == ((), False)
    assert (await stand.bash(sandbox, "ls; echo 1 > outputs/a && cat outputs/a")).text == "outputs\n1"


async def check_19_a_file_grows_by_pieces(stand: Stand) -> None:
    """A piece goes behind all that the file has, and nowhere else: neither elsewhere in it, nor behind a link."""
    path = "/workspace/log.jsonl"
    sandbox = await stand.id(files=[File(path, b"one\n", 0o444)])
    await stand.hand.put(sandbox, [File(path, b"two\n", 0o444, 4), File(path, b"three\n", 0o444, 8)])
    assert await whole(stand, sandbox, path) == b"one\ntwo\nthree\n"
    assert (await stand.bash(sandbox, "stat -c %a log.jsonl; ls -A | grep -c part")).text.startswith("444\n0")
    for offset in (4, 15, 1 << 20):
        await refused(Invalid, "RESOURCE_INVALID", stand.hand.put(sandbox, [File(path, b"x", 0o444, offset)]))
    await refused(Invalid, "RESOURCE_INVALID", stand.hand.put(sandbox, [File("/workspace/none", b"x", 0o444, 1)]))
    await stand.bash(sandbox, "ln -s log.jsonl link; mkfifo gate; mkdir dir; printf 1234 > /tmp/out; ln -s /tmp dir/up")
    for name in ("link", "dir", "dir/up/out", "gate"):
        await refused(
            Invalid, "RESOURCE_INVALID", stand.hand.put(sandbox, [File(f"/workspace/{name}", b"x", 0o444, 4)])
        )
    assert await whole(stand, sandbox, path) == b"one\ntwo\nthree\n"
    await stand.hand.put(sandbox, [File(path, b"anew\n", 0o444)])
    assert await whole(stand, sandbox, path) == b"anew\n"


CHECKS: tuple[Callable[[Stand], Awaitable[None]], ...] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)
