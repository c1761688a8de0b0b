"""What every hand must do, as numbered checks against the port. Longer than a module should be: it is one list.

A check gets a `Stand` and knows nothing of the backend. What a backend says that it cannot enforce, or that its
sandboxes do not have, is not asked of it: such a check raises `NotAsked`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from services.kit.errors import Conflict, Exists, Gone, Invalid, ServiceError
from services.kit.ids import mint
from services.sandbox.core import digest
from services.sandbox.hand import (
    CUSTODY,
    FILES,
    POOLS,
    Chunk,
    Content,
    File,
    Hand,
    Labels,
    Limits,
    Order,
    Outcome,
    Recipe,
    Result,
    SandboxInfo,
)
from services.sandbox.runner.shell import DESCRIPTORS

LIMITS = Limits(memory_bytes=256 << 20, processes=64, disk_bytes=64 << 20, output_file_bytes=8 << 20, seconds=60.0)
"""The limits that a stand's recipe must have. Small ones, which a check can reach."""

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000a49444154789c6360000000020001e221bc330000000049454e44ae426082"
)


class NotAsked(Exception):
    """The backend says that it cannot enforce what the check is about."""


@dataclass
class Stand:
    """A hand to check, and the world around it."""

    hand: Hand
    recipe: Recipe  # of the backend, with LIMITS
    reopen: Callable[[], Awaitable[Hand]]  # closes the hand and makes another one over the same state
    wipe: Callable[[], None]  # removes the state from under the hand
    left: Callable[[str], Awaitable[Sequence[str]]]  # processes, folders and containers with a text in their name
    commands: int = 160  # of the check that runs many
    made: list[str] = field(default_factory=list)

    async def sandbox(
        self, request_id: str = "", files: Sequence[Content] = (), session_id: str = "", hand: str = ""
    ) -> SandboxInfo:
        """Makes a sandbox."""
        if files:
            self.needs(FILES)
        info = await self.hand.provision(self.recipe, self.labels(request_id, session_id, hand), files)
        self.made.append(info.labels.sandbox_id)
        return info

    def labels(self, request_id: str = "", session_id: str = "", hand: str = "") -> Labels:
        """Returns the labels of a sandbox that is wanted."""
        return Labels(mint("sbx"), self.recipe.name, time.time(), session_id, hand, request_id)

    async def free(self) -> str:
        """Makes a sandbox that waits for an owner, and returns its id."""
        self.needs(POOLS)
        info = await self.hand.provision(self.recipe, replace(self.labels(), pool="checked"))
        self.made.append(info.labels.sandbox_id)
        return info.labels.sandbox_id

    async def id(self, **given: Any) -> str:
        """Makes a sandbox and returns its id."""
        return (await self.sandbox(**given)).labels.sandbox_id

    async def run(self, sandbox_id: str, name: str, seconds: float = 30.0, **given: Any) -> Result:
        """Runs a tool to its end."""
        order = order_of(name, given, seconds=seconds)
        await self.hand.start(sandbox_id, order)
        return await self.result(sandbox_id, order.execution_id)

    async def bash(self, sandbox_id: str, command: str, seconds: float = 30.0) -> Result:
        """Runs a command to its end."""
        return await self.run(sandbox_id, "bash", seconds, command=command)

    async def result(self, sandbox_id: str, execution_id: str) -> Result:
        """Waits for a result."""
        said = [said async for said in self.hand.follow(sandbox_id, execution_id)]
        assert len(said) == 1 and isinstance(said[0], Result), said
        return said[0]

    async def until(self, sandbox_id: str, test: str) -> None:
        """Waits until a command of the shell says yes."""
        result = await self.bash(sandbox_id, f"until {test}; do sleep 0.01; done")
        assert result.outcome is Outcome.OK, result

    def needs(self, *capabilities: str) -> None:
        """Goes on only if the backend's sandboxes have these."""
        for capability in capabilities:
            if capability not in self.hand.capabilities:
                raise NotAsked(f"the backend's sandboxes have no {capability}")

    def asks(self, info: SandboxInfo, *limits: str) -> None:
        """Goes on only if the backend enforces these."""
        for limit in limits:
            for said in info.unenforced_limits:
                if said.split(":")[0] == limit:
                    raise NotAsked(f"the backend does not enforce: {said}")


def order_of(name: str, given: dict[str, Any], execution_id: str = "", seconds: float = 30.0, epoch: int = 0) -> Order:
    """Makes an order."""
    return Order(execution_id or mint("exec"), name, given, digest(name, given), seconds, epoch)


def command(text: str, **given: Any) -> Order:
    """Makes an order of a command."""
    return order_of("bash", {"command": text}, **given)


async def refused(kind: type[ServiceError], reason: str, call: Awaitable[object]) -> None:
    """Checks that a call is refused so."""
    try:
        await call
    except kind as error:
        assert error.reason == reason, error
    else:
        raise AssertionError(f"not refused with {reason}")


async def first(hand: Hand, sandbox_id: str, execution_id: str) -> Chunk | Result:
    """Follows until something comes, then leaves."""
    async with aclosing(hand.follow(sandbox_id, execution_id, 0)) as said:  # type: ignore[type-var]
        async for each in said:
            return each
    raise AssertionError("nothing came")


