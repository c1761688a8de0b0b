"""A phone as a hand, as Android's test tools show one: tap, swipe, type, screenshot, and the screen as text.

    python examples/hands/phone.py --connect HOST:PORT --name phone --token-file FILE

It is drawn here, with two apps: notes and settings. Each session has a phone of its own. A real one would be the same
hand with `adb shell input tap`, `uiautomator dump` and `screencap` in the five methods.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from PIL import Image as Pictures
from PIL import ImageDraw

from handmesh.hand import Call, Hand, Image, ToolError, tool

WIDTH, HEIGHT, ROW = 240, 400, 40
ROWS_SHOWN = 7
MOST_NOTES, MOST_TEXT = 50, 200


@dataclass(frozen=True)
class Widget:
    """Something on the screen: its kind, its text, where it is, and what a tap on it does."""

    kind: str
    text: str
    top: int
    left: int = 10
    right: int = WIDTH - 10
    tap: Callable[[], None] | None = None

    @property
    def bottom(self) -> int:
        return self.top + ROW - 6

    def holds(self, x: int, y: int) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom


@dataclass
class Phone:
    """One phone: which app is open, and what is in it."""

    app: str = "home"
    notes: list[str] = field(default_factory=lambda: ["buy milk"])
    draft: str = ""
    focused: bool = False
    scrolled: int = 0
    settings: dict[str, bool] = field(default_factory=lambda: {"wifi": True, "dark theme": False})

    def open(self, app: str) -> None:
        self.app, self.scrolled, self.focused = app, 0, False

    def widgets(self) -> Iterator[Widget]:
        """Yields what the screen shows, from top to bottom."""
        yield Widget("title", self.app.capitalize(), 6)
        if self.app == "home":
            for number, app in enumerate(("notes", "settings")):
                yield Widget("icon", app, 60 + ROW * number, tap=lambda app=app: self.open(app))
            return
        yield Widget("button", "home", HEIGHT - ROW, 70, WIDTH - 70, tap=lambda: self.open("home"))
        if self.app == "notes":
            yield Widget("field", self.draft or "new note", 50, 10, 170, tap=self._focus)
            yield Widget("button", "add", 50, 176, tap=self._add)
            for number, note in enumerate(self.notes[self.scrolled : self.scrolled + ROWS_SHOWN - 1]):
                yield Widget("note", note, 95 + ROW * number)
        else:
            for number, (name, on) in enumerate(self.settings.items()):
                text = f"{name}: {'on' if on else 'off'}"
                yield Widget("switch", text, 60 + ROW * number, tap=lambda name=name: self._toggle(name))

    def _focus(self) -> None:
        self.focused = True

    def _toggle(self, name: str) -> None:
        self.settings[name] = not self.settings[name]

    def _add(self) -> None:
        if self.draft and len(self.notes) < MOST_NOTES:
            self.notes.insert(0, self.draft)
        self.draft, self.focused = "", False

    def picture(self) -> bytes:
        """Draws the screen, as a PNG."""
        dark = self.settings["dark theme"]
        paper, ink, box = ("#202124", "#e8eaed", "#3c4043") if dark else ("#ffffff", "#202124", "#e8f0fe")
        picture = Pictures.new("RGB", (WIDTH, HEIGHT), paper)
        draw = ImageDraw.Draw(picture)
        for it in self.widgets():
            if it.kind != "title":
                edge = "#1a73e8" if it.kind == "field" and self.focused else box
                draw.rounded_rectangle((it.left, it.top, it.right, it.bottom), 8, fill=box, outline=edge, width=2)
            draw.text((it.left + 8, it.top + 10), it.text[:32], fill=ink)
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue()


class PhoneHand(Hand):
    """A phone with a touch screen of 240 by 400 pixels: look with `screenshot` or `ui`, then tap, swipe and type."""

    def __init__(self) -> None:
        self._phones: dict[str, Phone] = {}

    def _phone(self, call: Call) -> Phone:
        return self._phones.setdefault(call.sandbox_id, Phone())

    @tool
    def tap(self, x: Annotated[int, "Pixels from the left."], y: Annotated[int, "From the top."], call: Call) -> str:
        """Taps the screen; says what was hit."""
        hit = next((it for it in self._phone(call).widgets() if it.tap is not None and it.holds(x, y)), None)
        if hit is None or hit.tap is None:
            return "nothing there can be tapped"
        hit.tap()
        return f"tapped the {hit.kind} {hit.text!r}"

    @tool
    def swipe(self, direction: Literal["up", "down"], call: Call) -> str:
        """Swipes over the screen: a list that is longer than it moves by a row."""
        phone = self._phone(call)
        most = max(0, len(phone.notes) - ROWS_SHOWN + 1)
        phone.scrolled = max(0, min(most, phone.scrolled + (1 if direction == "up" else -1)))
        return f"swiped {direction}"

    @tool(name="type")
    def type_(self, text: Annotated[str, "At most 200 characters."], call: Call) -> str:
        """Types into the field that was tapped."""
        phone = self._phone(call)
        if not phone.focused:
            raise ToolError("no field has the focus: tap one first")
        phone.draft = (phone.draft + text)[:MOST_TEXT]
        return f"the field says {phone.draft!r}"

    @tool(read_only=True)
    def screenshot(self, call: Call) -> Image:
        """Shows the screen."""
        return Image(self._phone(call).picture())

    @tool(read_only=True)
    def ui(self, call: Call) -> str:
        """Tells the screen as text: what is there, and the rectangle that it takes, as left, top, right, bottom."""
        return "\n".join(
            f"{it.kind} {it.text!r} [{it.left},{it.top},{it.right},{it.bottom}]{' (can be tapped)' if it.tap else ''}"
            for it in self._phone(call).widgets()
        )

    async def released(self, sandbox_id: str) -> None:
        """Puts a session's phone away."""
        self._phones.pop(sandbox_id, None)


if __name__ == "__main__":
    PhoneHand().run()
