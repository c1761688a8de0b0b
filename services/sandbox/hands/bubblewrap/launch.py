"""Runs before bubblewrap, as a program of its own: `python -I -S launch.py '<JSON>'`. Standard library only.

Leaves the service behind (an own session, no parent), joins the control group, and, where the service is root, becomes
the sandbox's own user. That user cannot enter the folders on the way to what the sandbox shall see; so these are
mounted under /tmp first, in a mount namespace that nobody else has.

    {"argv": [...], "wait": false, "joins": ["/sys/fs/cgroup/..."], "uid": 1879048192, "sources": ["/usr", ...]}

`sources` appear as /tmp/0, /tmp/1, ... when there is a `uid`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

STAGE = "/tmp"
_NEW_MOUNTS = 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000


def main() -> None:
    """Does it, and becomes bubblewrap."""
    told = json.loads(sys.argv[1])
    if not told.get("wait") and os.fork():
        os._exit(0)
    os.setsid()
    for path in told.get("joins", ()):
        with open(path, "w") as file:
            file.write("0")
    if told.get("uid") is not None:
        _stage(told["sources"])
        os.setgroups([])
        os.setresgid(told["uid"], told["uid"], told["uid"])
        os.setresuid(told["uid"], told["uid"], told["uid"])
    os.execve(told["argv"][0], told["argv"], {})


def _stage(sources: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)

    call("unshare", _NEW_MOUNTS)
    call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)
    descriptors = [os.open(source, os.O_PATH) for source in sources]  # before /tmp is covered
    call("mount", b"tmpfs", STAGE.encode(), b"tmpfs", 0, b"mode=0755")
    for number, descriptor in enumerate(descriptors):
        seen, place = f"/proc/self/fd/{descriptor}", f"{STAGE}/{number}"
        if os.path.isdir(seen):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        call("mount", seen.encode(), place.encode(), None, _BIND | _RECURSIVE, None)
        os.close(descriptor)


if __name__ == "__main__":
    main()