async def check_01_provision_is_idempotent_by_request_id(stand: Stand) -> None:
    """Eight calls at once and one more later get one sandbox, with the labels of the first."""
    made = await asyncio.gather(*(stand.sandbox("sess/hand/1", session_id="s", hand="h") for _ in range(8)))
    assert len(set(made)) == 1
    assert await stand.sandbox("sess/hand/1", session_id="s") == made[0]
    assert (made[0].labels.session_id, made[0].labels.hand) == ("s", "h")
    assert [info.labels for info in await stand.hand.list()] == [made[0].labels]


async def check_02_a_request_id_stands_for_one_session_and_environment(stand: Stand) -> None:
    """Another session that names the request gets no sandbox of somebody else."""
    await stand.sandbox("sess/hand/1", session_id="s")
    await refused(Exists, "REQUEST_ID_REUSED", stand.sandbox("sess/hand/1", session_id="t"))


async def check_03_without_a_request_id_each_call_makes_a_sandbox(stand: Stand) -> None:
    """Two calls, two sandboxes, listed oldest first."""
    one, two = await stand.id(), await stand.id()
    assert [info.labels.sandbox_id for info in await stand.hand.list()] == [one, two]


async def check_04_files_are_there_when_provision_returns(stand: Stand) -> None:
    """Content byte for byte, directories made, modes kept."""
    script = File("/workspace/bin/hello", b"#!/bin/sh\necho hello\n", 0o755)
    sandbox = await stand.id(files=[script, File("/workspace/data", bytes(range(256)))])
    result = await stand.bash(sandbox, "bin/hello; md5sum < data")
    assert result.text == "hello\ne2c865db4162bed963bfaa9ef6ac18f0  -"


async def check_05_a_file_that_cannot_be_put_leaves_no_sandbox(stand: Stand) -> None:
    """A path through a file is refused, and nothing stays."""
    files = [File("/workspace/a", b"1"), File("/workspace/a/b", b"2")]
    await refused(Invalid, "RESOURCE_INVALID", stand.sandbox(files=files))
    assert await stand.hand.list() == ()


async def check_06_both_streams_are_one_output(stand: Stand) -> None:
    """What is written to either comes in the order in which it was written."""
    result = await stand.bash(await stand.id(), "echo out; echo err >&2; echo end")
    assert replace(result, seconds=0.0) == Result("out\nerr\nend", Outcome.OK, exit_code=0)


async def check_07_a_bad_exit_is_a_result(stand: Stand) -> None:
    """The output and the exit code are said; so is a signal."""
    sandbox = await stand.id()
    for number in range(20):
        result = await stand.bash(sandbox, f"echo {number}; exit 7")
        expected = Result(f"{number}\n[exit code: 7]", Outcome.TOOL_ERROR, exit_code=7)
        assert replace(result, seconds=0.0) == expected
    result = await stand.bash(sandbox, "kill -9 $$")
    assert (result.outcome, result.exit_code, result.signal) == (Outcome.TOOL_ERROR, None, 9)


async def check_08_silence_is_said(stand: Stand) -> None:
    """A command without output says so, for an empty text is refused by the model's API."""
    assert (await stand.bash(await stand.id(), "true")).text == "(no output)"


async def check_09_an_execution_starts_once(stand: Stand) -> None:
    """Eight starts at once: one runs; all who follow, during and after, get the same result."""
    sandbox = await stand.id()
    order = command("echo ran >> runs; until [ -e go ]; do sleep 0.01; done; cat runs")
    started = await asyncio.gather(*(stand.hand.start(sandbox, order) for _ in range(8)))
    assert sorted(started) == [False] * 7 + [True]
    following = [asyncio.create_task(stand.result(sandbox, order.execution_id)) for _ in range(4)]
    await stand.bash(sandbox, "touch go")
    results = [await task for task in following] + [await stand.result(sandbox, order.execution_id)]
    assert [result.text for result in results] == ["ran"] * 5
    assert not await stand.hand.start(sandbox, order)


async def check_10_an_id_stands_for_one_tool_and_input(stand: Stand) -> None:
    """The same id with another input is refused, also after the end."""
    sandbox = await stand.id()
    await stand.hand.start(sandbox, command("echo 1", execution_id="toolu_1"))
    await refused(Exists, "EXECUTION_ID_REUSED", stand.hand.start(sandbox, command("echo 2", execution_id="toolu_1")))
    assert (await stand.result(sandbox, "toolu_1")).text == "1"
    await refused(Exists, "EXECUTION_ID_REUSED", stand.hand.start(sandbox, command("echo 2", execution_id="toolu_1")))


async def check_11_ids_may_be_any_text_without_blanks(stand: Stand) -> None:
    """Ids that look like paths stay ids."""
    sandbox = await stand.id()
    for id in ("../../x", "a/b:c.d-e", "..", "x" * 128):
        await stand.hand.start(sandbox, command(f"echo '{id}'", execution_id=id))
        assert (await stand.result(sandbox, id)).text == id


async def check_12_unknown_things_are_gone(stand: Stand) -> None:
    """Each method says which of the two is not there: the sandbox or the execution."""
    hand, nowhere = stand.hand, mint("sbx")
    await refused(Gone, "EXECUTION_UNKNOWN", stand.result(await stand.id(), "never"))
    await refused(Gone, "SANDBOX_GONE", stand.result(nowhere, "never"))
    await refused(Gone, "SANDBOX_GONE", hand.start(nowhere, command("true")))
    await refused(Gone, "SANDBOX_GONE", hand.cancel(nowhere, "never"))
    await refused(Gone, "SANDBOX_GONE", hand.executions(nowhere))
    await refused(Gone, "SANDBOX_GONE", hand.put(nowhere, []))
    assert await hand.find(nowhere) is None
    await hand.release(nowhere)


