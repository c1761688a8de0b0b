"""The command that gives an agent a task and follows it: run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json
from handmesh.cli.problems import run as run_body

if TYPE_CHECKING:
    from handmesh.cli.arguments import RunOptions
    from handmesh.cli.following import Item
    from handmesh.client import Client, Session

RUN_EPILOG = """\b
Examples:
  handmesh run "list the files"
  handmesh run "and now count them" --session ID         goes on with a session
  handmesh run - < task.txt > answer.txt                 the text alone goes to standard output
  handmesh run "fix the test" --environment docker       another environment for its hand
  handmesh run "compare them" --hand a=default --hand b=docker
  handmesh run "list the files" --harness claude_code    another kind of brain; see: handmesh harness types
  handmesh run "what is new?" --mcp notes=https://notes.example/mcp --vault ID
  handmesh run "what did we say?" --memory team=team --tool session_events
  handmesh run "ask three others" --children 3           it may start three sessions
  handmesh run "list the files" --json --timeout 60      every event as JSON, at most a minute

\b
Exit codes:
  0 done   1 failed   2 wrong options   3 the model refused   4 a limit was reached
  5 interrupted by somebody   124 --timeout was over   130 Ctrl-C

Ctrl-C asks the agent to stop; a second one leaves it alone. The session is kept either way.
"""


def run(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="What the agent should do; - reads it from standard input.")
    ],
    session_id: Annotated[str, typer.Option("--session", metavar="ID", help="Go on with this session.")] = "",
    harness: Annotated[
        str, typer.Option(metavar="NAME", help="The harness type, of `handmesh harness types`. Default: messages.")
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="The model's name. Default: the newest that the harness knows.")
    ] = "",
    system: Annotated[str, typer.Option(metavar="TEXT", help="The system prompt.")] = "",
    title: Annotated[str, typer.Option(metavar="TEXT", help="A title, for `handmesh sessions`.")] = "",
    environment: Annotated[str, typer.Option(metavar="ENV", help="The environment of the hand `main`.")] = "",
    hand: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=ENV]", help="A hand; NAME=@HAND for one that stands outside; repeatable."),
    ] = None,
    no_hands: Annotated[bool, typer.Option("--no-hands", help="A session without hands.")] = False,
    mcp: Annotated[list[str] | None, typer.Option(metavar="NAME=URL", help="An MCP server; may be repeated.")] = None,
    vault: Annotated[list[str] | None, typer.Option(metavar="ID", help="A vault with credentials; repeatable.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label; may be repeated.")] = None,
    budget: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="A limit: tokens=50000, cost=2.50, ...; repeatable.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A tool of the mesh's own, see docs/tools.md; repeatable.")
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option(metavar="NAME=STORE[:ro]", help="A memory store, by id or name; repeatable.")
    ] = None,
    children: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many sessions it may start; gives it the tools to do so.")
    ] = 0,
    child_depth: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many levels of sessions may be below it. Default: 1.")
    ] = 0,
    context: Annotated[
        str, typer.Option(metavar="FILE|JSON", help="How the model's context is made, see docs/context.md.")
    ] = "",
    timeout: Annotated[float | None, typer.Option(min=0.1, metavar="SECONDS", help="Stop the turn then.")] = None,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Gives an agent a task and follows it: its text as it comes, its tool calls and their results."""

    async def body() -> int:
        from handmesh.cli.arguments import RunOptions, text_of

        rest = (hand or (), no_hands, mcp or (), vault or (), label or (), budget or ())
        more = (harness, tool or (), children, child_depth, memory or (), context)
        options = RunOptions(model, system, title, environment, *rest, *more)
        text = text_of(task)
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            session, position = await _begin(mesh, text, session_id, options)
            return await _follow(mesh, session, position, as_json=as_json, timeout=timeout, goes_on=bool(session_id))

    run_body(body)


async def _begin(mesh: Client, text: str, session_id: str, options: RunOptions) -> tuple[Session, int]:
    """Says the text to a new session or to the given one; returns it and the message's position."""
    from handmesh.cli.arguments import RunOptions, UsageError, config_of
    from handmesh.cli.memory import store_of

    if not session_id:
        config = config_of(options)
        for access in config.memory_stores:
            access.memory_store_id = (await store_of(mesh, access.memory_store_id)).memory_store_id
        return await mesh.create_session(config, text), 2  # right after `SessionStarted`
    if options != RunOptions():
        raise UsageError("--session goes on with what the session is: leave out what would configure a new one")
    session = mesh.session(session_id)
    return session, await session.send(text)


async def _follow(
    mesh: Client, session: Session, position: int, *, as_json: bool, timeout: float | None, goes_on: bool
) -> int:
    import asyncio

    from handmesh.cli import exits
    from handmesh.cli.following import unless_told, until_turn_ends
    from handmesh.cli.printing import console, print_json
    from handmesh.cli.spending import name_of, way_on
    from handmesh.cli.transcript import Transcript
    from handmesh.cli.waiting import explain
    from handmesh.session.v1 import event_pb2

    transcript = Transcript(console(stderr=True))
    heard = asyncio.Event()  # a harness, or the turn's end

    def show(item: Item) -> None:
        if not isinstance(item, event_pb2.Event) or item.emitter == "harness":
            heard.set()
        if isinstance(item, event_pb2.Event):
            print_json(item) if as_json else transcript.show(item)
        elif not as_json:
            transcript.preview(item)

    async def work() -> int:
        transcript.note(f"session {session.id}")
        paused = (await session.get()).paused_budget if goes_on else ""
        code = exits.LIMIT if paused else await until_turn_ends(session, position, show)
        if code == exits.LIMIT and (paused := paused or (await session.get()).paused_budget):
            transcript.note(f"paused: {name_of(paused)}; {way_on(session.id, paused)}", "yellow")
        return code

    waiting = asyncio.create_task(explain(mesh, session.id, heard, transcript.note))
    try:
        return await unless_told(session, work(), timeout, transcript.note)
    finally:
        waiting.cancel()
        transcript.note(f"look: handmesh events {session.id}   go on: handmesh run --session {session.id} ...")
