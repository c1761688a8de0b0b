"""A Game Boy as a hand: `pip install 'handmesh[examples]'`, then

    python examples/hands/gameboy.py --connect HOST:PORT --name gameboy --token-file FILE [--rom FILE]

Each session has a console of its own. Without --rom it plays `rom.py`, a program of our own.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pyboy import PyBoy

from handmesh.hand import Call, Hand, Image, tool

sys.path.insert(0, str(Path(__file__).parent))
from rom import rom

MOST_FRAMES = 600  # of one call: ten seconds of the console's time
BOOT_FRAMES = 400  # until the emulator has shown its name
Button = Literal["up", "down", "left", "right", "a", "b", "start", "select"]


class GameBoy(Hand):
    """A Game Boy: press its buttons, let it run, and look at its screen of 160 by 144 pixels."""

    def __init__(self, cartridge: bytes) -> None:
        self._cartridge = cartridge
        self._consoles: dict[str, Any] = {}  # one for each sandbox

    def _console(self, call: Call) -> Any:
        if call.sandbox_id not in self._consoles:
            console = PyBoy(io.BytesIO(self._cartridge), window="null", sound_emulated=False, log_level="ERROR")
            console.tick(BOOT_FRAMES)
            self._consoles[call.sandbox_id] = console
        return self._consoles[call.sandbox_id]

    @tool
    def press(self, button: Button, call: Call, times: Annotated[int, "How often, 1 to 20."] = 1) -> str:
        """Presses a button of the console and lets go of it."""
        console = self._console(call)
        times = max(1, min(times, 20))
        for _ in range(times):
            console.button(button, 4)
            console.tick(8)
        return f"pressed {button}{f' {times} times' if times > 1 else ''}"

    @tool
    def wait(self, frames: Annotated[int, f"Frames of 1/60 s, at most {MOST_FRAMES}."], call: Call) -> str:
        """Lets the console run."""
        frames = max(1, min(frames, MOST_FRAMES))
        self._console(call).tick(frames)
        return f"{frames} frames have passed"

    @tool(read_only=True)
    def screenshot(self, call: Call) -> Image:
        """Shows the console's screen, twice its size.

        It is not compressed: from 64 KiB on a picture is a blob beside the log, to be looked at as a file.
        """
        console = self._console(call)
        console.tick(1, True)
        out = io.BytesIO()
        console.screen.image.convert("RGB").resize((320, 288), 0).save(out, "PNG", compress_level=0)
        return Image(out.getvalue())

    async def released(self, sandbox_id: str) -> None:
        """Switches a session's console off."""
        console = self._consoles.pop(sandbox_id, None)
        if console is not None:
            console.stop(save=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rom", type=Path)
    given, rest = parser.parse_known_args()
    GameBoy(given.rom.read_bytes() if given.rom else rom()).run(rest)