async def check_13_followers_resume_from_any_offset(stand: Stand) -> None:
    """Chunks come while the tool runs; from each offset on they make up the rest of the output."""
    sandbox = await stand.id()
    order = command("printf 'añ'; until [ -e go ]; do sleep 0.01; done; head -c 100000 /dev/zero | tr '\\0' z; echo €")
    await stand.hand.start(sandbox, order)
    early = await first(stand.hand, sandbox, order.execution_id)
    assert early == Chunk("añ", 3)
    await stand.bash(sandbox, "touch go")
    for start, whole in ((0, "añ" + "z" * 100_000 + "€\n"), (3, "z" * 100_000 + "€\n"), (100_003, "€\n")):
        said = [said async for said in stand.hand.follow(sandbox, order.execution_id, start)]
        chunks = [chunk for chunk in said if isinstance(chunk, Chunk)]
        assert "".join(chunk.text for chunk in chunks) == whole
        assert all(len(chunk.text.encode()) <= 32 << 10 for chunk in chunks) and isinstance(said[-1], Result)
        assert chunks[-1].next_offset == 100_007


async def check_14_what_is_no_text_is_replaced(stand: Stand) -> None:
    """Invalid UTF-8, NUL and escape sequences harm nobody; what is left is valid text."""
    sandbox = await stand.id()
    result = await stand.bash(sandbox, "printf 'a\\xff\\xfe\\0b\\e[31mred\\e[0m \\xed\\xa0\\x80'")
    assert result.text == "a\ufffd\ufffd\ufffdbred \ufffd\ufffd\ufffd"
    noise = await stand.bash(sandbox, "head -c 200000 /dev/urandom")
    assert noise.outcome is Outcome.OK and noise.text.encode()
    name = await stand.bash(sandbox, "touch $'odd\\xff'; ls")
    assert name.text == "odd\ufffd\noutputs"
    assert (await stand.run(sandbox, "glob", pattern="odd*")).outcome is Outcome.OK


async def check_15_a_timeout_leaves_no_process(stand: Stand) -> None:
    """Not a child, not one in a session of its own, not one that ignores TERM. What it had said is kept."""
    sandbox = await stand.id()
    text = "echo first; {0} & setsid {0} & (trap '' TERM; {0}) & (setsid setsid {0} &) ; wait"
    nap = f"sleep {_token()}"
    result = await stand.bash(sandbox, text.format(nap), seconds=0.5)
    assert result.outcome is Outcome.TIMEOUT and result.text.startswith("first\n[timed out")
    assert await stand.left(nap) == []
    assert (await stand.bash(sandbox, "echo next")).text == "next"


async def check_16_a_background_child_holds_nothing_up(stand: Stand) -> None:
    """The call returns when the command has; what it left behind is ended."""
    sandbox = await stand.id()
    nap = f"sleep {_token()}"
    for text in ("{0} & echo up", "nohup sh -c '{0} &' >/dev/null; echo up", "(setsid env -i {0} &); echo up"):
        result = await stand.bash(sandbox, text.format(nap))
        assert (result.text, result.outcome) == ("up", Outcome.OK)
        assert await stand.left(nap) == []
    result = await stand.bash(sandbox, "python3 -m http.server 0 & echo up")
    assert result.outcome is Outcome.OK


async def check_17_cancel_kills(stand: Stand) -> None:
    """The result is what the tool had said; no process stays; a second cancel changes nothing."""
    sandbox = await stand.id()
    nap = f"sleep {_token()}"
    order = command(f"echo going; setsid {nap} & {nap}")
    await stand.hand.start(sandbox, order)
    await first(stand.hand, sandbox, order.execution_id)
    await stand.hand.cancel(sandbox, order.execution_id)
    result = await stand.result(sandbox, order.execution_id)
    assert result.outcome is Outcome.INTERRUPTED and result.text.startswith("going\n")
    assert await stand.left(nap) == []
    await stand.hand.cancel(sandbox, order.execution_id)
    assert await stand.result(sandbox, order.execution_id) == result


async def check_18_what_was_cancelled_first_never_starts(stand: Stand) -> None:
    """A start that comes after the cancel runs nothing."""
    sandbox = await stand.id()
    await stand.hand.cancel(sandbox, "toolu_1")
    assert not await stand.hand.start(sandbox, command("touch ran", execution_id="toolu_1"))
    assert (await stand.result(sandbox, "toolu_1")).outcome is Outcome.INTERRUPTED
    assert (await stand.bash(sandbox, "ls")).text == "outputs"


async def check_19_nothing_waits_for_a_person(stand: Stand) -> None:
    """Standard input is at its end, there is no terminal; pagers and editors do not open."""
    sandbox = await stand.id()
    result = await stand.bash(sandbox, 'read x; echo "read $?"; cat; tty; (: < /dev/tty) 2>/dev/null || echo none')
    assert result.text == "read 1\nnot a tty\nnone"
    lines = (
        "git init -q . && git config user.email a@b && git config user.name c",
        "for i in 1 2 3; do git commit -q --allow-empty -m $i; done",
        "git log --oneline | wc -l; git log -1 --format=%s; git rebase -i HEAD~1 >/dev/null 2>&1; echo rebased",
    )
    result = await stand.bash(sandbox, "\n".join(lines))
    assert result.text == "3\n3\nrebased"


