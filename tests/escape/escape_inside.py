"""What an agent that wants out tries. Runs in a sandbox, and for the control where nothing holds it, with any Python and nothing else.

`python3 escape_inside.py WORDS`: WORDS is JSON, the names and places that an attempt needs; out comes JSON, attempt -> how it ended.
An attempt that got what it must not have says `OUT ...`. None of them does harm where it succeeds: what would be written is opened
for writing, and no more.
"""

# Paths are text here, and some of them are no paths for pathlib
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH110, PTH112, PTH115, PTH118, PTH119, PTH123, PTH208

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Words = dict[str, Any]
LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine
LIMIT_S = 20


@dataclass(frozen=True)
class Attempt:
    """control: where it must succeed: on the machine itself (host), or in the sandbox next to it (neighbour).

    platform: on a cloud platform the wall is the platform's own. outside: nothing inside can tell whether it got through.
    """

    area: str
    what: str
    control: str
    platform: bool
    run: Callable[[Words], str]
    outside: bool = False


ATTEMPTS: list[Attempt] = []


def attempt(area: str, what: str, *, control: str = "host", platform: bool = False, outside: bool = False) -> Any:
    def known(run: Callable[[Words], str]) -> Callable[[Words], str]:
        ATTEMPTS.append(Attempt(area, what, control, platform, run, outside))
        return run

    return known


def syscall(x86_64: int, aarch64: int, *words: Any) -> int:
    # As long as a register: what is left over in its upper half would count
    whole = (ctypes.c_long(word) if isinstance(word, int) else word for word in words)
    result = LIBC.syscall(x86_64 if MACHINE == "x86_64" else aarch64, *whole)
    if result < 0:
        raise OSError(ctypes.get_errno(), "syscall")
    return result


def content(path: str | bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 20)


def found(data: bytes, word: str) -> str:
    return "OUT read it" if word.encode() in data else f"read {len(data)} bytes, not those"


