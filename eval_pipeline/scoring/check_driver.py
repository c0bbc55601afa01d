"""What runs inside the sandbox of a check that is a program of one's own: the standard library alone, and a copy of this file.

/run/evals holds asked.json, check.py, and the directories files/ and texts/, whose members are named by their place in asked.json.
The answer is one line of JSON on what was standard output when it started; what the check itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

GIVEN = Path("/run/evals")


class Left(Mapping[str, Any]):
    """What an agent left, by name, read when it is asked for."""

    def __init__(self, folder: str, names: list[str], read: Callable[[Path], Any]) -> None:
        self._paths = {name: GIVEN / folder / str(place) for place, name in enumerate(names)}
        self._read = read

    def __getitem__(self, name: str) -> Any:
        return self._read(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def main() -> None:
    asked: dict[str, Any] = json.loads((GIVEN / "asked.json").read_text("utf-8"))
    for name, most in asked["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    answer = os.dup(1)
    os.dup2(2, 1)
    given: dict[str, Any] = asked["given"]
    given["world"] = Path("/world")
    given["files"] = Left("files", asked["files"], Path.read_bytes)
    given["texts"] = Left("texts", asked["texts"], lambda path: path.read_text("utf-8"))
    module: dict[str, Any] = {"__name__": "check", "__file__": asked["file"]}
    exec(compile((GIVEN / "check.py").read_bytes(), asked["file"], "exec"), module)
    found = module["check"](**{name: given[name] for name in asked["parameters"]})
    said = list(found) if isinstance(found, tuple) else [found]
    os.write(answer, json.dumps(said).encode())


if __name__ == "__main__":
    main()