async def check_20_the_shell_remembers(stand: Stand) -> None:
    """Directory, variables, functions and umask last, also past exit, a failure, a kill and a timeout."""
    sandbox = await stand.id()
    await stand.bash(
        sandbox, "mkdir -p 'a b'; cd 'a b'; export A=$'x\\ny'; B=(1 '2 3'); f() { echo \"f $1\"; }; umask 077"
    )
    recall = 'pwd | sed "s|.*/||"; echo "$A"; echo "${B[1]}"; f z; umask; env | grep -c "^A="'
    expected = "a b\nx\ny\n2 3\nf z\n0077\n1"
    for between in ("exit 3", "set -e; false", "kill -9 $$", "if then", "exec true", "trap 'true' EXIT"):
        await stand.bash(sandbox, between)
        assert (await stand.bash(sandbox, recall)).text == expected, between
    await stand.bash(sandbox, "sleep 30", seconds=0.2)
    assert (await stand.bash(sandbox, recall)).text == expected
    await stand.bash(sandbox, "cd ..; trap 'true' EXIT; A=z")
    assert (await stand.bash(sandbox, 'echo "$A"')).text == "z"
    assert (await stand.run(sandbox, "bash", restart=True)).outcome is Outcome.OK
    assert (await stand.bash(sandbox, 'echo "<$A>"; f')).text.startswith("<>\n")


async def check_21_big_output_keeps_head_and_tail(stand: Stand) -> None:
    """200 MB: the text stays at its limit, the cut is marked, the rest is in a file that `read` opens."""
    sandbox = await stand.id()
    result = await stand.bash(sandbox, "echo begin; head -c 200M /dev/zero | tr '\\0' y; echo; echo end")
    assert result.outcome is Outcome.OK and result.truncated
    assert result.text.startswith("begin\nyyy") and result.text.endswith("yyy\nend")
    assert "bytes left out" in result.text and len(result.text) < LIMITS.output_text_bytes + 1000
    whole = await stand.run(sandbox, "read", file_path=result.spill_path, view_range=[1, 1])
    assert whole.text == "begin"


async def check_22_a_flood_is_ended(stand: Stand) -> None:
    """A command that prints for ever is killed at a limit that is said, and the next one works."""
    sandbox = await stand.id()
    result = await stand.bash(sandbox, "yes", seconds=60.0)
    assert result.outcome is Outcome.TOOL_ERROR and "of output]" in result.text[-100:]
    assert (await stand.bash(sandbox, "echo next")).text == "next"


async def check_23_big_input_is_taken(stand: Stand) -> None:
    """A command and a file of 1 MB, more than an argument may have."""
    sandbox = await stand.id()
    text = "x" * 1_000_000
    assert (await stand.bash(sandbox, f"cat <<'END' | wc -c\n{text}\nEND")).text == "1000001"
    await stand.run(sandbox, "write", file_path="big", content=text)
    assert (await stand.bash(sandbox, "wc -c < big")).text == "1000000"


async def check_24_file_tools(stand: Stand) -> None:
    """write, read, edit, glob and grep do what they say; what fails is a result."""
    sandbox = await stand.id()

    async def says(name: str, **given: Any) -> tuple[str, str]:
        result = await stand.run(sandbox, name, **given)
        return result.outcome.name, result.text

    assert (await says("write", file_path="d/a.py", content="one\ntwo é\nthree\n"))[0] == "OK"
    assert await says("read", file_path="d/a.py") == ("OK", "one\ntwo é\nthree\n")
    assert await says("read", file_path="d/a.py", view_range=[2, 2]) == ("OK", "two é")
    assert await says("read", file_path="d/a.py", view_range=[2, -1]) == ("OK", "two é\nthree\n")
    assert (await says("read", file_path="d/a.py", view_range=[9, 9]))[0] == "TOOL_ERROR"
    assert (await says("edit", file_path="d/a.py", old_string="t", new_string="T"))[0] == "TOOL_ERROR"
    assert (await says("edit", file_path="d/a.py", old_string="nope", new_string="T"))[0] == "TOOL_ERROR"
    assert (await says("edit", file_path="d/a.py", old_string="two é", new_string="2"))[0] == "OK"
    assert (await says("edit", file_path="d/a.py", old_string="e", new_string="E", replace_all=True))[0] == "OK"
    assert await says("read", file_path="d/a.py") == ("OK", "onE\n2\nthrEE\n")
    await says("write", file_path="d/b.md", content="TWO\n")
    for pattern, names in (("**/*.py", ["a.py"]), ("d/*.{py,md}", ["b.md", "a.py"]), ("*.py", ["no matches"])):
        _, text = await says("glob", pattern=pattern)
        assert [line.rsplit("/", 1)[-1] for line in text.splitlines()] == names
    assert (await says("glob", pattern="../*"))[0] == "TOOL_ERROR"
    outcome, text = await says("grep", pattern="t(hr|wo)EE")
    assert outcome == "OK" and text.endswith("d/a.py:3:thrEE") and len(text.splitlines()) == 1
    assert await says("grep", pattern="nowhere") == ("OK", "no matches")
    assert (await says("grep", pattern="("))[0] == "TOOL_ERROR"
    assert (await says("read", file_path="nowhere"))[0] == "TOOL_ERROR"