def writable(path: str) -> str:
    """Opened for writing, nothing written."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return "OUT opened for writing"


def of_processes(*names: str) -> Iterator[tuple[str, bytes]]:
    """What can be read below /proc/PID of each process but this one and its parents."""
    ours = {str(os.getpid()), str(os.getppid()), "self"}
    for pid in os.listdir("/proc"):
        for name in names if pid.isdecimal() and pid not in ours else ():
            try:
                yield f"/proc/{pid}/{name}", content(f"/proc/{pid}/{name}")
            except OSError:
                continue


def search(word: str, *names: str) -> str:
    seen = 0
    for path, data in of_processes(*names):
        seen += 1
        if word.encode() in data:
            return f"OUT found in {path}"
    return f"not in the {seen} that could be read"


# ---- files of the machine


@attempt("host", "a file of the machine, by its path", platform=True)
def _(w: Words) -> str:
    return found(content(w["host_file"]), w["host_word"])


@attempt("host", "the same through /proc/PID/root and /proc/PID/cwd of every process", platform=True)
def _(w: Words) -> str:
    return search(w["host_word"], "root" + w["host_file"], "cwd" + "/.." * 20 + w["host_file"])


@attempt("host", "the same by climbing ../ from the world, /out and a descriptor", platform=True)
def _(w: Words) -> str:
    said = "nothing"
    for start in (w["world"], "/out", "/dev/fd", "/proc/self/fd"):
        try:
            said = found(content(start + "/.." * 30 + w["host_file"]), w["host_word"])
        except OSError as error:
            said = errno.errorcode[error.errno or 0]
        if said.startswith("OUT"):
            break
    return said


@attempt("host", "the secrets file, the ledger's socket, the gateway's, Docker's", platform=True)
def _(w: Words) -> str:
    seen = [path for path in w["state_paths"] if os.path.lexists(path)]
    return f"OUT sees {seen}" if seen else f"none of {len(w['state_paths'])} is there"


@attempt("host", "a file handle (open_by_handle_at)")
def _(w: Words) -> str:
    fd = os.open("/dev", os.O_RDONLY)
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    syscall(303, 264, fd, b"", handle, ctypes.byref(ctypes.c_int()), 0x1000)  # AT_EMPTY_PATH
    return f"OUT descriptor {syscall(304, 265, fd, handle, os.O_RDONLY)} by a handle"


@attempt("host", "devices: memory, kernel log, disks, kvm, tun, fuse", platform=True)
def _(w: Words) -> str:
    opened: list[str] = []
    for folder, _, names in os.walk("/dev"):
        for path in (os.path.join(folder, name) for name in names):
            mode = os.lstat(path).st_mode
            harmless = os.path.basename(path) in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
            if (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)) and not harmless and "/pts/" not in path:
                try:
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
                    opened.append(path)
                except OSError:
                    continue
    return f"OUT opened {opened[:3]}" if opened else "none can be opened"


# ---- other cells


@attempt("neighbour", "another cell's output, by the machine's path", platform=True)
def _(w: Words) -> str:
    return found(content(w["neighbour_file"]), w["neighbour_word"])


@attempt("neighbour", "another cell's output, through /proc/PID/root", platform=True)
def _(w: Words) -> str:
    return search(w["neighbour_word"], "root/out/secret")


@attempt("neighbour", "another cell's processes: command lines", platform=True)
def _(w: Words) -> str:
    return search(w["neighbour_mark"], "cmdline")


@attempt("neighbour", "another cell's processes: environments", platform=True)
def _(w: Words) -> str:
    return search(w["neighbour_word"], "environ")


@attempt("neighbour", "another cell's /out and /tmp", control="neighbour", platform=True)
def _(w: Words) -> str:
    seen = [p for p in ("/out/secret", "/tmp/secret") if os.path.exists(p)]
    return f"OUT {seen}" if seen else "none is there"


@attempt("neighbour", "another cell's shared memory (System V)", control="neighbour", platform=True)
def _(w: Words) -> str:
    if (made := LIBC.shmget(w["shm_key"], 0, 0)) < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    return f"OUT attached to segment {made}"


@attempt("neighbour", "another cell's server on its loopback", control="neighbour", platform=True)
def _(w: Words) -> str:
    with socket.create_connection(("127.0.0.1", w["neighbour_port"]), timeout=5):
        return "OUT connected"


@attempt("neighbour", "another cell's abstract socket", control="neighbour", platform=True)
def _(w: Words) -> str:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\0" + w["neighbour_mark"])
        return "OUT connected"


@attempt("neighbour", "SIGKILL to a process of the machine", platform=True)
def _(w: Words) -> str:
    return killed(w["victim"])


def killed(pid: int) -> str:
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    try:
        state = content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        state = b"Z"
    return "OUT killed" if state == b"Z" else "it lives on"


# ---- the runner (PID 1), its secrets and its records


@attempt("runner", "PID 1: environment")
def _(w: Words) -> str:
    path = f"/proc/{w['pid1']}/environ"
    return f"OUT read {len(content(path))} bytes"


@attempt("runner", "PID 1: descriptors")
def _(w: Words) -> str:
    names = os.listdir(f"/proc/{w['pid1']}/fd")
    os.close(os.open(f"/proc/{w['pid1']}/fd/{names[0]}", os.O_PATH))
    return f"OUT {len(names)} of them"


@attempt("runner", "PID 1: memory")
def _(w: Words) -> str:
    return writable(f"/proc/{w['pid1']}/mem")


@attempt("runner", "PID 1: its root, its working directory, its namespaces")
def _(w: Words) -> str:
    folder = f"/proc/{w['pid1']}"
    return f"OUT {[os.readlink(f'{folder}/{name}') for name in ('root', 'cwd', 'ns/mnt')]}"


@attempt("runner", "PID 1: traced (PTRACE_SEIZE)")
def _(w: Words) -> str:
    if LIBC.ptrace(0x4206, w["pid1"], 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return "OUT traces it"


@attempt("runner", "PID 1: memory by process_vm_readv")
def _(w: Words) -> str:
    room = ctypes.create_string_buffer(8)
    lines = content(f"/proc/{w['pid1']}/maps").split(b"\n")
    start = int(lines[0].split(b"-")[0], 16)
    ours, theirs = (ctypes.c_size_t * 2)(ctypes.addressof(room), 8), (ctypes.c_size_t * 2)(start, 8)
    return f"OUT {syscall(310, 270, w['pid1'], ours, 1, theirs, 1, 0)} bytes"


@attempt("runner", "SIGKILL to PID 1")
def _(w: Words) -> str:
    return killed(w["mortal"])


@attempt("runner", "a secret that another command was given: environments, command lines, the runner's files")
def _(w: Words) -> str:
    secret = w["secret_reversed"][::-1]  # the words are in a command line of our own
    said = search(secret, "environ", "cmdline")
    for folder, _, names in os.walk(w["run_dir"]):
        for path in (os.path.join(folder, name) for name in names):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            try:
                if secret.encode() in content(path):
                    return f"OUT found in {path}"
            except PermissionError:
                continue
    return said


@attempt("runner", "the runner's script, its inbox, its files: written, replaced or added to")
def _(w: Words) -> str:
    done: list[str] = []
    for folder, folders, names in os.walk(w["run_dir"]):
        folders[:] = [name for name in folders if name != "logs"]  # what commands print is their own
        for path in (os.path.join(folder, name) for name in names):
            try:
                done.append(writable(path) + path)
            except OSError:
                continue
        try:
            new = os.path.join(folder, "added")
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o600))
            os.unlink(new)
            done.append(new)
        except OSError:
            continue
    return f"OUT {done[:2]}" if done else "nothing can be opened for writing"


@attempt("runner", "a record of an exit that never was, in every journal that can be had", outside=True)
def _(w: Words) -> str:
    line = f"{w['forged_id']} exited 1.0 0\n".encode()
    done: list[str] = []
    for path in w["journals"]:
        try:
            with open(path, "ab", buffering=0) as file:
                file.write(line)
                done.append(path)
        except OSError:
            continue
    return f"written to {done}"


# ---- the kernel


for _path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
):

    @attempt("kernel", f"writing {_path}", platform=True)
    def _(w: Words, path: str = _path) -> str:
        return writable(path)


@attempt("kernel", "control groups: making one, or a release agent", platform=True)
def _(w: Words) -> str:
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.isdir(root):
            made = f"{root}/escape-{os.getpid()}"
            os.mkdir(made)
            os.rmdir(made)
            return f"OUT made {made}"
    raise FileNotFoundError(errno.ENOENT, "no control groups")


@attempt("kernel", "a mount")
def _(w: Words) -> str:
    if LIBC.mount(b"none", w["mount_at"].encode(), b"tmpfs", 0, None) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    return "OUT mounted"


@attempt("kernel", "the world mounted again, writable")
def _(w: Words) -> str:
    if LIBC.mount(None, w["mounted"].encode(), None, 32 | 4096, None) < 0:  # remount of a bind, without read-only
        raise OSError(ctypes.get_errno(), "mount")
    return "OUT mounted again"


@attempt("kernel", "the new mount calls (fsopen)")
def _(w: Words) -> str:
    return f"OUT descriptor {syscall(430, 430, b'tmpfs', 0)}"


for _name, _flag in (("mount", 0x20000), ("network", 0x40000000), ("pid", 0x20000000)):

    @attempt("kernel", f"a {_name} namespace of its own")
    def _(w: Words, flag: int = _flag) -> str:
        if LIBC.unshare(flag) < 0:
            raise OSError(ctypes.get_errno(), "unshare")
        return "OUT unshared"


@attempt("kernel", "a user namespace, and root in it", platform=True)
def _(w: Words) -> str:
    if LIBC.unshare(0x10000000) < 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return "OUT unshared"


@attempt("kernel", "PID 1's mount namespace (setns)")
def _(w: Words) -> str:
    fd = os.open(f"/proc/{w['pid1']}/ns/mnt", os.O_RDONLY)
    if LIBC.setns(fd, 0) < 0:
        raise OSError(ctypes.get_errno(), "setns")
    return "OUT entered"


@attempt("kernel", "a device node of one's own")
def _(w: Words) -> str:
    path = f"{w['scratch']}/disk-{os.getpid()}"
    os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(7, 0))
    os.unlink(path)
    return "OUT made"


@attempt("kernel", "root: setuid, capabilities, a setuid program")
def _(w: Words) -> str:
    lines = dict(line.split(":\t") for line in content("/proc/self/status").decode().splitlines() if ":\t" in line)
    free, capable = lines["NoNewPrivs"].strip() == "0", int(lines["CapEff"], 16) | int(lines["CapPrm"], 16)
    try:
        os.setuid(0)
        return "OUT uid 0"
    except PermissionError:
        return f"OUT {lines['CapEff']}, new privileges" if free or capable else "EPERM, no capability, no new privileges"


@attempt("kernel", "chroot")
def _(w: Words) -> str:
    os.chroot(w["scratch"])
    return "OUT in another root"


@attempt("kernel", "a kernel module")
def _(w: Words) -> str:
    return reached(lambda: syscall(175, 105, None, 0, b""))


@attempt("kernel", "restarting the machine (with a wrong magic number)")
def _(w: Words) -> str:
    return reached(lambda: syscall(169, 142, 0, 0, 0, None))


@attempt("kernel", "bpf", platform=True)
def _(w: Words) -> str:
    return reached(lambda: syscall(321, 280, 0, ctypes.create_string_buffer(struct.pack("4I", 2, 4, 8, 1), 128), 72))


@attempt("kernel", "io_uring", platform=True)
def _(w: Words) -> str:
    return reached(lambda: syscall(425, 425, 1, ctypes.create_string_buffer(256)))


@attempt("kernel", "the kernel's keyrings", platform=True)
def _(w: Words) -> str:
    return reached(lambda: syscall(250, 219, 0, -3, 1))


@attempt("kernel", "performance counters", platform=True)
def _(w: Words) -> str:
    return reached(lambda: syscall(298, 241, ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0), 112), 0, -1, -1, 0))


def reached(call: Callable[[], int]) -> str:
    """Whether the kernel came to look at what was asked, and did not refuse who asked."""
    try:
        return f"OUT {call()}"
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise
        return f"OUT reached: {errno.errorcode[error.errno or 0]}"


# ---- the world and the layers


@attempt("world", "writing to a document of the world")
def _(w: Words) -> str:
    with open(f"{w['world']}/contract.txt", "ab") as file:
        file.write(b"forged")
    return "OUT written"


@attempt("world", "adding to the world, renaming in it, removing from it")
def _(w: Words) -> str:
    done: list[str] = []
    for name, act in (
        ("added", lambda: open(f"{w['world']}/new", "w").close()),
        ("renamed", lambda: os.rename(f"{w['world']}/b.txt", f"{w['world']}/c.txt")),
        ("removed", lambda: os.unlink(f"{w['world']}/contract.txt")),
        ("made free", lambda: os.chmod(w["world"], 0o777)),
    ):
        try:
            act()
            done.append(name)
        except OSError:
            continue
    return f"OUT {done}" if done else "none of four"


@attempt("world", "a hard link to the world, written through")
def _(w: Words) -> str:
    link = f"{w['scratch']}/link-{os.getpid()}"
    os.link(f"{w['world']}/linked.txt", link)
    with open(link, "ab") as file:
        file.write(b"forged")
    return "OUT written"


@attempt("world", "the app's layer: a program replaced, appended to, removed, linked and written through", outside=True)
def _(w: Words) -> str:
    app = w["app"]
    for act in (
        lambda: os.link(f"{app}/agent", f"{app}/linked"),
        lambda: open(f"{app}/agent", "ab").write(b"forged"),  # noqa: SIM115
        lambda: open(f"{app}/linked", "ab").write(b"forged"),  # noqa: SIM115
        lambda: os.unlink(f"{app}/agent"),
        lambda: open(f"{app}/new", "w").close(),
    ):
        try:
            act()
        except OSError:
            continue
    return "wrote to its own copy"


def ended(one: Attempt, words: Words) -> str:
    """In a process of its own: some of them end the process, or leave it elsewhere."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(LIMIT_S)
        try:
            said = one.run(words)
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, type(error).__name__)
        except Exception as error:  # noqa: BLE001 - said in the table, where it makes the suite fail
            said = f"BROKEN {type(error).__name__}: {error}"
        os.write(writing, said.encode()[:2000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return said or "ended without a word"


def main() -> None:
    words = json.loads(sys.argv[1])
    chosen = [one for one in ATTEMPTS if one.control in words.get("only", ["host", "neighbour"])]
    print(json.dumps({one.what: ended(one, words) for one in chosen}))


def neighbour(words: Words) -> None:
    """What another cell has: files, shared memory, servers, a secret in its environment."""
    for path in ("/out/secret", "/tmp/secret"):
        with open(path, "w") as file:
            file.write(words["neighbour_word"])
    LIBC.shmget(words["shm_key"], 4096, 0o1666)
    with socket.create_server(("127.0.0.1", words["neighbour_port"])), socket.socket(socket.AF_UNIX) as named:
        named.bind("\0" + words["neighbour_mark"])
        named.listen()
        command = ["/bin/sh", "-c", "sleep 1000; :", words["neighbour_mark"]]
        child = subprocess.Popen(command, env={"SECRET": words["neighbour_word"]})
        with open("/out/ready", "w") as file:
            file.write(str(os.getpid()))
        child.wait()


if __name__ == "__main__":
    neighbour(json.loads(sys.argv[2])) if sys.argv[1] == "neighbour" else main()
