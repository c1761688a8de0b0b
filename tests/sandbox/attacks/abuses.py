"""What hostile code does to its own sandbox. `{size}` in a command is how much of it.

Each is a program that ends by itself, by its time limit or by a limit of the sandbox. None of them may harm the next
execution in the same sandbox, or what runs in another one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Abuse:
    """A command, for how long it may run, what limit of a sandbox it needs, and how big it is in CI and in a drill."""

    command: str
    seconds: float = 30.0
    said: str = ""  # in the result
    environment: str = "narrow"
    limit: str = ""  # whose lack, said by the backend, makes it too dangerous to try
    ci: int = 0
    full: int = 0

    def text(self, size: int) -> str:
        """Returns the command at a size."""
        return self.command.replace("{size}", str(size))


def _python(script: str) -> str:
    return f"python3 - <<'END'\n{script}\nEND"


_DAEMONS = _python("""
import os, time
for number in range({size}):
    if os.fork() == 0:
        os.setsid()
        try:
            if os.fork() == 0:
                os.chdir("/")
                for descriptor in range(3):
                    os.close(descriptor)
                os.execve("/usr/bin/sleep", ["[kworker/0:1]", "98765"], {})
        finally:
            os._exit(0)
    os.wait()
    if number % 50 == 49:
        time.sleep(0.01)