async def check_25_file_tools_touch_regular_files_only(stand: Stand) -> None:
    """A FIFO, a device, a directory and a binary file are refused at once; nothing is waited for."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "mkfifo fifo; mkdir dir; head -c 100 /dev/zero > zeros; ln -s /dev/zero link")
    for path in ("fifo", "/dev/zero", "link", "dir", "zeros", "/proc/self/mem"):
        assert (await stand.run(sandbox, "read", file_path=path)).outcome is Outcome.TOOL_ERROR, path
    for path in ("fifo", "dir", "/dev/full"):
        assert (await stand.run(sandbox, "write", file_path=path, content="x")).outcome is Outcome.TOOL_ERROR, path


async def check_26_an_image_is_a_content_block(stand: Stand) -> None:
    """`read` shows a picture in the form of the model's API, whatever the file's name."""
    sandbox = await stand.id(files=[File("/workspace/picture", PNG)])
    result = await stand.run(sandbox, "read", file_path="picture")
    (block,) = json.loads(result.content_json)
    assert result.outcome is Outcome.OK and result.text
    assert (block["type"], block["source"]["media_type"]) == ("image", "image/png")


async def check_27_out_of_memory_is_said(stand: Stand) -> None:
    """The outcome and the text name it, also when a child of the command was killed; the next call works."""
    info = await stand.sandbox()
    stand.asks(info, "memory")
    sandbox = info.labels.sandbox_id
    result = await stand.bash(sandbox, 'python3 -c "x = bytearray(1 << 30)"')
    assert result.outcome is Outcome.OUT_OF_MEMORY and "out of memory: the sandbox may use 256 MiB" in result.text
    assert (await stand.bash(sandbox, "echo next")).text == "next"


async def check_28_a_fork_bomb_ends_with_its_execution(stand: Stand) -> None:
    """No process of it stays, and the next call works."""
    info = await stand.sandbox()
    stand.asks(info, "processes", "isolation")
    sandbox = info.labels.sandbox_id
    result = await stand.bash(sandbox, "f() { f | f & }; f; sleep 60", seconds=2.0)
    assert result.outcome is Outcome.TIMEOUT
    assert (await stand.bash(sandbox, "ls -d /proc/[0-9]* | wc -l")).text < "9"


async def check_29_suicide_leaves_the_sandbox_usable(stand: Stand) -> None:
    """Killing and stopping everything that can be reached harms neither the runner nor the next call."""
    info = await stand.sandbox()
    stand.asks(info, "isolation")
    for text in ("kill -9 -1; echo on", "kill -STOP -1; kill -9 1; kill -TERM 1; kill -INT 1; echo on"):
        assert (await stand.bash(info.labels.sandbox_id, text + " 2>/dev/null")).text.endswith("on")
        assert (await stand.bash(info.labels.sandbox_id, "echo next")).text == "next"


async def check_30_many_executions_at_once(stand: Stand) -> None:
    """32 at once finish, each with its own output. (Each needs two processes of the 64.)"""
    sandbox = await stand.id()
    results = await asyncio.gather(*(stand.bash(sandbox, f"echo {number}") for number in range(32)))
    assert [result.text for result in results] == [str(number) for number in range(32)]


async def check_31_executions_run_side_by_side(stand: Stand) -> None:
    """One can wait for what another does, and the end of one ends nothing of the other."""
    sandbox = await stand.id()
    order = command("(until [ -e go ]; do sleep 0.01; done; echo went) & wait")
    await stand.hand.start(sandbox, order)
    await stand.bash(sandbox, "setsid sleep 60 & touch go")
    assert (await stand.result(sandbox, order.execution_id)).text == "went"


async def check_32_sandboxes_are_apart(stand: Stand) -> None:
    """One sees neither the files nor the processes nor the network of the other."""
    one, two = await stand.sandbox(), await stand.id()
    stand.asks(one, "isolation")
    nap = f"sleep {_token()}"
    await stand.hand.start(one.labels.sandbox_id, command(f"echo secret > /tmp/mine; echo secret > mine; {nap}"))
    result = await stand.bash(two, f"ls /tmp /workspace; grep -l '{nap.split()[1]}' /proc/[0-9]*/cmdline")
    assert "mine" not in result.text and "/proc/" not in result.text


async def check_33_no_network(stand: Stand) -> None:
    """There is no interface but the loopback, and the host's loopback is another one."""
    info = await stand.sandbox()
    stand.asks(info, "isolation")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        names = await stand.bash(info.labels.sandbox_id, "tail -n +3 /proc/net/dev | cut -d: -f1")
        result = await stand.bash(info.labels.sandbox_id, f'python3 -c "{script}"')
    assert names.text.split() == ["lo"] and "ConnectionRefusedError" in result.text


async def check_34_the_environment_is_the_declared_one(stand: Stand) -> None:
    """The recipe's variables are there; nothing of the service's own environment is, not even in process 1."""
    info = await stand.sandbox()
    result = await stand.bash(info.labels.sandbox_id, "env; tr '\\0' '\\n' < /proc/self/environ")
    assert "DECLARED=yes" in result.text and "CANARY" not in result.text
    stand.asks(info, "isolation")
    result = await stand.bash(
        info.labels.sandbox_id, "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'"
    )
    assert "CANARY" not in result.text


