"""Runs commands in a bash whose state outlives it.

Each command gets a fresh bash, in its own session, that first reads what the one before left (directory, umask,
variables, functions) and last writes what it leaves. So `exit`, `exec`, a crash or a kill cost nothing but the
state of that one command, and commands may run side by side (the last to end leaves its state).
"""

from __future__ import annotations

import re

GO_FD, ORDER_FD, STATE_FD, SIDE_FD = 216, 217, 218, 219  # far from what commands use
MAX_STATE_BYTES = 1 << 20

_SAVE = (
    "__handmesh_code=$?; set +eux; "
    'if [ -z "${__handmesh_saved-}" ]; then __handmesh_saved=1; '
    f'{{ printf "cd -- %q\\n" "$PWD"; umask -p; declare -p; declare -f; }} >&{SIDE_FD}; fi; '
    "exit $__handmesh_code"
)
# It starts before there is a command, waits for a byte, and says by a byte that it has begun. Saves by the trap when
# the command exits, and after `eval` when the command has replaced the trap.
_PRELUDE = (
    f"IFS= read -r -N 1 __handmesh_go <&{GO_FD} || exit 127; printf . >&{SIDE_FD}; "
    f". /proc/self/fd/{STATE_FD} 2>/dev/null; "
    f'IFS= read -r -d "" __handmesh_command </proc/self/fd/{ORDER_FD}; '
    f"exec {GO_FD}<&- {ORDER_FD}<&- {STATE_FD}<&-; "
    f"__handmesh_save='{_SAVE}'; "
    "trap '{ eval \"$__handmesh_save\"; } 2>/dev/null' EXIT; "
    'eval "$__handmesh_command"; { eval "$__handmesh_save"; } 2>/dev/null'
)
ARGV = ("bash", "--noprofile", "--norc", "-c", _PRELUDE)

# Variables that bash keeps itself, and ours: not part of the state.
_OWN = re.compile(
    rb"declare -[\w-]+ (?:BASH\w*|COMP_\w+|DIRSTACK|EPOCH\w+|EUID|FUNCNAME|GROUPS|HISTCMD|HOSTNAME|HOSTTYPE|LINENO"
    rb"|MACHTYPE|OPTERR|OPTIND|OSTYPE|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_"
    rb"|HANDMESH_\w+|__handmesh_\w+)(?:=|$)"
)


def kept(saved: bytes) -> bytes:
    """Strips a saved state of what must not be restored."""
    return b"\n".join(line for line in saved.split(b"\n") if not _OWN.match(line))


def fresh(workspace: str) -> bytes:
    """Returns the state of a shell in which nothing has run."""
    return b"cd -- '" + workspace.replace("'", "'\\''").encode() + b"'\n"
