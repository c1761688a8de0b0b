"""What a sandbox sees of the machine: a read-only /usr, an /etc of its own, one writable workspace. Pure of effects
but for looking at what the host has."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from services.sandbox.hand import WORKSPACE, Limits, Recipe

UID = 10001  # inside; outside it is the service's user, or one of its own when the service is root
RUNNER = "/opt/handmesh/runner.pyz"
RECORDS = "/run/handmesh"
OOM_FILE = "/opt/handmesh/oom"
_OWN_PYTHON = "/opt/handmesh/python"
_TMP_BYTES = 256 << 20
_SHM_BYTES = 64 << 20
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--clearenv"),
)
NO_NESTING = "--disable-userns"

_ETC = {
    "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:{UID}:{UID}:sandbox:{WORKSPACE}:/bin/bash\n",
    "group": f"root:x:0:\nsandbox:x:{UID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}
_FROM_HOST = ("alternatives", "ld.so.cache")  # how Debian finds awk and libraries; no secrets live there


def write_etc(folder: Path, root: Path) -> None:
    """Makes the /etc of a sandbox; what it takes from the root's one is only a place to mount it."""
    folder.mkdir()
    for name, content in _ETC.items():
        (folder / name).write_text(content)
    for name in _FROM_HOST:
        if (root / "etc" / name).is_dir():
            (folder / name).mkdir()
        elif (root / "etc" / name).exists():
            (folder / name).touch()


def python(root: Path) -> tuple[str, Path | None]:
    """Returns the Python to run the runner with: its path inside, and the host's folder to show there, if any.

    The view's own is taken when it has 3.8 or newer, else the one that runs the service.
    """
    for folder in ("usr/bin", "usr/local/bin"):
        for found in sorted((root / folder).glob("python3.*"), key=_minor, reverse=True):
            if _minor(found) >= 8:
                return f"/{folder}/{found.name}", None
    return f"{_OWN_PYTHON}/bin/python3.{sys.version_info.minor}", Path(sys.base_prefix)


def _minor(path: Path) -> int:
    match = re.fullmatch(r"python3\.(\d+)", path.name)
    return int(match.group(1)) if match else -1


def in_memory(limits: Limits) -> int:
    """Returns how many bytes can be written to what lies in memory."""
    return _SHM_BYTES + min(_TMP_BYTES, limits.disk_bytes) + 4 * limits.output_file_bytes


def arguments(
    recipe: Recipe,
    *,
    source: Callable[[Path], str],
    etc: Path,
    workspace: Path,
    archive: Path,
    shown_python: Path | None,
    oom_file: Path | None,
) -> Sequence[str]:
    """Returns bubblewrap's arguments for the view. `source` tells where it finds a path of the host."""
    root = Path(recipe.rootfs or "/")
    usr = root / "usr"
    args = ["--ro-bind", source(usr), "/usr"]
    for name in _MERGED:
        path = root / name
        if path.is_symlink():
            args += ["--symlink", f"usr/{name}", f"/{name}"]
        elif path.is_dir():
            args += ["--ro-bind", source(path), f"/{name}"]
    args += ["--ro-bind", source(etc), "/etc"]
    for name in _FROM_HOST:
        if (root / "etc" / name).exists():
            args += ["--ro-bind", source(root / "etc" / name), f"/etc/{name}"]
    args += ["--proc", "/proc", "--dev", "/dev"]
    args += ["--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    args += ["--perms", "1777", "--size", str(min(_TMP_BYTES, recipe.limits.disk_bytes)), "--tmpfs", "/tmp"]
    args += ["--size", str(4 * recipe.limits.output_file_bytes), "--tmpfs", RECORDS]
    args += ["--ro-bind", source(archive), RUNNER]
    if shown_python is not None:
        args += ["--ro-bind", source(shown_python), _OWN_PYTHON, "--setenv", "LD_LIBRARY_PATH", f"{_OWN_PYTHON}/lib"]
    if oom_file is not None:
        args += ["--ro-bind", source(oom_file), OOM_FILE]
    args += ["--bind", source(workspace), WORKSPACE, "--chdir", WORKSPACE, "--remount-ro", "/"]
    return args