async def check_35_tools_have_no_privilege(stand: Stand) -> None:
    """No capability in any set, no way to new ones, a filter on system calls, and no exotic socket."""
    info = await stand.sandbox()
    stand.asks(info, "isolation")
    result = await stand.bash(
        info.labels.sandbox_id, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | cut -f2"
    )
    assert result.text.split() == ["0" * 16] * 5 + ["1", "2"]
    script = """
import socket
for name in ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"):
    try:
        socket.socket(getattr(socket, name), socket.SOCK_DGRAM)
    except PermissionError:
        continue
    print(name)
socket.socketpair(); socket.socket(socket.AF_INET6)
print("done")
"""
    result = await stand.bash(info.labels.sandbox_id, f"python3 - <<'END'\n{script}\nEND")
    assert result.text == "done"
    result = await stand.bash(info.labels.sandbox_id, "unshare -U true; touch /usr/x /etc/x /dev/x")
    assert result.outcome is Outcome.TOOL_ERROR and len(result.text.splitlines()) == 5, result.text


async def check_36_the_disk_has_an_end(stand: Stand) -> None:
    """A full workspace is an error of the tool; the next call works."""
    info = await stand.sandbox()
    stand.asks(info, "disk")
    result = await stand.bash(info.labels.sandbox_id, "cat /dev/zero > full; ls -s --block-size=M full")
    assert any(text in result.text for text in ("No space left", "File size limit")), result
    assert (await stand.bash(info.labels.sandbox_id, "echo next; rm full")).text == "next"


async def check_37_a_follower_may_leave(stand: Stand) -> None:
    """Who stops following ends nothing."""
    sandbox = await stand.id()
    order = command("echo one; until [ -e go ]; do sleep 0.01; done; echo two")
    await stand.hand.start(sandbox, order)
    await first(stand.hand, sandbox, order.execution_id)
    task = asyncio.create_task(stand.result(sandbox, order.execution_id))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stand.bash(sandbox, "touch go")
    assert (await stand.result(sandbox, order.execution_id)).text == "one\ntwo"


async def check_38_a_restarted_service_goes_on(stand: Stand) -> None:
    """A new hand over the same state lists the sandbox, and follows what runs and what has ended meanwhile."""
    info = await stand.sandbox("sess/hand/1", session_id="s", hand="h")
    sandbox = info.labels.sandbox_id
    order = command("echo ran >> runs; until [ -e go ]; do sleep 0.01; done; cat runs")
    await stand.hand.start(sandbox, order)
    stand.hand = await stand.reopen()
    await stand.hand.tidy()
    assert await stand.hand.list() == (info,)
    assert await stand.sandbox("sess/hand/1", session_id="s", hand="h") == info
    assert not await stand.hand.start(sandbox, order)
    await stand.bash(sandbox, "touch go")
    await stand.until(sandbox, "[ -e go ]")
    stand.hand = await stand.reopen()
    assert (await stand.result(sandbox, order.execution_id)).text == "ran"


async def check_39_a_lower_epoch_is_refused(stand: Stand) -> None:
    """Also by a hand that has never seen the higher one. Epoch 0 is not fenced."""
    sandbox = await stand.id()
    await stand.hand.start(sandbox, command("true", epoch=7))
    stand.hand = await stand.reopen()
    await refused(Conflict, "EPOCH_STALE", stand.hand.start(sandbox, command("touch ran", epoch=6)))
    await refused(Conflict, "EPOCH_STALE", stand.hand.cancel(sandbox, "x", epoch=6))
    await stand.hand.start(sandbox, command("true", epoch=7))
    assert (await stand.bash(sandbox, "ls")).text == "outputs"


async def check_40_executions_are_listed(stand: Stand) -> None:
    """Oldest first, running ones without an outcome."""
    sandbox = await stand.id(files=[File("/workspace/x", b"")])
    await stand.bash(sandbox, "exit 1")
    order = command("sleep 60")
    await stand.hand.start(sandbox, order)
    known = await stand.hand.executions(sandbox)
    assert [(it.name, it.outcome) for it in known] == [("bash", Outcome.TOOL_ERROR), ("bash", None)]
    assert known[1].execution_id == order.execution_id and known[0].start_time <= known[1].start_time


async def check_41_release_leaves_nothing(stand: Stand) -> None:
    """No process, no folder, no container; a second release is no error; what comes after is told that it is gone."""
    stand.needs(CUSTODY)
    sandbox = await stand.id()
    nap = f"sleep {_token()}"
    order = command(f"mkdir -p locked/x; chmod 0 locked; {nap} & setsid {nap} & echo up; wait")
    await stand.hand.start(sandbox, order)
    await first(stand.hand, sandbox, order.execution_id)
    while not await stand.left(nap):  # noqa: ASYNC110 - forked by now, but perhaps not yet what it will be
        await asyncio.sleep(0.01)
    assert await stand.left(sandbox)
    following = asyncio.create_task(stand.result(sandbox, order.execution_id))
    await asyncio.sleep(0.05)
    await stand.hand.release(sandbox)
    await refused(Gone, "SANDBOX_GONE", following)
    assert (await stand.left(nap), await stand.left(sandbox), await stand.hand.list()) == ([], [], ())
    await stand.hand.release(sandbox)
    await refused(Gone, "SANDBOX_GONE", stand.hand.start(sandbox, command("true")))


