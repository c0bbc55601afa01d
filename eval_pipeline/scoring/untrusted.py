"""Reading a document that an agent wrote: in a process of its own, which may use so much memory and processor time and no more."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import resource
import signal
import subprocess
import sys

from eval_pipeline.scoring.documents import Extract, Unreadable, extract, suffix_of

MEMORY_MIB, CPU_S = 1024, 20
_WALL_S = 300.0
_REFUSED, _TOO_BIG = 3, 4


def read_document(data: bytes, name: str) -> Extract:
    """Raises Unreadable for a file that isn't what its name says, or needs too much to be read.

    Raises subprocess.TimeoutExpired when the machine, not the file, is to blame: nothing can be said of the file then.
    """
    found = _read(data, suffix_of(name))
    if isinstance(found, str):
        raise Unreadable(found)
    return found


@functools.lru_cache(maxsize=4)
def _read(data: bytes, suffix: str) -> Extract | str:
    """What is in it, or why it can't be read: many criteria look at the same file."""
    argv = [sys.executable, "-P", "-m", __name__, suffix]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # it imports what we import
    child = subprocess.run(argv, input=data, capture_output=True, env=env, timeout=_WALL_S, check=False)
    if child.returncode == 0:
        return Extract(**json.loads(child.stdout))
    if child.returncode == _REFUSED:
        return child.stdout.decode()
    if child.returncode == _TOO_BIG:
        return f"needs more than {MEMORY_MIB} MiB of memory to be read"
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"takes more than {CPU_S} s to be read"
    if child.returncode < 0:
        return f"crashes its reader ({signal.Signals(-child.returncode).name})"
    raise RuntimeError(f"the reader of documents failed: {child.stderr.decode(errors='replace')[-500:]}")


def _main(suffix: str) -> int:
    data = sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB * 2**20, MEMORY_MIB * 2**20))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    sys.modules["numpy"] = None  # type: ignore[assignment]  # openpyxl takes it when it is there: half its start, for nothing here
    try:
        print(json.dumps(dataclasses.asdict(extract(data, suffix))))
    except MemoryError:
        return _TOO_BIG
    except ModuleNotFoundError:
        raise
    except Unreadable as error:
        print(error, end="")
        return _REFUSED
    except Exception as error:  # noqa: BLE001 - any error of a library is a property of the file it was given
        print(f"is broken: {type(error).__name__}: {str(error)[:200]}", end="")
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
