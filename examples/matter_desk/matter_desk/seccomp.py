"""System calls that a shell command may not make, because Landlock does not stop them: as classic BPF for prctl.

No sockets (a Unix socket's path is none of Landlock's business before ABI 9), nothing that reaches into another process, no
System V memory or queues, and no change of rights, owners or priorities by path or pid.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# name: (x86_64, aarch64); None where the machine has no such call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "removexattrat": (466, 466),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_PRLIMIT = (302, 261)


def known_machine() -> bool:
    return platform.machine() in _MACHINES


def install() -> None:
    """For this thread and all it starts. Raises OSError, and KeyError on a machine whose numbers are not known."""
    code = program(platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, filters):
        raise OSError(ctypes.get_errno(), "the system call filter could not be set")


def program(machine: str) -> bytes:
    column, arch = _MACHINES[machine]
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, arch, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    for numbers in _DENIED.values():
        if (number := numbers[column]) is not None:
            code += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _ERROR | errno.EPERM)]
    # prlimit of one's own process alone: pid 0
    code += [_op(_EQUAL, _PRLIMIT[column], 0, 3), _op(_LOAD, _FIRST_ARGUMENT), _op(_EQUAL, 0, 1, 0)]
    return b"".join([*code, _op(_RETURN, _ERROR | errno.EPERM), _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