async def check_42_tidy_keeps_what_lives(stand: Stand) -> None:
    """It may be called at any time, also while a sandbox is being made."""
    making = asyncio.create_task(stand.id())
    for _ in range(5):
        await stand.hand.tidy()
        await asyncio.sleep(0.01)
    sandbox = await making
    await stand.hand.tidy()
    assert (await stand.bash(sandbox, "echo here")).text == "here"


async def check_43_a_sandbox_ends_with_its_state(stand: Stand) -> None:
    """When the service's folder is removed, by hand or by a test, what ran on its behalf ends by itself.

    What has ended is tidied away.
    """
    stand.needs(CUSTODY)
    sandbox = await stand.id()
    nap = f"sleep {_token()}"
    order = command(f"echo up; {nap}")
    await stand.hand.start(sandbox, order)
    await first(stand.hand, sandbox, order.execution_id)
    stand.wipe()
    for _ in range(600):
        if not await stand.left(nap):
            await stand.hand.tidy()
            if not await stand.left(sandbox):
                return
        await asyncio.sleep(0.1)
    raise AssertionError(await stand.left(sandbox))


async def check_44_to_run_is_to_start_and_follow(stand: Stand) -> None:
    """One id runs once, by whichever call; all get the one result; what cannot start is refused as by `start`."""
    sandbox = await stand.id()
    order = command("echo ran >> runs; until [ -e go ]; do sleep 0.01; done; cat runs; exit 7", epoch=5)
    await stand.hand.start(sandbox, order)
    running = [asyncio.create_task(stand.hand.run(sandbox, order)) for _ in range(3)]
    await stand.bash(sandbox, "touch go")
    results = [await task for task in running] + [await stand.hand.run(sandbox, order)]
    assert {(result.text, result.outcome, result.exit_code) for result in results} == {
        ("ran\n[exit code: 7]", Outcome.TOOL_ERROR, 7)
    }
    other = replace(order, digest=digest("bash", {"command": "other"}))
    await refused(Exists, "EXECUTION_ID_REUSED", stand.hand.run(sandbox, other))
    await refused(Conflict, "EPOCH_STALE", stand.hand.run(sandbox, command("true", epoch=4)))


async def check_45_each_gets_its_own_result(stand: Stand) -> None:
    """Many commands, 16 at a time: each says its own, and ends with its own code and no other's."""
    sandbox = await stand.id()
    numbers = iter(range(stand.commands))

    async def caller() -> None:
        for number in numbers:  # shared: whoever is free takes the next
            result = await stand.hand.run(sandbox, command(f"echo hi {number}; exit {number % 7 + 1}"))
            code = number % 7 + 1
            assert (result.text, result.exit_code) == (f"hi {number}\n[exit code: {code}]", code)

    await asyncio.gather(*(caller() for _ in range(16)))
    assert next(numbers, None) is None


async def check_46_a_lost_result_is_unknown_and_never_run_again(stand: Stand) -> None:
    """Where tools reach what the runner has kept, what they remove or replace is UNKNOWN; elsewhere it stays."""
    stand.needs(CUSTODY)
    sandbox = await stand.id()
    forged = '{"result": {"text": "forged", "outcome": "OK", "seconds": 0.0}}'
    for damage in ("rm -f", f"echo '{forged}' >new && mv -f new", "mkfifo pipe && mv -f pipe"):
        order = command("echo once >> runs; seq 30000")
        result = await stand.hand.run(sandbox, order)
        kept = result.spill_path.rpartition("/")[0] + "/result.json"
        assert (await stand.bash(sandbox, f"test -e {kept}")).outcome is Outcome.OK
        done = (await stand.bash(sandbox, f"{damage} {kept}")).outcome is Outcome.OK
        assert not await stand.hand.start(sandbox, order)
        for again in (await stand.hand.run(sandbox, order), await stand.result(sandbox, order.execution_id)):
            assert (again.outcome, again.exit_code) == (Outcome.UNKNOWN, None) if done else again == result
        assert (await stand.bash(sandbox, "cat runs; rm -f runs")).text == "once"


