"""Looks for a text in everything that can be read: `secrets.py TEXT FOLDER...`. Prints where it was found, as JSON."""

import json
import os
import stat
import sys
import time

FRESH_SECONDS = 3_600  # what was planted is younger
MOST_BYTES = 4 << 20
PROCESS_FILES = ("environ", "cmdline", "maps", "mountinfo", "mounts", "status", "comm", "stack", "io", "attr/current")

text = sys.argv[1].encode()
found, read = [], 0


def look(path: str) -> None:
    """Reads one file, if it may be read."""
    global read
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            read += 1
            if text in os.read(descriptor, MOST_BYTES):
                found.append(path)
    except OSError:
        pass
    finally:
        os.close(descriptor)


mine = {str(os.getpid())}  # the text is in this script's own arguments
for process in filter(str.isdigit, os.listdir("/proc")):
    for name in PROCESS_FILES:
        if not (process in mine and name == "cmdline"):
            look(f"/proc/{process}/{name}")
    try:
        for number in os.listdir(f"/proc/{process}/fd"):
            link = os.readlink(f"/proc/{process}/fd/{number}")
            if sys.argv[1] in link:
                found.append(link)
            if "memfd:order" not in link and process not in mine:  # this script is in its order
                look(f"/proc/{process}/fd/{number}")
    except OSError:
        pass
for name in ("/proc/net/unix", "/proc/net/tcp", "/proc/cmdline", "/proc/keys", "/proc/mounts"):
    look(name)
for top in sys.argv[2:]:
    for folder, names, files in os.walk(top):
        if folder == "/":
            names[:] = [name for name in names if name not in ("proc", "sys", "usr")]
        for name in files:
            path = os.path.join(folder, name)
            if sys.argv[1] in path:
                found.append(path)
            try:
                if time.time() - os.lstat(path).st_mtime < FRESH_SECONDS:
                    look(path)
            except OSError:
                pass
print(json.dumps({"found": found, "read": read}))
