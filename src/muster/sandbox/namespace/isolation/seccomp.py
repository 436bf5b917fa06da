"""The system call filter, as a classic BPF program that bubblewrap loads.

Law: deny what lets root without capabilities climb back: new user namespaces (inside one it could mount the
host's cgroups), mounts, kernel keys, BPF, io_uring, modules, clocks; and what could end PID 1 by a hand that looks
like the host's: tracing it, writing its memory, setting its CPU limit. All else is allowed.

    architecture? ─no─► EPERM      clone/unshare with CLONE_NEWUSER ─► EPERM      clone3 ─► ENOSYS (libc falls back)

Numbers: the kernel's system call tables; calls from 424 on have the same number everywhere.
"""

from __future__ import annotations

import errno
import platform
import struct

from muster.errors import SandboxStartError

_CLONE3 = 435
_CLONE_NEWUSER = 0x10000000
_X32_BIT = 0x40000000

# name: (x86_64, aarch64)
_DENIED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
# denied on PID 1 alone: (x86_64, aarch64), and which argument is the process
_ON_INIT = {
    "ptrace": ((101, 117), 1),
    "process_vm_writev": ((311, 271), 0),
    "prlimit64": ((302, 261), 0),
}
_CLONE = (56, 220)
_UNSHARE = (272, 97)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45  # BPF_JMP | {JEQ, JGE, JSET} | BPF_K
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
# offsets in struct seccomp_data, little endian; an argument's low half comes first
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8


def program(machine: str | None = None) -> bytes:
    """The filter for `machine` (default: this one). Raises `SandboxStartError` on an unknown architecture."""
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise SandboxStartError(f"no system call filter for {machine}: namespace sandboxes need x86_64 or aarch64")
    column = 0 if machine == "x86_64" else 1
    code = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_EQUAL, _AUDIT_ARCH[machine], if_true=1),
        _op(_RETURN, _ERRNO | errno.EPERM),
        _op(_LOAD, _NUMBER),
        # the x32 calls are the same calls under other numbers
        *_deny(_AT_LEAST, _X32_BIT, errno.ENOSYS),
        *_deny(_EQUAL, _CLONE3, errno.ENOSYS),
    ]
    for numbers in _DENIED.values():
        code += _deny(_EQUAL, numbers[column], errno.EPERM)
    for numbers, argument in _ON_INIT.values():
        code += [
            _op(_EQUAL, numbers[column], if_false=4),
            _op(_LOAD, _FIRST_ARGUMENT + argument * _ARGUMENT_BYTES),
            *_deny(_EQUAL, 1, errno.EPERM),
            _op(_RETURN, _ALLOW),
        ]
    code += [
        _op(_EQUAL, _CLONE[column], if_true=1),
        _op(_EQUAL, _UNSHARE[column], if_false=3),
        _op(_LOAD, _FIRST_ARGUMENT),
        *_deny(_ANY_BIT, _CLONE_NEWUSER, errno.EPERM),
        _op(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _op(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _deny(test: int, value: int, error: int) -> list[bytes]:
    return [_op(test, value, if_false=1), _op(_RETURN, _ERRNO | error)]