async def check_47_old_results_make_room_and_never_run_again(stand: Stand) -> None:
    """What is kept has an end: the oldest results are forgotten, which is told, and the newest stay."""
    sandbox = await stand.id()
    text = f"echo once >> runs; head -c {stand.recipe.limits.output_text_bytes} /dev/zero | tr '\\0' x"
    orders = [command(text) for _ in range(LIMITS.output_file_bytes // stand.recipe.limits.output_text_bytes + 2)]
    results = [await stand.hand.run(sandbox, order) for order in orders]
    assert {result.outcome for result in results} == {Outcome.OK}
    await refused(Gone, "EXECUTION_UNKNOWN", stand.hand.run(sandbox, orders[0]))
    await refused(Gone, "EXECUTION_UNKNOWN", stand.hand.start(sandbox, orders[0]))
    await refused(Gone, "EXECUTION_UNKNOWN", stand.result(sandbox, orders[0].execution_id))
    await stand.hand.cancel(sandbox, orders[0].execution_id)
    assert await stand.hand.run(sandbox, orders[-1]) == results[-1]
    assert (await stand.bash(sandbox, "wc -l < runs")).text == str(len(orders))


async def check_60_a_free_sandbox_is_claimed(stand: Stand) -> None:
    """It keeps its id, gets the owner's labels, and has the owner's files when the claim returns."""
    free = await stand.free()
    labels = stand.labels("sess/hand/1", "s", "h")
    info = await stand.hand.claim(free, labels, [File("/workspace/in", b"here")])
    assert info.labels == replace(labels, sandbox_id=free)
    assert (await stand.bash(free, "cat in")).text == "here"
    assert await stand.hand.find(free) == info and await stand.hand.list() == (info,)
    stand.hand = await stand.reopen()
    assert await stand.hand.find(free) == info
    assert await stand.sandbox("sess/hand/1", session_id="s") == info


async def check_61_of_many_claims_one_gets_it(stand: Stand) -> None:
    """Sixteen requests want one sandbox at once, and later: it is the first one's, the others are told so."""
    free = await stand.free()
    wanted = [stand.labels(f"sess{number}/hand/1", f"sess{number}") for number in range(16)]
    told = await asyncio.gather(*(stand.hand.claim(free, labels) for labels in wanted), return_exceptions=True)
    owners = [said for said in told if isinstance(said, SandboxInfo)]
    assert len(owners) == 1 and await stand.hand.list() == tuple(owners)
    losers = [said for said in told if said not in owners]
    assert all(isinstance(said, Gone) and said.reason == "SANDBOX_GONE" for said in losers)
    await refused(Gone, "SANDBOX_GONE", stand.hand.claim(free, stand.labels("late/hand/1", "late")))
    await refused(Gone, "SANDBOX_GONE", stand.hand.claim(await stand.id(), stand.labels("late/hand/1", "late")))


async def check_62_a_claim_is_idempotent_by_request_id(stand: Stand) -> None:
    """Whatever it names and however it is asked for: the request has one sandbox, and the rest stay free."""
    frees = [await stand.free() for _ in range(3)]
    wanted = stand.labels("sess/hand/1", "s")
    claims = [stand.hand.claim(free, wanted) for free in frees]
    made = await asyncio.gather(*claims, stand.sandbox("sess/hand/1", session_id="s"))
    assert len(set(made)) == 1
    stand.hand = await stand.reopen()
    assert await stand.hand.claim(frees[2], wanted) == made[0]
    assert sorted(bool(info.labels.pool) for info in await stand.hand.list()) == [False, True, True]
    await refused(Exists, "REQUEST_ID_REUSED", stand.hand.claim(frees[2], stand.labels("sess/hand/1", "t")))


async def check_63_a_claim_that_cannot_be_finished_leaves_nothing(stand: Stand) -> None:
    """A file that cannot be put: no half-filled sandbox stays, neither the owner's nor a free one."""
    free = await stand.free()
    files = [File("/workspace/a", b"1"), File("/workspace/a/b", b"2")]
    await refused(Invalid, "RESOURCE_INVALID", stand.hand.claim(free, stand.labels("sess/hand/1", "s"), files))
    assert (await stand.hand.list(), await stand.left(free)) == ((), [])


async def check_64_a_free_sandbox_outlives_the_service(stand: Stand) -> None:
    """A new hand over the state lists it as free, keeps it, and gives it away."""
    free = await stand.free()
    stand.hand = await stand.reopen()
    await stand.hand.tidy()
    (info,) = await stand.hand.list()
    assert (info.labels.sandbox_id, info.labels.pool) == (free, "checked")
    assert (await stand.hand.claim(free, stand.labels("", "s"))).labels.sandbox_id == free


async def check_65_what_is_released_is_given_to_nobody(stand: Stand) -> None:
    """Also while its release is under way."""
    free = await stand.free()
    releasing = asyncio.create_task(stand.hand.release(free))
    await asyncio.sleep(0)
    await refused(Gone, "SANDBOX_GONE", stand.hand.claim(free, stand.labels("", "s")))
    await releasing
    await refused(Gone, "SANDBOX_GONE", stand.hand.claim(free, stand.labels("", "s")))


async def check_66_a_service_with_many_descriptors_makes_sandboxes(stand: Stand) -> None:
    """Whichever number a new socket of the service has, also one that the runner gives to its children."""
    stand.needs(CUSTODY)
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] <= max(DESCRIPTORS):
        held.append(os.dup(held[0]))
    for number in DESCRIPTORS:
        held.remove(number)
        os.close(number)
    try:
        sandboxes = [await stand.id() for _ in DESCRIPTORS]
        results = [await stand.bash(sandbox, "echo here") for sandbox in sandboxes]
        assert [result.text for result in results] == ["here"] * len(DESCRIPTORS)
    finally:
        for number in held:
            os.close(number)


async def check_67_those_who_release_at_once_wait_for_each_other(stand: Stand) -> None:
    """A sandbox that is full is removed once: each who wants it gone hears when it is, and none of a fault."""
    sandbox = await stand.id()
    await stand.bash(sandbox, "mkdir -p d/{1..40}/{1..40}; for d in d/*/*; do echo > $d/f; done; echo made")
    await asyncio.gather(*(stand.hand.release(sandbox) for _ in range(8)))
    assert await stand.hand.find(sandbox) is None


def _token() -> str:
    """Returns a number of seconds, longer than any test, that nobody else sleeps."""
    return f"9{time.time_ns()}"


CHECKS: tuple[Callable[[Stand], Awaitable[None]], ...] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)
