"""A Game Boy program of our own: a cursor to move, and squares to paint. Made here, byte by byte.

The arrows move the cursor by a square, A paints or clears the square under it, START clears the whole picture. The
header holds no logo, so a console would not start it; emulators with a boot program of their own do.
"""

from __future__ import annotations

BANK = 0x8000  # bytes of the smallest cartridge
START = 0x150
X, Y, HELD = 0x80, 0x81, 0x82  # in the high memory: where the cursor is, in pixels, and the buttons of the last frame
RIGHT, LEFT, UP, DOWN, A, STARTED = 4, 5, 6, 7, 0, 3  # bits of the buttons that were pressed since the last frame
MAP, TILES, SPRITES, SCREEN = 0x9800, 0x8000, 0xFE00, 0x40


class Code:
    """Machine code with labels. Jumps are absolute; a label may come after what jumps to it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def add(self, *code: int) -> None:
        """Adds bytes."""
        self.data += bytes(code)

    def here(self, label: str) -> None:
        """Names the place where the next byte comes."""
        self._labels[label] = START + len(self.data)

    def jump(self, operation: int, label: str) -> None:
        """Adds a jump or a call, to be filled in at the end."""
        self.add(operation, 0, 0)
        self._jumps.append((len(self.data) - 2, label))

    def whole(self) -> bytes:
        """Returns the code with all jumps filled in."""
        for at, label in self._jumps:
            self.data[at : at + 2] = self._labels[label].to_bytes(2, "little")
        return bytes(self.data)


JP, JP_Z, JP_NZ, CALL, RET = 0xC3, 0xCA, 0xC2, 0xCD, 0xC9


def rom() -> bytes:
    """Returns the cartridge: 32 KiB."""
    code = _program().whole()
    cartridge = bytearray(BANK)
    cartridge[0x100:0x104] = bytes((0x00, JP, START & 0xFF, START >> 8))
    cartridge[0x134:0x13C] = b"SQUARES\0"
    cartridge[START : START + len(code)] = code
    check = 0
    for byte in cartridge[0x134:0x14D]:
        check = (check - byte - 1) & 0xFF
    cartridge[0x14D] = check
    cartridge[0x14E:0x150] = (sum(cartridge) & 0xFFFF).to_bytes(2, "big")
    return bytes(cartridge)


def _program() -> Code:
    code = Code()
    code.add(0xF3, 0x31, 0xFE, 0xFF)  # di; ld sp, $fffe
    code.jump(CALL, "dark")
    _tiles(code)
    code.jump(CALL, "clear")
    code.add(0x3E, 72, 0xE0, X, 0x3E, 64, 0xE0, Y, 0xAF, 0xE0, HELD)  # the cursor stands near the middle
    code.add(0x3E, 0xE4, 0xE0, 0x47, 0xE0, 0x48)  # palettes of squares and sprites
    code.add(0x21, SPRITES & 0xFF, SPRITES >> 8, 0x06, 160, 0xAF)  # no sprite
    code.here("sprites")
    code.add(0x22, 0x05)  # ld (hl+), a; dec b
    code.jump(JP_NZ, "sprites")
    code.jump(CALL, "light")
    code.here("frame")
    code.add(0xF0, 0x44, 0xFE, 144)  # until the screen is drawn
    code.jump(JP_NZ, "frame")
    _buttons(code)
    _moves(code)
    _draw(code)
    code.here("drawn")
    code.add(0xF0, 0x44, 0xFE, 144)
    code.jump(JP_Z, "drawn")
    code.jump(JP, "frame")
    _screen(code)
    return code


def _tiles(code: Code) -> None:
    """An empty square, a full one, and the cursor: a frame."""
    frame = [0xFF, 0x81, 0x81, 0x81, 0x81, 0x81, 0x81, 0xFF]
    rows = [0x00] * 8 + [0x7E] * 8 + frame
    code.add(0x21, TILES & 0xFF, TILES >> 8)
    for row in rows:
        code.add(0x3E, row, 0x22, 0x22)  # both planes alike: the darkest shade


def _buttons(code: Code) -> None:
    """Leaves in c the buttons that are down now and were not in the last frame."""
    code.add(
        0x3E, 0x20, 0xE0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0x2F, 0xE6, 0x0F, 0xCB, 0x37, 0x47
    )  # arrows, in b's upper half
    code.add(0x3E, 0x10, 0xE0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0x2F, 0xE6, 0x0F, 0xB0, 0x47)  # the others
    code.add(0x3E, 0x30, 0xE0, 0x00, 0xF0, HELD, 0x2F, 0xA0, 0x4F, 0x78, 0xE0, HELD)


def _moves(code: Code) -> None:
    for bit, variable, step, end in ((RIGHT, X, 8, 152), (LEFT, X, -8, 0), (UP, Y, -8, 0), (DOWN, Y, 8, 136)):
        code.add(0xCB, 0x41 | bit << 3)  # bit n, c
        code.jump(JP_Z, f"not {bit}")
        code.add(0xF0, variable, 0xFE, end)
        code.jump(JP_Z, f"not {bit}")
        code.add(0xC6, step & 0xFF, 0xE0, variable)
        code.here(f"not {bit}")
    code.add(0xCB, 0x41 | A << 3)
    code.jump(JP_Z, "no paint")
    code.add(0xF0, Y, 0x6F, 0x26, 0x00, 0x29, 0x29)  # hl = 4 * y: a row of the map is 32 squares of 8 pixels
    code.add(0xF0, X, 0xCB, 0x3F, 0xCB, 0x3F, 0xCB, 0x3F, 0x5F, 0x16, MAP >> 8, 0x19)  # + x / 8 + map
    code.add(0x7E, 0xEE, 0x01, 0x77)  # xor 1
    code.here("no paint")
    code.add(0xCB, 0x41 | STARTED << 3)
    code.jump(JP_Z, "no clear")
    code.jump(CALL, "dark")
    code.jump(CALL, "clear")
    code.jump(CALL, "light")
    code.here("no clear")


def _draw(code: Code) -> None:
    code.add(0x21, SPRITES & 0xFF, SPRITES >> 8)
    code.add(0xF0, Y, 0xC6, 16, 0x22, 0xF0, X, 0xC6, 8, 0x22, 0x3E, 2, 0x22)


def _screen(code: Code) -> None:
    code.here("dark")  # the screen may be switched off only when it was just drawn
    code.add(0xF0, SCREEN, 0xCB, 0x7F, 0xC8)  # it is off already: ret z
    code.here("until drawn")
    code.add(0xF0, 0x44, 0xFE, 145)
    code.jump(JP_NZ, "until drawn")
    code.add(0xAF, 0xE0, SCREEN, RET)
    code.here("light")
    code.add(0x3E, 0x93, 0xE0, SCREEN, RET)
    code.here("clear")
    code.add(0x21, MAP & 0xFF, MAP >> 8, 0x01, 0x00, 0x04)  # ld hl, map; ld bc, 1024
    code.here("next")
    code.add(0xAF, 0x22, 0x0B, 0x78, 0xB1)  # xor a; ld (hl+), a; dec bc; ld a, b; or c
    code.jump(JP_NZ, "next")
    code.add(RET)
