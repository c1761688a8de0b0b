"""The commands that look at sessions and speak to them: sessions, events, send, interrupt, wake, end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from handmesh.cli.options import DataDirectory, Json, SessionId
from handmesh.cli.problems import run

if TYPE_CHECKING:
    from rich.table import Table

    from handmesh.session.v1 import session_pb2

MOST_AT_ONCE = 1_000
"""Sessions in one page, at most."""

EVENTS_EPILOG = """\b
Examples:
  handmesh events ID                    the whole log
  handmesh events ID --last 5           its last five events
  handmesh events ID --from 3 --to 7    positions 3, 4, 5 and 6
  handmesh events ID --follow           goes on as events come; Ctrl-C ends it
  handmesh events ID --json | jq .toolFinished.result.output
"""

RAISE_EPILOG = """\b
Examples:
  handmesh raise ID tokens=500000           in all
  handmesh raise ID cost=2.50 turns=20      US dollars, in all
  handmesh raise ID time=3600               seconds that harnesses are at work
  handmesh raise ID tool-calls=none         no limit
"""


def sessions(
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Only those that are idle, running, waiting, ...; may be repeated."),
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only those with this label.")] = None,
    harness: Annotated[str, typer.Option(metavar="TYPE", help="Only those of this harness type.")] = "",
    archived: Annotated[bool, typer.Option("--archived", help="Also those that are archived.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Most sessions to show.")] = 50,
    tree: Annotated[bool, typer.Option("--tree", help="Each below the session that started it.")] = False,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Lists the sessions, newest first. What is wrong with one of them: handmesh trace ID."""

    async def body() -> int:
        from handmesh.cli.arguments import labels_of, statuses_of
        from handmesh.cli.printing import console, print_json
        from handmesh.cli.spending import way_on
        from handmesh.client import connect

        statuses, labels = statuses_of(status or ()), labels_of(label or ())
        found: list[session_pb2.Session] = []
        async with connect(data_directory=data_directory) as mesh:
            async for each in mesh.sessions(
                statuses=statuses,
                labels=labels,
                harness=harness,
                include_archived=archived,
                page_size=min(limit, MOST_AT_ONCE),
            ):
                found.append(each)
                if as_json:
                    print_json(each)
                if len(found) == limit:
                    break
        if not as_json and found:
            console().print(_table(in_tree(found) if tree else [(0, each) for each in found]))
            for each in found:
                if each.paused_budget:
                    typer.echo(f"{each.session_id} is paused; {way_on(each.session_id, each.paused_budget)}", err=True)
        elif not as_json:
            typer.echo('No sessions. Start one with: handmesh run "list the files"', err=True)
        return 0

    run(body)


def events(
    session_id: SessionId,
    start: Annotated[int, typer.Option("--from", min=1, metavar="N", help="First position.")] = 1,
    end: Annotated[
        int, typer.Option("--to", min=0, metavar="N", help="Position to stop before; 0 is the log's end.")
    ] = 0,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="Only the last so many; 0 is all.")] = 0,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only this kind, such as tool_finished.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events as they come.")] = False,
    as_json: Json = False,
    data_directory: DataDirectory = None,
) -> None:
    """Prints a session's log, an event a line: position, time, emitter, kind, content."""

    async def body() -> int:
        from handmesh.cli.arguments import UsageError
        from handmesh.cli.lines import kind_of
        from handmesh.cli.printing import console, print_event, print_json
        from handmesh.client import connect

        if follow and end:
            raise UsageError("--follow has no end: leave out --to")
        out, next_position = console(), start
        async with connect(data_directory=data_directory) as mesh:
            session = mesh.session(session_id)
            if follow:  # the log may grow meanwhile: this is where following begins
                next_position = max(start, (await session.get()).last_position + 1)
            stop = next_position if follow and next_position > start else end
            if not follow or next_position > start:
                async for event in session.events(start, stop, last=last, kinds=kind or ()):
                    print_json(event) if as_json else print_event(out, event)
            if follow:
                async for event in session.watch(next_position, patience=None):
                    if not kind or kind_of(event) in kind:
                        print_json(event) if as_json else print_event(out, event)
                    if event.HasField("session_ended"):
                        break
        return 0

    run(body)


def send(
    session_id: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; - reads it from standard input.")],
    data_directory: DataDirectory = None,
) -> None:
    """Sends a session a message and returns at once; the agent goes on by itself."""

    async def body() -> int:
        from handmesh.cli.arguments import text_of
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            position = await mesh.session(session_id).send(text_of(text))
        typer.echo(f"sent, position {position}. Look: handmesh events {session_id} --from {position} --follow")
        return 0

    run(body)


