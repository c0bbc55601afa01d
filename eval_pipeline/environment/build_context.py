"""Which files of the app a Dockerfile copies: they alone are its build context, and name the image together with it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox.base import ContextFile
from eval_pipeline.specs import git

_IGNORE = ".dockerignore"


def build_context(repo: Path, tree: str, dockerfile: bytes) -> dict[str, ContextFile]:
    """By path below the app's folder. Raises SpecError for a source that isn't there, and for a link."""
    sources = list(copied(dockerfile.decode(errors="replace")))
    if not sources:
        return {}
    entries = git.entries(repo, tree)
    found: dict[str, ContextFile] = {}
    for source in sources:
        matched = {path: entry for path, entry in entries.items() if _matches(path, source)}
        if not matched:
            raise SpecError(f"the Dockerfile copies {source!r}, and no file of the app's folder is called so", hint="commit it")
        for path, entry in matched.items():
            if entry.mode == "120000":
                raise SpecError(f"the Dockerfile copies {path}, which is a symbolic link", hint="commit the file itself")
            found[path] = ContextFile(git.blob(repo, entry.blob), entry.mode == "100755")
    if _IGNORE in entries:
        found[_IGNORE] = ContextFile(git.blob(repo, entries[_IGNORE].blob), False)
    return found


def copied(dockerfile: str) -> Iterator[str]:
    """The sources of COPY and ADD in the build context, as they are written, without `./` and slashes around them."""
    for line in _joined(dockerfile):
        verb, _, rest = line.strip().partition(" ")
        if verb.upper() not in ("COPY", "ADD"):
            continue
        words = _words(rest.strip())
        if any(word.startswith("--from=") for word in words):
            continue
        paths = [word for word in words if not word.startswith("--")][:-1]
        for path in paths:
            if path.startswith("<<") or "://" in path:
                continue
            yield re.sub(r"^(\./|/)+", "", path).rstrip("/") or "."


def _words(text: str) -> list[str]:
    flags: list[str] = []
    while found := re.match(r"(--\S+)\s+", text):
        flags.append(found[1])
        text = text[found.end() :]
    if text.startswith("["):
        try:
            return [*flags, *map(str, json.loads(text))]
        except ValueError:
            return flags
    return [*flags, *shlex.split(text)]


def _joined(text: str) -> Iterator[str]:
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    yield from re.sub(r"\\[ \t]*\n", " ", "\n".join(kept)).splitlines()


def _matches(path: str, source: str) -> bool:
    """The file itself, or one below it; `*`, `?` and `[...]` stand within one part of a path."""
    if source == ".":
        return True
    parts, wanted = path.split("/"), source.split("/")
    return len(parts) >= len(wanted) and all(
        re.fullmatch(_pattern(want), part) for part, want in zip(parts, wanted, strict=False)
    )


def _pattern(part: str) -> str:
    pieces = re.split(r"(\*|\?|\[[^\]]+\])", part)
    return "".join({"*": ".*", "?": "."}.get(piece) or (piece if piece.startswith("[") else re.escape(piece)) for piece in pieces)
