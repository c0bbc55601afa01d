"""One Python program in a bwrap of its own, to its end: no network, nothing of the host but /usr, nothing it writes outlives it.

It is no sandbox of a cell: it has no name, nobody adopts it, and it ends with who started it. Synchronous.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.errors import SandboxError
from eval_pipeline.host import reachable_root
from eval_pipeline.sandbox.base import RUN_DIR
from eval_pipeline.sandbox.local import hostlayer
from eval_pipeline.sandbox.local.launch import drop_root, namespaces
from eval_pipeline.sandbox.local.places import Places, host_binds, own_directory, prepare
from eval_pipeline.sandbox.local.safefs import remove_tree

PYTHON = f"/{hostlayer.VENV}/bin/python3"
_TMP_BYTES = 64 << 20
_FORGOTTEN_S = 24 * 3600.0
_OUT_MAX_BYTES, _ERR_MAX_BYTES = 64 << 10, 4 << 10
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """code None: it was still running after `wall_s` and was ended. stdout: the first 64 KiB; stderr: the last 4."""

    code: int | None
    stdout: bytes
    stderr: bytes


@contextmanager
def desk(state_dir: Path) -> Generator[Path]:
    """An empty directory for what the program is given; the sandbox' user can reach what is put there and made readable."""
    root = reachable_root(state_dir) / "once"
    own_directory(root)
    _clear(root)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def _clear(root: Path) -> None:
    """What killed ones left."""
    for folder in root.iterdir():
        with suppress(FileNotFoundError):  # another one ends this moment
            if time.time() - folder.stat().st_mtime > _FORGOTTEN_S:
                remove_tree(folder)


def run_python(state_dir: Path, given: Path, world: Path | None, arguments: Sequence[str], *, wall_s: float) -> Ended:
    """`python3 -I -S ARGUMENTS`, the standard library alone, with `given` at /run/evals and `world` at /world, both read-only.

    Where no user namespace can be made bwrap ends with code 1 and says so: there is no way without. Raises SandboxError and
    BuildError when not even that could be started.
    """
    places = prepare(state_dir)
    command = [*drop_root(places), str(places.bwrap), *_walls(places, given, world), "--", PYTHON, "-I", "-S", "-B", *arguments]
    with places.seccomp.open("rb") as program, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        position = command.index("--")
        command[position:position] = ["--seccomp", str(program.fileno())]
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={},
                pass_fds=[program.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"bwrap could not be started: {error.strerror}") from error
        try:
            code = child.wait(wall_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.kill()  # and with it, by its own doing, all that is inside
            child.wait()
        errors = os.fstat(err.fileno()).st_size
        said = os.pread(err.fileno(), _ERR_MAX_BYTES, max(0, errors - _ERR_MAX_BYTES))
        return Ended(code=code, stdout=os.pread(out.fileno(), _OUT_MAX_BYTES, 0), stderr=said)


def _walls(places: Places, given: Path, world: Path | None) -> list[str]:
    layer = hostlayer.build(places, None)
    walls = ["--die-with-parent", *namespaces(places), "--new-session", "--hostname", "evals", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        walls += ["--setenv", name, value]
    walls += ["--overlay-src", str(places.skeleton), "--overlay-src", str(layer), "--ro-overlay", "/", *host_binds()]
    walls += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    if world is not None:
        walls += ["--ro-bind", str(world), "/world"]
    return [*walls, "--ro-bind", str(given), RUN_DIR, "--chdir", "/tmp"]