def interrupt(session_id: SessionId, data_directory: DataDirectory = None) -> None:
    """Asks the agent to stop its turn. The session itself goes on with the next message."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            position = await mesh.session(session_id).interrupt()
        typer.echo(f"asked to stop, position {position}")
        return 0

    run(body)


def wake(session_id: SessionId, data_directory: DataDirectory = None) -> None:
    """Makes sure that a harness is at work on a session. Harmless at any time; sessions also wake by themselves."""

    async def body() -> int:
        from handmesh.cli.lines import enum_word
        from handmesh.client import connect
        from handmesh.harness.v1 import harness_pb2

        async with connect(data_directory=data_directory) as mesh:
            outcome = await mesh.session(session_id).wake()
        typer.echo(enum_word(harness_pb2.WakeOutcome, outcome, "WAKE_OUTCOME_"))
        return 0

    run(body)


def raise_(
    session_id: SessionId,
    budget: Annotated[list[str], typer.Argument(metavar="NAME=N...", help="What it may use: tokens=50000, cost=2.50.")],
    data_directory: DataDirectory = None,
) -> None:
    """Gives a session other limits. One that is paused at a limit goes on where it stopped."""

    async def body() -> int:
        from handmesh.cli.spending import budgets_of, limit_of, name_of
        from handmesh.client import connect

        budgets_of(budget)  # before anybody is asked
        async with connect(data_directory=data_directory) as mesh:
            session = mesh.session(session_id)
            found = await session.get()
            wanted = budgets_of(budget, found.config.budgets)
            names = list(dict.fromkeys(value.partition("=")[0] for value in budget))
            for name in names:
                typer.echo(f"{name}: {limit_of(found.config.budgets, name)} -> {limit_of(wanted, name)}")
            found.config.budgets.CopyFrom(wanted)
            await session.update(found.config, expected_position=found.last_position)
            if name_of(found.paused_budget) in names:
                typer.echo(f"it goes on. Look: handmesh events {session_id} --from {found.last_position + 1} --follow")
        return 0

    run(body)


def end(
    session_id: SessionId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for people to read.")] = "",
    data_directory: DataDirectory = None,
) -> None:
    """Ends a session for good: nothing is ever added to its log again."""

    async def body() -> int:
        from handmesh.client import connect

        async with connect(data_directory=data_directory) as mesh:
            session = await mesh.session(session_id).end(reason)
        typer.echo(f"ended, {session.last_position} events. The log stays: handmesh events {session_id}")
        return 0

    run(body)


def in_tree(found: Sequence[session_pb2.Session]) -> list[tuple[int, session_pb2.Session]]:
    """Puts each session below the one that started it, if that is there, and says how deep it lies. The others stay in
    their order; those below are in the order in which they began."""
    there = {each.session_id for each in found}
    below: dict[str, list[session_pb2.Session]] = {}
    for each in found:
        parent = each.config.parent_session_id
        if parent in there:
            below.setdefault(parent, []).insert(0, each)
        else:
            below.setdefault("", []).append(each)
    placed: list[tuple[int, session_pb2.Session]] = []

    def place(parent: str, depth: int) -> None:
        for each in below.get(parent, ()):
            placed.append((depth, each))
            place(each.session_id, depth + 1)

    place("", 0)
    return placed


def _table(found: Sequence[tuple[int, session_pb2.Session]]) -> Table:
    from rich.table import Table

    from handmesh.cli.escape import one_line
    from handmesh.cli.lines import enum_word
    from handmesh.cli.spending import dollars, status_of, tokens_of
    from handmesh.session.v1 import session_pb2

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("session", "status", "began", "turns", "events", "tokens", "cost", "title"):
        table.add_column(name, no_wrap=name != "title", justify="right" if name in _NUMBERS else "left")
    for depth, each in found:
        began = each.create_time.ToDatetime(tzinfo=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        status = enum_word(session_pb2.SessionStatus, each.status, "SESSION_STATUS_")
        cost = dollars(each.cost_micros) if each.cost_micros else "-"
        numbers = (str(each.turns), str(each.last_position), f"{tokens_of(each.usage):,}", cost)
        name = f"{'  ' * (depth - 1)}└ {each.session_id}" if depth else each.session_id
        table.add_row(name, status_of(each, status), began, *numbers, one_line(each.config.title, 60))
    return table


_NUMBERS = frozenset({"turns", "events", "tokens", "cost"})