print("made them")
""")

_HYDRA = _python("""
import os, signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
print("up", flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
""")

_MANY = _python("""
import os, sys
made = 0
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try:
        for number in range({size}):
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError as error:
        print(folder, error.strerror)
print("made", made > 0)
""")

_DEEP = _python("""
import os
for number in range({size}):
    os.mkdir("d" * 50)
    os.chdir("d" * 50)
print("made")
""")

_DESCRIPTORS = _python("""
import os, socket
held = []
try:
    while True:
        held += socket.socketpair()
        os.set_blocking(held[-1].fileno(), False)
        try:
            while held[-1].send(bytes(1 << 16)):
                pass
        except BlockingIOError:
            pass
except OSError as error:
    print(error.strerror)
""")

_PROCESSES_WITH_DESCRIPTORS = _python("""
import os, time
for _ in range(40):
    try:
        if os.fork() == 0:
            try:
                while True:
                    os.memfd_create("x")
            except OSError:
                time.sleep(60)
    except OSError:
        break
print("up", flush=True)
time.sleep(60)
""")

_VICTIMS = _python("""
import os, signal, time
for name in os.listdir("/proc"):
    if not name.isdigit() or int(name) == os.getpid():
        continue
    for attempt in (lambda: os.kill(int(name), signal.SIGSTOP), lambda: os.kill(int(name), signal.SIGKILL)):
        try:
            attempt()
        except OSError:
            pass
    try:
        for number in os.listdir(f"/proc/{name}/fd"):
            try:
                descriptor = os.open(f"/proc/{name}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
                os.write(descriptor, b"\\0" * 100)
                os.ftruncate(descriptor, 0)
            except OSError:
                pass
    except OSError:
        pass
print("done")
""")

ABUSES = {
    "fork bomb": Abuse("f() { f | f & }; f; sleep 60", seconds=1.5, said="timed out"),
    "processes that ignore every signal and split": Abuse(_HYDRA, seconds=1.5, said="timed out"),
    "orphans": Abuse(_DAEMONS, said="made them", environment="wide", ci=500, full=5_000),
    "orphans at the limit of processes": Abuse(
        "for i in $(seq {size}); do (setsid env -i /bin/sleep 98765 &) 2>/dev/null; done; echo made",
        seconds=2.0,
        ci=100,
        full=1_000,
    ),
    "memory bomb": Abuse(
        'python3 -c "x = bytearray({size} << 20)" || exit', said="out of memory", limit="memory", ci=1024, full=1024
    ),
    "memory bomb in one process": Abuse('python3 -c "x = bytearray({size} << 20)"', ci=2048, full=2048),
    "memory bomb of many": Abuse(
        "for i in 1 2 3 4 5 6 7 8; do"
        " python3 -c 'x = bytearray({size} << 20); import time; time.sleep(0.5)' & done; wait",
        limit="memory",
        said="out of memory",
        ci=200,
        full=200,
    ),
    "memory bomb in files": Abuse(
        "for f in /tmp /dev/shm /workspace; do cat /dev/zero > $f/full; done 2>/dev/null;"
        " python3 -c 'bytearray(1 << 30)'",
    ),
    "disk fill": Abuse(
        "for f in /workspace /tmp /dev/shm /dev /run /run/handmesh /; do cat /dev/zero > $f/full; done 2>/dev/null;"
        " echo full",
        said="full",
    ),
    "hole": Abuse("truncate -s 1T hole; ls -s hole; echo on", said="on"),
    "inodes": Abuse(_MANY, ci=10_000, full=1_000_000),
    "deep tree": Abuse(_DEEP, said="made", ci=2_000, full=15_000),
    "locked tree": Abuse(
        "mkdir -p locked/a/b .removed-0; touch locked/a/b/c locked/.removed-1; ln -s /etc locked/etc; chmod -R 0 locked"
    ),
    "descriptors": Abuse(_DESCRIPTORS, said="Too many open files"),
    "descriptors of many": Abuse(_PROCESSES_WITH_DESCRIPTORS, seconds=1.5, said="timed out"),
    "output flood": Abuse("yes | head -c {size}M", ci=100, full=2_000),
    "output on one line": Abuse("head -c {size}M /dev/zero | tr '\\0' x; echo; exit 0", ci=50, full=500),
    "output in tiny writes": Abuse(
        _python("import os\nfor _ in range({size}): os.write(1, b'x')"), ci=100_000, full=10_000_000
    ),
    "suicide": Abuse("kill -9 -1; echo on", said="on"),
    "stop everything": Abuse("kill -STOP -1; kill -9 1; kill -TERM 1; kill -INT 1; echo on", said="on"),
    "stop itself": Abuse("kill -STOP $$; echo on", seconds=1.0, said="timed out"),
    "others' descriptors": Abuse(_VICTIMS),
    "runner's files": Abuse(
        "rm -rf /run/handmesh/* /run/handmesh-door/* /opt/handmesh/* /workspace/* /tmp/*;"
        " chmod 0 /run/handmesh /workspace;"
        " mv /workspace /w; rm -rf /run/handmesh; ln -s / /run/handmesh; mkfifo /run/handmesh/99; echo on",
        said="on",
    ),
    "closed descriptors": Abuse("exec 0<&- 1>&- 2>&- 216<&- 217<&- 218<&- 219<&-; echo on; exit 3"),
    "filled side channel": Abuse("head -c 100M /dev/zero >&219; echo on", said="on"),
    "held output": Abuse("(trap '' TERM HUP; sleep 98765) & disown; echo on", said="on"),
    "terminal escapes": Abuse(
        "printf '\\e]0;owned\\a\\e[2J\\e[31mred\\e[0m\\e]52;c;aGk=\\a\\eP1$r\\e\\\\\\x9b31m';"
        " printf '\\b\\r\\x07\\x00 on'",
        said="on",
    ),
    "much work without a word": Abuse("yes | head -c {size}M | md5sum", said="  -", ci=100, full=1_024),
    "no text": Abuse("head -c 200000 /dev/urandom; printf '\\xff\\xfe\\xed\\xa0\\x80'"),
    "working folder gone": Abuse("mkdir gone; cd gone; rmdir ../gone; echo on", said="on"),
    "shell state": Abuse(
        "PATH=/nowhere; cd() { :; }; exit() { :; }; printf() { :; }; eval() { :; }; trap '' EXIT; readonly HOME=/x; "
        "declare() { while :; do :; done; }; set -u; IFS=x; shopt -s extdebug; enable -n kill; echo on",
        said="on",
        seconds=2.0,
    ),
}
