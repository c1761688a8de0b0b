"""The system calls that a sandbox may not make, as a classic BPF program for `bwrap --seccomp`.

What is refused: other kinds of sockets than unix and internet ones (network namespaces do not hold back AF_VSOCK),
new namespaces and mounts, looking into other processes, kernel interfaces with a history of holes (io_uring, bpf,
keyrings, userfaultfd), the host's clock and name, the limits and priority of the runner, other instruction sets, and
calls newer than this list.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

# Offsets in struct seccomp_data. Arguments are 64 bits; both machines keep the low half first.
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000

_LAST_KNOWN = 462  # mseal; the same on all machines
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*
_PERSONALITIES = (0, 0xFFFFFFFF)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing on behalf of whoever watches
_RUNNER = 1  # process 1 of the namespace. It has the tools' user, but its limits and its priority are not theirs.
_EVERY_PROCESS = {"setpriority": 2, "ioprio_set": 3}  # what their first argument says for: all of this user
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH
SPECIAL = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "personality": (135, 92),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
# Name: numbers on x86-64 and arm64; -1 where there is no such call.
DENIED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, -1),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, -1),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "lsm_get_self_attr": (459, 459),
    "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, -1),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysctl": (156, -1),
    "sysfs": (139, -1),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, -1),
    "userfaultfd": (323, 282),
    "ustat": (136, -1),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}


def program(machine: str | None = None) -> bytes:
    """Assembles the filter for a machine as `uname -m` names it; this one's when not given.

    Raises KeyError for a machine that the tables do not know.
    """
    column, arch = MACHINES[machine or platform.machine()]
    special = {name: numbers[column] for name, numbers in SPECIAL.items()}
    code = [
        _load(_ARCH),
        *_unless_equal(arch, _refuse(errno.ENOSYS)),
        _load(_NR),
        *_if(_JUMP_GREATER, _LAST_KNOWN, _refuse(errno.ENOSYS)),  # x32 calls have high numbers too
        *_if(_JUMP_EQUAL, special["clone3"], _refuse(errno.ENOSYS)),  # its flags cannot be seen; libc then uses clone
    ]
    for numbers in DENIED.values():
        if numbers[column] >= 0:
            code += _if(_JUMP_EQUAL, numbers[column], _refuse(errno.EPERM))
    code += _if_call(special["clone"], [_load(_ARG0), *_if(_JUMP_ANY_BIT, _NEW_NAMESPACES, _refuse(errno.EPERM))])
    code += _if_call(special["ioctl"], [_load(_ARG1), *_none_of(_TERMINAL_INPUT)])
    code += _if_call(special["personality"], [_load(_ARG0), *_one_of(_PERSONALITIES)])
    code += _if_call(special["prlimit64"], [_load(_ARG0), *_one_of((0,))])  # its own limits
    for name in ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        code += _if_call(special[name], [_load(_ARG0), *_none_of((_RUNNER,))])
    for name, every in _EVERY_PROCESS.items():
        code += _if_call(special[name], [_load(_ARG0), *_none_of((every,)), _load(_ARG1), *_none_of((_RUNNER,))])
    for name in ("socket", "socketpair"):
        code += _if_call(special[name], [_load(_ARG0), *_one_of(_FAMILIES)])
    return b"".join([*code, _allow()])


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _allow() -> bytes:
    return _instruction(_RETURN, _ALLOW)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _REFUSE | number)


def _if(jump: int, value: int, then: bytes) -> list[bytes]:
    """One instruction that runs only if the accumulator compares so."""
    return [_instruction(jump, value, 0, 1), then]


def _unless_equal(value: int, then: bytes) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, value, 1, 0), then]


def _if_call(number: int, block: list[bytes]) -> list[bytes]:
    """A block for one call: what it does not refuse, it allows."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(block) + 1), *block, _allow()]


def _none_of(values: tuple[int, ...]) -> list[bytes]:
    return [part for value in values for part in _if(_JUMP_EQUAL, value, _refuse(errno.EPERM))]


def _one_of(values: tuple[int, ...]) -> list[bytes]:
    return [*(part for value in values for part in _if(_JUMP_EQUAL, value, _allow())), _refuse(errno.EPERM)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
