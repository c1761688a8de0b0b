"""The lists of system calls: assembled right, and the same on both backends."""

from __future__ import annotations

import errno
import json
import socket
import struct

import pytest

from services.sandbox.hands.bubblewrap import seccomp
from services.sandbox.hands.docker import profile

ALLOW = 0x7FFF0000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    machine: {"read": read, **{name: numbers[column] for name, numbers in seccomp.SPECIAL.items()}}
    for machine, column, read in (("x86_64", 0, 0), ("aarch64", 1, 63))
}
MACHINES = sorted(ARCH)


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Runs the filter as the kernel does, over one call."""
    words = [number, arch or ARCH[machine], 0, 0]
    data = struct.pack("=IIII", *words) + b"".join(struct.pack("=Q", value) for value in [*arguments, *[0] * 6][:6])
    code = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            return int(value)
        else:
            holds = {0x15: accumulator == value, 0x25: accumulator > value, 0x45: bool(accumulator & value)}[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_usual_calls_pass_and_listed_ones_do_not(machine: str) -> None:
    """Every call of the list is refused; its neighbours that are not listed pass."""
    column = {"x86_64": 0, "aarch64": 1}[machine]
    listed = {numbers[column] for numbers in seccomp.DENIED.values() if numbers[column] >= 0}
    assert {verdict(machine, number) for number in listed} == {EPERM}
    special = set(NUMBERS[machine].values()) - {NUMBERS[machine]["read"]}
    others = set(range(400)) - listed - special
    assert {verdict(machine, number) for number in others} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_of_three_families(machine: str) -> None:
    """Unix and internet sockets pass; all others are refused, also when high bits hide the family."""
    for name in ("socket", "socketpair"):
        number = NUMBERS[machine][name]
        allowed = [family for family in range(64) if verdict(machine, number, family) == ALLOW]
        assert allowed == [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6]
        assert verdict(machine, number, (1 << 32) | 40) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_are_looked_at(machine: str) -> None:
    """No new namespace by clone, no typing into terminals, no fixed addresses; the usual uses pass."""
    numbers = NUMBERS[machine]
    assert verdict(machine, numbers["clone"], 0x1200011) == ALLOW
    assert verdict(machine, numbers["clone"], 0x10000000 | 17) == EPERM
    assert verdict(machine, numbers["clone3"]) == ENOSYS
    assert verdict(machine, numbers["ioctl"], 0, 0x5401) == ALLOW
    assert verdict(machine, numbers["ioctl"], 0, 0x5412) == EPERM
    assert verdict(machine, numbers["ioctl"], 0, (1 << 32) | 0x5412) == EPERM
    assert verdict(machine, numbers["personality"], 0xFFFFFFFF) == ALLOW
    assert verdict(machine, numbers["personality"], 0x0040000) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_the_runner_is_left_alone(machine: str) -> None:
    """Process 1 has the tools' user: nobody changes its limits or its priority; a process may change its own."""
    numbers = NUMBERS[machine]
    for name in ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        assert [verdict(machine, numbers[name], pid) for pid in (0, 1, 7)] == [ALLOW, EPERM, ALLOW]
    assert [verdict(machine, numbers["prlimit64"], pid) for pid in (0, 1, 7)] == [ALLOW, EPERM, EPERM]
    for name, every in (("setpriority", 2), ("ioprio_set", 3)):
        assert verdict(machine, numbers[name], 0, 0) == verdict(machine, numbers[name], 0, 7) == ALLOW
        assert verdict(machine, numbers[name], 0, 1) == verdict(machine, numbers[name], every, 0) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_other_instruction_sets_and_newer_calls_are_not_there(machine: str) -> None:
    """32-bit entry, x32 numbers and what the list does not know answer ENOSYS."""
    assert verdict(machine, NUMBERS[machine]["read"], arch=0x40000003) == ENOSYS
    assert verdict(machine, 0x40000000) == verdict(machine, 463) == verdict(machine, 0xFFFFFFFF) == ENOSYS


def test_the_machine_must_be_known() -> None:
    """There is no filter for a machine that the tables do not have."""
    with pytest.raises(KeyError):
        seccomp.program("riscv64")


def test_dockers_list_allows_nothing_that_bubblewraps_denies() -> None:
    """The two lists, one of what is allowed and one of what is not, agree."""
    rules = json.loads(profile.system_calls())
    assert rules["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {name for rule in rules["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert allowed & set(seccomp.DENIED) == set()
    free = {name for rule in rules["syscalls"] if "args" not in rule for name in rule["names"]}
    assert free & {"socket", "socketpair", "clone", "personality", "unshare", "setns"} == set()
    families = [rule["args"][0]["value"] for rule in rules["syscalls"] if "socket" in rule["names"]]
    assert families == [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6]
