"""The system call filter of a sandbox, as classic BPF for `bwrap --seccomp`.

A network namespace does not hold AF_VSOCK, and the kernel's wider surfaces (io_uring, bpf, keyrings, the new mount calls) have
no use in a sandbox. clone3 answers ENOSYS, so that libc falls back to clone, whose flags can be read: no user namespace by it.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct

from eval_pipeline.errors import IsolationUnavailable

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_X32_BIT = 0x40000000
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)

# name: (x86_64, aarch64)
_DENIED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
_SOCKET = {"socket": (41, 198), "socketpair": (53, 199)}
_CLONE = (56, 220)
_CLONE3 = 435
_CLONE_NEWUSER = 0x10000000
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def supported(machine: str) -> bool:
    return machine in _MACHINES


def program(machine: str | None = None) -> bytes:
    """The filter for `machine` (default: this one). Raises IsolationUnavailable for a machine whose numbers are not known."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise IsolationUnavailable(
            f"no system call filter for the machine type {machine!r}; known: {', '.join(_MACHINES)}",
            hint="run the local backend on one of those, or use another backend",
        )
    column, arch = _MACHINES[machine]
    code = [_op(_LOAD_WORD, _ARCH), _op(_JUMP_EQUAL, arch, 1, 0), _op(_RETURN, _KILL_PROCESS), _op(_LOAD_WORD, _NUMBER)]
    if machine == "x86_64":
        code += [_op(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    for numbers in _DENIED.values():
        code += [_op(_JUMP_EQUAL, numbers[column], 0, 1), _op(_RETURN, _ERROR | errno.EPERM)]
    code += [_op(_JUMP_EQUAL, _CLONE3, 0, 1), _op(_RETURN, _ERROR | errno.ENOSYS)]
    by_flag = [_op(_LOAD_WORD, _FIRST_ARGUMENT), _op(_JUMP_ANY_BIT, _CLONE_NEWUSER, 0, 1), _op(_RETURN, _ERROR | errno.EPERM)]
    code += [_op(_JUMP_EQUAL, _CLONE[column], 0, len(by_flag) + 1), *by_flag, _op(_RETURN, _ALLOW)]
    families = [_op(_LOAD_WORD, _FIRST_ARGUMENT)]
    families += [_op(_JUMP_EQUAL, int(family), len(_FAMILIES) - place, 0) for place, family in enumerate(_FAMILIES)]
    families.append(_op(_RETURN, _ERROR | errno.EAFNOSUPPORT))
    code.append(_op(_JUMP_EQUAL, _SOCKET["socket"][column], 1, 0))
    code.append(_op(_JUMP_EQUAL, _SOCKET["socketpair"][column], 0, len(families)))
    return b"".join([*code, *families, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
