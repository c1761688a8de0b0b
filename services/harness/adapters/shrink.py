"""A program of its own: an image on standard input, a smaller one on standard output, behind a line of its media type.

Knows nothing of the harness, so that it can run alone, with few rights (see `pictures`). Exits with 1 when it cannot.
"""

from __future__ import annotations

import io
import resource
import sys

MAX_SIDE = 1_568  # pixels: a bigger image is made as small as this by the API before the model sees it
MAX_PIXELS = 64_000_000  # an 8,000 x 8,000 image: 256 MB while it is decoded
MAX_BYTES = 3_500_000  # of the result: in base64 it stays under the API's 5 MB
MEMORY_BYTES = 1_500_000_000
CPU_SECONDS = 15
QUALITIES = (90, 75, 50)


def main() -> int:
    """Reads, shrinks, writes. Returns the exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        from PIL import Image
    except ImportError:
        return 1
    Image.MAX_IMAGE_PIXELS = None  # checked below, before anything is decoded
    try:
        image = Image.open(io.BytesIO(sys.stdin.buffer.read()), formats=["PNG", "JPEG", "GIF", "WEBP"])
        if image.width * image.height > MAX_PIXELS:
            return 1
        image.draft("RGB", (MAX_SIDE, MAX_SIDE))
        image.thumbnail((MAX_SIDE, MAX_SIDE), reducing_gap=2.0)
    except (OSError, ValueError, SyntaxError, MemoryError, EOFError, Image.DecompressionBombError):
        return 1
    clear = image.has_transparency_data
    picture = image.convert("RGBA" if clear else "RGB")
    made = io.BytesIO()
    picture.save(made, "PNG", optimize=False)
    media_type = b"image/png"
    if made.tell() > MAX_BYTES or image.format == "JPEG":
        if clear:
            plain = Image.new("RGB", picture.size, "white")
            plain.paste(picture, mask=picture.getchannel("A"))
            picture = plain
        media_type = b"image/jpeg"
        for quality in QUALITIES:
            made = io.BytesIO()
            picture.save(made, "JPEG", quality=quality)
            if made.tell() <= MAX_BYTES:
                break
    sys.stdout.buffer.write(media_type + b"\n" + made.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
