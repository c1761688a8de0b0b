"""The screen of `handmesh top`: draws again and again, and obeys keys. Needs a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from handmesh.cli.printing import console
from handmesh.cli.top import looked
from handmesh.cli.top_reading import Reading, Seen
from handmesh.cli.top_rows import SORTS, Rates, Row, ordered
from handmesh.cli.top_table import head, table
from handmesh.client import HandmeshError

AROUND = 5  # lines that are not sessions


class Screen:
    """Shows sessions until `q` or Ctrl-C."""

    def __init__(
        self, reading: Reading, rates: Rates, interval: float, stuck: float, sort: str, everything: bool
    ) -> None:
        self._reading = reading
        self._rates = rates
        self._interval = interval
        self._stuck = stuck
        self._sort = sort
        self._everything = everything
        self._asleep = True
        self._seen, self._rows = Seen(), list[Row]()
        self._problem = ""
        self._pressed = asyncio.Event()
        self._left = False

    async def run(self) -> None:
        """Draws until told to leave. A mesh that does not answer is said so, and asked again."""
        out = console()
        with _keys(self._press), Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
            while not self._left:
                await self._look()
                live.update(self._drawn(out.height), refresh=True)
                await self._wait(live, out.height)

    async def _look(self) -> None:
        try:
            self._seen, self._rows = await looked(
                self._reading, self._rates, self._stuck, asleep=self._asleep, everything=self._everything
            )
            self._problem = ""
        except HandmeshError as problem:
            self._problem = f"the session service does not answer: {problem}"

    async def _wait(self, live: Live, height: int) -> None:
        """Waits for the next look; a key is obeyed at once."""
        until = asyncio.get_running_loop().time() + self._interval
        while not self._left and (left := until - asyncio.get_running_loop().time()) > 0:
            self._pressed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._pressed.wait()
            except TimeoutError:
                return
            live.update(self._drawn(height), refresh=True)

    def _press(self, key: str) -> None:
        match key:
            case "q" | "Q":
                self._left = True
            case "s":
                self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
            case "a":
                self._asleep = not self._asleep
        self._pressed.set()

    def _drawn(self, height: int) -> Group:
        rows = [row for row in self._rows if self._asleep or row.state != "asleep"]
        room = max(1, height - AROUND)
        more = f"   {len(rows) - room} more below" if len(rows) > room else ""
        keys = Text(f"q leaves   s sorts (by {self._sort})   a asleep{more}", style="dim")
        problem = [Text(self._problem, style="bold red")] if self._problem else []
        return Group(*problem, head(self._seen, self._rows), table(ordered(rows, self._sort)[:room]), keys)


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Hands on each key as it is pressed, where there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(descriptor, 64).decode(errors="replace"):
            press(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
