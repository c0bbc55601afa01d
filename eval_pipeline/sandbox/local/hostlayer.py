"""The base layer `host`: the running interpreter, and an app's locked wheels, for a sandbox that only has the host's /usr."""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from eval_pipeline.errors import BuildError
from eval_pipeline.sandbox.local import layers
from eval_pipeline.sandbox.local.places import Places, exclusive, prepare
from eval_pipeline.sandbox.local.safefs import remove_tree

VENV = "opt/venv"
PYTHON = "opt/python"
PREFIX = "host-"
_FORMAT = 1
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = shutil.ignore_patterns("test", "tests", "idlelib", "turtledemo", "ensurepip", "site-packages", "*.opt-?.pyc", "*.a")


def key(places: Places, requirements: bytes | None) -> str:
    """Named after the interpreter, the platform, the wheels' lock and the user that owns it."""
    parts = [_FORMAT, sys.version, sysconfig.get_platform(), sys.base_prefix, places.identity]
    digest = hashlib.sha256("\0".join(map(str, parts)).encode() + b"\0" + (requirements or b"")).hexdigest()
    return f"{PREFIX}{digest[:24]}"


def build(places: Places, requirements: bytes | None) -> Path:
    """The layer's directory, built once per host whoever asks. Raises BuildError."""
    name = key(places, requirements)
    if (found := layers.find(places.layers, name)) is not None:
        return found
    with exclusive(places.layers / f".{name}.build"):
        if (found := layers.find(places.layers, name)) is not None:
            return found
        partial = places.layers / f".{name}.partial"
        remove_tree(partial)
        try:
            _fill(partial, requirements)
            _give(partial, places)
            return layers.seal(places.layers, name, partial)
        finally:
            remove_tree(partial)


@contextmanager
def built_ahead(state_dir: Path) -> Generator[None]:
    """The layer without wheels, where it is not there, is built by a process of its own, for whoever comes to need it meanwhile.

    Who comes before it is whole waits for it in `build`, and builds it if that process has failed. It does not end with this one.
    """
    places = prepare(state_dir)
    if layers.find(places.layers, key(places, None)) is not None:
        yield
        return
    command = [sys.executable, "-m", __name__, str(state_dir)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True):
        yield


def _fill(root: Path, requirements: bytes | None) -> None:
    base = Path(sys.base_prefix)
    home = base
    if not base.is_relative_to("/usr"):
        home = Path("/", PYTHON)
        _copy_interpreter(base, root / PYTHON)
        # what the interpreter was built with names its own prefix: a run path, the sysconfig data
        link = root / base.relative_to("/")
        if link != root / PYTHON:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(home)
    site = root / VENV / "lib" / f"python{_VERSION}" / "site-packages"
    site.mkdir(parents=True)
    if requirements is not None:
        _install(site, requirements)
    _make_venv(root / VENV, home, site)
    # What the interpreter has compiled came along and is passed over. A wheel may carry files of another Python's syntax: no failure
    _ = compileall.compile_dir(root, quiet=2, workers=1, stripdir=str(root), prependdir="/")


def _copy_interpreter(base: Path, target: Path) -> None:
    (target / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.base_prefix, "bin", f"python{_VERSION}").resolve(), target / "bin" / f"python{_VERSION}")
    for name in ("python3", "python"):
        (target / "bin" / name).symlink_to(f"python{_VERSION}")
    library = base / "lib" / f"python{_VERSION}"
    shutil.copytree(library, target / "lib" / library.name, symlinks=True, ignore=_LEFT_OUT)
    (target / "lib" / library.name / "site-packages").mkdir(exist_ok=True)
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy(shared, target / "lib" / shared.name, follow_symlinks=False)


def _install(site: Path, requirements: bytes) -> None:
    lock = site.parent / "requirements.lock"
    lock.write_bytes(requirements)
    command = [sys.executable, "-m", "pip", "install", "--require-hashes", "--only-binary", ":all:", "--no-compile", "--quiet"]
    command += ["--disable-pip-version-check", "--no-warn-script-location", "--target", str(site), "--requirement", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(
            f"pip could not install the locked requirements: {done.stderr.strip()[-1500:]}",
            hint="each line needs a --hash and a wheel for this platform; which index is asked is pip's own configuration",
        )


def _make_venv(venv: Path, home: Path, site: Path) -> None:
    """A virtual environment by hand: `python3` first in PATH sees the wheels and none of the host's packages."""
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text(f"home = {home}/bin\ninclude-system-site-packages = false\nversion = {_VERSION}\n")
    for name in ("python3", "python", f"python{_VERSION}"):
        (venv / "bin" / name).symlink_to(f"{home}/bin/python{_VERSION}")
    if (site / "bin").is_dir():
        for program in (site / "bin").iterdir():
            _move_program(program, venv / "bin" / program.name)
        remove_tree(site / "bin")


def _move_program(source: Path, target: Path) -> None:
    first, newline, rest = source.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        source.write_bytes(f"#!/{VENV}/bin/python3".encode() + newline + rest)
    source.rename(target)


def _give(root: Path, places: Places) -> None:
    """Everything readable for, and as root owned by, the sandbox user: the overlay can't copy up what an unmapped user owns."""
    for folder, folders, files in os.walk(root):
        for path in [Path(folder), *(Path(folder, name) for name in folders + files)]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            if places.drops_root:
                os.chown(path, places.identity.uid, places.identity.gid, follow_symlinks=False)


if __name__ == "__main__":
    build(prepare(Path(sys.argv[1])), None)
