"""S6 to S10: what hostile code does to its own sandbox harms neither the next execution nor another sandbox."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from tests.drills.size import FULL, size
from tests.sandbox.attacks.abuses import ABUSES, Abuse
from tests.sandbox.attacks.ground import Box, Ground

pytestmark = pytest.mark.timeout(600 if FULL else 120)

NEXT_SECONDS = 10.0  # on a machine that does other things too; bench/hands measures the figure


class Neighbour:
    """Another sandbox of the same service, in which a command runs meanwhile."""

    def __init__(self, box: Box) -> None:
        """Starts the command."""
        self._box = box
        self._running = asyncio.create_task(
            box.bash("rm -f go; echo begin; touch up; until [ -e go ]; do sleep 0.02; done; seq 1000; exit 7")
        )

    async def started(self) -> None:
        """Waits until it runs."""
        await self._box.bash("until [ -e up ]; do sleep 0.01; done; rm up")

    async def noticed_nothing(self) -> None:
        """Checks that it can still be worked in, and that what ran all the time comes to its right end."""
        assert (await self._box.bash("touch go; echo next", answer=NEXT_SECONDS)).output == "next"
        result = await self._running
        lines = ["begin", *map(str, range(1, 1001)), "[exit code: 7]"]
        assert (result.output.splitlines(), result.exit_code) == (lines, 7)


async def lives_on(box: Box) -> None:
    """Checks that the next execution answers as if nothing had been, and that no process of the last one is left."""
    assert (await box.bash("echo next", answer=NEXT_SECONDS)).output == "next"
    listed = await box.bash("ps() { for p in /proc/[0-9]*; do cat $p/comm; done 2>/dev/null; }; ps | sort | uniq -c")
    assert sum(int(line.split()[0]) for line in listed.output.splitlines()) < 9, listed.output
    read = await box.run("read", {"file_path": "/etc/passwd"}, answer=NEXT_SECONDS)
    assert read.outcome == tool_pb2.TOOL_OUTCOME_OK, read.output


@pytest.mark.parametrize("name", ABUSES)
async def test_abuse(ground: Ground, neighbour: pb.Sandbox, name: str) -> None:
    """It ends in time and as is said; the next execution answers; another sandbox notices nothing."""
    abuse: Abuse = ABUSES[name]
    async with ground.sandbox(abuse.environment) as box:
        if abuse.limit and not box.enforces(abuse.limit):
            return  # the backend says so itself, and is not asked for it
        other = Neighbour(Box(box.stub, neighbour))
        await other.started()
        result = await box.bash(abuse.text(size(abuse.ci, abuse.full)), abuse.seconds, answer=abuse.seconds + 60.0)
        assert abuse.said in result.output, result.output[-1000:]
        assert len(result.output) < 200_000
        await lives_on(box)
        await other.noticed_nothing()


LIMITS = {
    # name: (what goes over it and prints `held 1` when it could, what is said of it in a narrow sandbox)
    "memory": ("x = bytearray(700 << 20); print('held', 1)", "out of memory"),
    "processes": (
        "import os, time\nfor _ in range(150):\n    os.fork() or (time.sleep(5), os._exit(0))\nprint('held', 1)",
        "Resource temporarily unavailable",
    ),
    "disk": ("import os; os.write(os.open('big', 65), bytes(100 << 20)) == 100 << 20 and print('held', 1)", ""),
    "open files": ("held = [open('/dev/null') for _ in range(700)]; print('held', 1)", "Too many open files"),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_s08_control_limits_are_what_stops(ground: Ground, limit: str) -> None:
    """The same program is stopped in a narrow sandbox and goes through in a wide one: the limit is what stopped it."""
    script, said = LIMITS[limit]
    async with ground.sandbox() as box:
        if box.enforces(limit):
            output = (await box.python(script)).output
            assert said in output and "held 1" not in output, output
    async with ground.sandbox("wide") as box:
        assert "held 1" in (await box.python(script)).output


async def test_s08_what_is_not_enforced_is_said(ground: Ground) -> None:
    """Docker and root enforce memory, cpus and processes; whoever cannot says so, in the answer to Provision."""
    async with ground.sandbox() as box:
        said = {limit.split(":")[0] for limit in box.info.unenforced_limits}
    expected = {"docker": set(), "bubblewrap": {"disk"}, "rootless": {"disk", "memory", "cpus"}}
    assert said == expected[ground.column.name]


async def test_cpus_are_shared_out(ground: Ground) -> None:
    """With a quarter of a CPU, three tenths of a second of work take more than 0.9 s, on any machine."""
    script = (
        "import time\nbegin = time.monotonic()\nwhile time.process_time() < 0.3: pass\nprint(time.monotonic() - begin)"
    )
    async with ground.sandbox("slow") as box:
        if box.enforces("cpus"):
            assert float((await box.python(script)).output) > 0.9


async def test_s09_the_service_stays_small(ground: Ground, neighbour: pb.Sandbox) -> None:
    """200 MB of output, followed by two watchers and read by two callers: the service holds less than 150 MB."""
    async with ground.sandbox("wide") as box:
        request = pb.ExecuteRequest(
            sandbox_id=box.id,
            name="bash",
            execution_id="toolu_flood",
            input=json.dumps({"command": "head -c 200M /dev/zero | tr '\\0' y; echo; echo end"}),
        )

        async def watch() -> int:
            seen = 0
            async for said in box.stub.WatchExecution(
                pb.WatchExecutionRequest(sandbox_id=box.id, execution_id="toolu_flood")
            ):
                seen += len(said.chunk)
            return seen

        first = asyncio.create_task(_execute(box, request))
        await asyncio.sleep(0)
        results = [first, asyncio.create_task(_execute(box, request))]
        while not (await box.stub.ListExecutions(pb.ListExecutionsRequest(sandbox_id=box.id))).executions:
            await asyncio.sleep(0.01)
        seen = await asyncio.gather(watch(), watch())
        for result in [await task for task in results]:
            assert result.truncated and result.output.endswith("end") and len(result.output) < 200_000
        assert min(seen) >= 60 << 20  # all that is kept of it
        assert ground.memory() < 150 << 20


async def _execute(box: Box, request: Any) -> tool_pb2.ToolResult:
    result: tool_pb2.ToolResult = (await box.stub.Execute(request, timeout=60)).result
    return result


async def test_a_thousand_small_executions(ground: Ground) -> None:
    """Each says `hi` and ends with its own code, whatever came before."""
    async with ground.sandbox() as box:
        for number in range(size(100, 1_000)):
            result = await box.bash("echo hi; exit 7")
            assert (result.output, result.exit_code) == ("hi\n[exit code: 7]", 7), number


async def test_s10_a_caller_that_leaves_ends_nothing(ground: Ground) -> None:
    """The call is cut off in the middle; the command goes on to its end, and whoever asks again gets its result."""
    async with ground.sandbox() as box:
        command = json.dumps({"command": "echo ran >> runs; until [ -e go ]; do sleep 0.01; done; cat runs"})
        request = pb.ExecuteRequest(sandbox_id=box.id, name="bash", input=command, execution_id="toolu_cut")
        call = box.stub.Execute(request)
        await box.bash("until [ -e runs ]; do sleep 0.01; done")
        call.cancel()
        await box.bash("touch go")
        assert (await box.stub.Execute(request)).result.output == "ran"


async def test_s10_no_command_makes_itself_run_twice(ground: Ground) -> None:
    """What was killed before it began is started anew; nobody can deny, by its descriptors, that it has begun."""
    deny = "echo ran >> runs; for f in /proc/self/fd/* /proc/$$/fd/*; do truncate -s 0 $f; done 2>/dev/null; kill -9 $$"
    async with ground.sandbox() as box:
        assert (await box.bash(deny, 10.0, answer=30.0)).signal == 9
        assert (await box.bash("cat runs")).output == "ran"


async def test_s10_killing_what_waits_for_orders(ground: Ground) -> None:
    """While a command kills all others of its user, each execution ends: well, or by that signal. None is forgotten."""
    killer = "until [ -e stop ]; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || kill -9 $p; done; done"
    async with ground.sandbox() as box:
        killing = asyncio.create_task(box.bash(f"{killer} 2>/dev/null; echo over", 20.0))
        for _ in range(size(6, 60)):
            result = await box.bash("echo on", 8.0, answer=NEXT_SECONDS)
            assert result.output == "on" or result.signal == 9, result
        while (await box.run("write", {"file_path": "stop", "content": ""})).outcome != tool_pb2.TOOL_OUTCOME_OK:
            continue
        assert (await killing).output == "over"
        await lives_on(box)
