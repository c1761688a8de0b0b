"""What every hand that dials out has to do, as numbered checks. Each gets a `Subject` and raises FailedError."""

from __future__ import annotations

import asyncio
import json

from handmesh.conformance.checking import Check, SkippedError, expect
from handmesh.conformance.hand.subject import Place, Subject, named, said
from handmesh.sandbox.v1.tool_pb2 import (
    TOOL_OUTCOME_INTERRUPTED,
    TOOL_OUTCOME_OK,
    TOOL_OUTCOME_TIMEOUT,
    TOOL_OUTCOME_TOOL_ERROR,
)

LOOK_SECONDS = 0.1
DOWN_SECONDS = 1.0  # that the link is cut
LINES = 2_000  # of a long output


async def offers_tools(subject: Subject) -> None:
    """Whoever may use the hand is told its tools, before anything is made."""
    tools = {tool.name: tool for tool in await subject.connected()}
    expect(subject.words.tool in tools, f"it offers {', '.join(tools)}, and not {subject.words.tool}")
    for tool in tools.values():
        schema = json.loads(tool.input_schema_json)
        expect(schema.get("type") == "object", f"the schema of {tool.name} is of type {schema.get('type')}")
        expect(bool(tool.description), f"{tool.name} has no description")


async def runs_once(subject: Subject) -> None:
    """A call is run once, however often it is sent, also side by side; each time its one result is returned."""
    async with subject.place() as place:
        file, call = named("file"), named("once")
        command = f"echo run >> {file}; sleep 0.2; cat {file}"
        results = await asyncio.gather(*(place.execute(command, call) for _ in range(3)))
        for result in [*results, await place.execute(command, call)]:
            said(result, TOOL_OUTCOME_OK, "run")


async def says_what_failed(subject: Subject) -> None:
    """A tool that fails is a result, with what it had said."""
    async with subject.place() as place:
        result = await place.execute("echo before; exit 7", named("fails"))
        said(result, TOOL_OUTCOME_TOOL_ERROR)
        expect("before" in result.output, "what a call said before it failed is lost")


async def says_everything(subject: Subject) -> None:
    """Output of many lines comes whole, in order; one of no text at all is said to be none."""
    async with subject.place() as place:
        result = await place.execute(f"seq {LINES}", named("long"))
        said(result, TOOL_OUTCOME_OK, "\n".join(map(str, range(1, LINES + 1))))
        said(await place.execute("true", named("silent")), TOOL_OUTCOME_OK)


async def obeys_a_cancel(subject: Subject) -> None:
    """A call that is cancelled ends at once, with what it had said; whatever it had started has ended, too."""
    async with subject.place() as place:
        call, file = named("cancelled"), named("file")
        beating = f"while :; do touch {file}; sleep 0.05; done"
        running = asyncio.create_task(place.execute(f"echo begun; ({beating}) & sleep 600", call))
        await _there(place, file)
        await place.cancel(call)
        result = await running
        said(result, TOOL_OUTCOME_INTERRUPTED)
        expect("begun" in result.output, f"what it said before it was cancelled is lost: {result.output[:200]!r}")
        look = f"rm -f {file}; sleep 0.3; [ ! -e {file} ]"
        left = await place.execute(look, named("look"))
        expect(left.outcome == TOOL_OUTCOME_OK, "what a call had started goes on after it was cancelled")


async def never_starts_what_was_cancelled(subject: Subject) -> None:
    """A call that was cancelled before it came does not run."""
    async with subject.place() as place:
        call, file = named("never"), named("file")
        await place.cancel(call)
        said(await place.execute(f"touch {file}", call), TOOL_OUTCOME_INTERRUPTED)
        said(await place.execute(f"[ ! -e {file} ]", named("look")), TOOL_OUTCOME_OK)


async def keeps_the_limit(subject: Subject) -> None:
    """A call that is out of time is ended."""
    async with subject.place() as place:
        said(await place.execute("sleep 600", named("slow"), seconds=0.3), TOOL_OUTCOME_TIMEOUT)


async def works_side_by_side(subject: Subject) -> None:
    """Calls do not wait for each other, as far as the hand takes several."""
    async with subject.place() as place:
        file = named("file")
        waiting = f"until [ -e {file} ]; do sleep 0.05; done; echo both"
        first = asyncio.create_task(place.execute(waiting, named("first")))
        said(await place.execute(f"touch {file}", named("second")), TOOL_OUTCOME_OK)
        said(await first, TOOL_OUTCOME_OK, "both")


async def goes_on_without_its_link(subject: Subject) -> None:
    """The link is cut while a call runs, and mended before it ends: one execution, and its whole output."""
    await _cut(subject, f"for n in 1 2 3 4; do echo $n; sleep {DOWN_SECONDS / 2}; done")


async def keeps_its_results(subject: Subject) -> None:
    """The link is cut while a call runs, and mended after it has ended: its result is kept, and told then."""
    await _cut(subject, f"echo 1; sleep {DOWN_SECONDS / 4}; echo 2; echo 3; echo 4")


async def _cut(subject: Subject, body: str) -> None:
    if subject.relay is None:
        raise SkippedError("needs the command that starts it (--command), to stand between it and the mesh")
    async with subject.place() as place:
        runs, call = named("file"), named("cut")
        command = f"echo run >> {runs}; {body}"
        running = asyncio.create_task(place.execute(command, call))
        await _there(place, runs)
        subject.relay.cut()
        await asyncio.sleep(DOWN_SECONDS)
        await subject.relay.mend()
        said(await running, TOOL_OUTCOME_OK, "1\n2\n3\n4")
        said(await place.execute(f"cat {runs}", named("look")), TOOL_OUTCOME_OK, "run")


async def _there(place: Place, file: str) -> None:
    """Waits until a call has made a file."""
    said(await place.execute(f"until [ -e {file} ]; do sleep {LOOK_SECONDS}; done", named("look")), TOOL_OUTCOME_OK)


CHECKS: list[Check[Subject]] = [
    Check("its tools are offered", offers_tools),
    Check("a call runs once", runs_once),
    Check("a tool that fails is a result", says_what_failed),
    Check("output comes whole", says_everything),
    Check("a cancel is obeyed", obeys_a_cancel),
    Check("what was cancelled before it came never starts", never_starts_what_was_cancelled),
    Check("a call's time limit is kept", keeps_the_limit),
    Check("calls do not wait for each other", works_side_by_side),
    Check("a call goes on while the link is cut", goes_on_without_its_link),
    Check("a result is kept while the link is cut", keeps_its_results),
]
