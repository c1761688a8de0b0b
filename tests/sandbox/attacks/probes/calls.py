"""Makes system calls that no tool needs, each in a child. Prints what became of each, as JSON: ok, or an errno's name.

Arguments are such that a kernel that is asked would do it, or would complain of them and not of permission.
"""

import ctypes
import errno
import json
import mmap
import os
import platform
import signal

NEW_USER, NEW_NET, NEW_MOUNTS = 0x10000000, 0x40000000, 0x00020000
X86 = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
text = ctypes.create_string_buffer(b"x")
here = os.getpid()


def by(x86_64: int, arm64: int, *arguments: object) -> object:
    """Makes a call by its number on this machine."""
    return lambda: libc.syscall(x86_64 if X86 else arm64, *arguments)


room = ctypes.create_string_buffer(512)
CALLS = {
    "io_uring_setup": by(425, 425, 1, room),
    "userfaultfd": by(323, 282, 1),
    "keyctl": by(250, 219, 0, -3, 1),
    "add_key": by(248, 217, b"user", b"x", b"y", 1, -3),
    "request_key": by(249, 218, b"user", b"x", None, 0),
    "bpf": by(321, 280, 0, room, 64),
    "perf_event_open": by(298, 241, room, 0, -1, -1, 0),
    "unshare(user)": by(272, 97, NEW_USER),
    "unshare(mounts)": by(272, 97, NEW_MOUNTS),
    "unshare(net)": by(272, 97, NEW_NET),
    "clone(user)": by(56, 220, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0),
    "clone3": by(435, 435, room, 64),
    "mount": by(165, 40, b"none", b"/tmp", b"tmpfs", 0, None),
    "umount": by(166, 39, b"/proc", 2),
    "fsopen": by(430, 430, b"tmpfs", 0),
    "open_tree": by(428, 428, -100, b"/", 1),
    "move_mount": by(429, 429, -100, b"/", -100, b"/tmp", 0),
    "pivot_root": by(155, 41, b"/", b"/tmp"),
    "chroot": by(161, 51, b"/tmp"),
    "setns": by(308, 268, os.open("/proc/self/ns/net", os.O_RDONLY), 0),
    "open_by_handle_at": by(304, 265, -100, room, 0),
    "name_to_handle_at": by(303, 264, -100, b"/", room, room, 0),
    "ptrace": by(101, 117, 0, 0, 0, 0),
    "process_vm_readv": by(310, 270, here, room, 0, room, 0, 0),
    "process_vm_writev": by(311, 271, here, room, 0, room, 0, 0),
    "pidfd_getfd": by(438, 438, os.pidfd_open(here), 0, 0),
    "kcmp": by(312, 272, here, here, 0, 0, 0),
    "personality(no randomising)": by(135, 92, 0x0040000),
    "init_module": by(175, 105, room, 1, b""),
    "kexec_load": by(246, 104, 0, 0, None, 0),
    "reboot": by(169, 142, 0, 0, 0, None),
    "syslog": by(103, 116, 3, room, 100),
    "acct": by(163, 89, None),
    "swapon": by(167, 224, b"/x", 0),
    "quotactl": by(179, 60, 0, None, 0, None),
    "settimeofday": by(164, 170, None, room),
    "sethostname": by(170, 161, b"x", 1),
    "mknod(device)": lambda: libc.mknod(b"/tmp/device", 0o020666, 0x101),
    "setuid(0)": lambda: libc.setresuid(0, 0, 0) if os.getuid() else libc.setresuid(-1, -1, -1),
    "setgid(0)": lambda: libc.setresgid(0, 0, 0) if os.getgid() else libc.setresgid(-1, -1, -1),
    "prlimit(process 1)": by(302, 261, 1, 7, (ctypes.c_uint64 * 2)(8, 8), None),
    "sched_setscheduler(process 1)": by(144, 119, 1, 5, ctypes.byref(ctypes.c_int(0))),
    "sched_setattr(process 1)": by(314, 274, 1, (ctypes.c_uint32 * 12)(48, 5), 0),
    "setpriority(process 1)": by(141, 140, 0, 1, 19),
    "kill(process 1)": lambda: libc.kill(1, 9) if here != 1 else 0,
    "unknown": by(499, 499),
}
if X86:
    CALLS["x32"] = by(0x40000000 | 39, 0)


def terminal_input() -> int:
    """Types into a terminal as if a person did."""
    _, slave = os.openpty()
    os.setsid()
    libc.ioctl(slave, 0x540E, 0)
    return libc.ioctl(slave, 0x5412, text)


def from_32_bits() -> int:
    """getpid by the entry of 32-bit programs."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\x48\x98\xc3")
    answer = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    ctypes.set_errno(-answer if answer < 0 else 0)
    return -1 if answer < 0 else 0


CALLS["ioctl(TIOCSTI)"] = terminal_input
if X86:
    CALLS["32-bit entry"] = from_32_bits


def outcome(call: object) -> str:
    """Calls in a child, for a call may succeed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        ctypes.set_errno(0)
        try:
            answer = call()
            said = "ok" if answer >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
        except OSError as error:
            said = errno.errorcode.get(error.errno, "?")
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        said = told.read(20).decode()
    _, status = os.waitpid(child, 0)
    return said or f"signal {os.WTERMSIG(status)}"


print(json.dumps({name: outcome(call) for name, call in CALLS.items()}))
