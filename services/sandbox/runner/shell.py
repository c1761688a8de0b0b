"""Runs commands in a bash whose state outlives it.

Each command gets a fresh bash, in its own session, that first reads what the one before left (directory, umask,
variables, functions) and last writes what it leaves. So `exit`, `exec`, a crash or a kill cost nothing but the
state of that one command, and commands may run side by side (the last to end leaves its state).
"""

from __future__ import annotations

import re

PATH = "/bin/bash"
DESCRIPTORS = GO_FD, ORDER_FD, STATE_FD, SIDE_FD = 216, 217, 218, 219  # far from what commands use
MAX_STATE_BYTES = 1 << 20

_SAVE = (
    "__handmesh_code=$?; builtin set +eux; "
    "if [[ -z ${__handmesh_saved-} && -n ${__handmesh_go-} ]]; then __handmesh_saved=1; "
    f'{{ builtin printf "cd -- %q\\n" "$PWD"; builtin umask -p; declare -p; declare -f; }} >&{SIDE_FD}; '
    "fi; "
    "builtin exit $__handmesh_code"
)
# It starts before there is a command: offers itself to the kernel's killer before the runner, takes up the state, waits
# for a byte, and says by a byte that it has begun. Saves by the trap when the command exits, and after `eval` when the
# command has replaced the trap. `builtin`: the state may have functions of such names.
_PRELUDE = (
    "{ echo 1000 >/proc/self/oom_score_adj; cd -- %s || cd /; } 2>/dev/null; "
    f". /proc/self/fd/{STATE_FD} 2>/dev/null; "
    f"__handmesh_save='{_SAVE}'; "
    "builtin trap '{ builtin eval \"$__handmesh_save\"; } 2>/dev/null' EXIT; "
    f"IFS= builtin read -r -N 1 __handmesh_go <&{GO_FD} || builtin exit 127; builtin printf . >&{SIDE_FD}; "
    f'IFS= builtin read -r -d "" -u {ORDER_FD} __handmesh_command; '
    f"exec {GO_FD}<&- {ORDER_FD}<&- {STATE_FD}<&-; "
    'builtin eval "$__handmesh_command"; { builtin eval "$__handmesh_save"; } 2>/dev/null'
)

# The name of a limit -> the flag of `ulimit`, and its unit.
_LIMITS = {
    "core": ("c", 1024),
    "data": ("d", 1024),
    "fsize": ("f", 1024),
    "memlock": ("l", 1024),
    "nofile": ("n", 1),
    "nproc": ("u", 1),
}

# Variables that bash keeps itself, and ours: not part of the state.
_OWN = re.compile(
    rb"declare -[\w-]+ (?:BASH\w*|COMP_\w+|DIRSTACK|EPOCH\w+|EUID|FUNCNAME|GROUPS|HISTCMD|HOSTNAME|HOSTTYPE|LINENO"
    rb"|MACHTYPE|OPTERR|OPTIND|OSTYPE|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_"
    rb"|HANDMESH_\w+|__handmesh_\w+)(?:=|$)"
)


def arguments(workspace: str, limits: dict[str, int]) -> list[str]:
    """Returns the arguments of a bash that limits itself for good and waits for its order.

    `limits` are those of `setrlimit`, without RLIMIT_ and in lower case; sizes in bytes, of which it takes whole KiB.
    """
    flags = " ".join(f"-{_LIMITS[name][0]} {value // _LIMITS[name][1]}" for name, value in limits.items())
    prelude = f"ulimit {flags} || exit 127; {_PRELUDE}" if flags else _PRELUDE
    return ["bash", "--noprofile", "--norc", "-c", prelude.replace("%s", _quoted(workspace), 1)]


def kept(saved: bytes) -> bytes:
    """Strips a saved state of what must not be restored."""
    return b"\n".join(line for line in saved.split(b"\n") if not _OWN.match(line))


def fresh(workspace: str) -> bytes:
    """Returns the state of a shell in which nothing has run."""
    return f"cd -- {_quoted(workspace)}\n".encode()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
