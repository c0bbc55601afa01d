"""What the model may do. Every tool acts for the matter's user and answers in JSON."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, cast

from matter_desk.office import docx_of, xlsx_of
from matter_desk.store import Desk


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    schema = {key: {"type": "string", "description": text} for key, text in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(schema), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


DEFINITIONS = [
    _tool("list_documents", "List the documents of the matter that you may read."),
    _tool("search", "Find documents by words. Returns the best document first, each with a passage.", query="words to look for"),
    _tool("read_document", "Read the whole text of a document.", path="path as returned by search or list_documents"),
    _tool(
        "write_file",
        "Write a file to deliver. A .docx is made from Markdown (headings, lists, tables), an .xlsx from tables in Markdown or CSV.",
        path="relative file name, e.g. memo.docx",
        content="the file's whole text",
    ),
]


REQUIRED = {tool["function"]["name"]: set(tool["function"]["parameters"]["required"]) for tool in DEFINITIONS}


class Tools:
    """max_reads: how many different documents may be read in one case."""

    def __init__(self, desk: Desk, files: Path, *, retrieval: str, top_k: int, max_reads: int) -> None:
        self._desk, self._files = desk, files
        self._retrieval, self._top_k, self._max_reads = retrieval, top_k, max_reads
        self._read: set[str] = set()

    def call(self, name: str, arguments: str) -> str:
        """Never raises for what the model got wrong: the error is the tool's answer."""
        handlers = {
            "list_documents": self._list,
            "search": self._search,
            "read_document": self._read_document,
            "write_file": self._write_file,
        }
        if name not in handlers:
            return _answer({"error": f"there is no tool {name!r}; known: {', '.join(handlers)}"})
        given, wanted = _strings(arguments), REQUIRED[name]
        if given is None or given.keys() != wanted:
            expected = f"a JSON object of strings named {', '.join(sorted(wanted))}" if wanted else "an empty JSON object"
            return _answer({"error": f"{name} takes {expected}; got {arguments[:200]}"})
        return _answer(handlers[name](**given))

    def _list(self) -> dict[str, Any]:
        return {"documents": self._desk.documents()}

    def _search(self, query: str) -> dict[str, Any]:
        return {"hits": self._desk.search(query, self._retrieval, self._top_k)}

    def _read_document(self, path: str) -> dict[str, Any]:
        if path not in self._read and len(self._read) >= self._max_reads:
            return {"error": f"the limit of {self._max_reads} documents is reached: answer from what you have read"}
        text = self._desk.read(path)
        if text is None:
            return {"error": f"there is no document {path!r} that you may read"}
        self._read.add(path)
        return {"path": path, "text": text}

    def _write_file(self, path: str, content: str) -> dict[str, Any]:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or not relative.name:
            return {"error": f"{path!r} is not a relative file name"}
        target = self._files / relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(encoded(relative.suffix.lower(), content))
        except (OSError, ValueError) as error:
            return {"error": f"{path!r} could not be written: {error}"}
        return {"written": path, "characters": len(content)}


def encoded(suffix: str, content: str) -> bytes:
    """Raise ValueError when the content doesn't make a file of this kind."""
    writers = {".docx": docx_of, ".xlsx": xlsx_of}
    return writers[suffix](content) if suffix in writers else content.encode("utf-8", "replace")


def _strings(arguments: str) -> dict[str, str] | None:
    """The arguments of a call; None when they are not a JSON object of strings."""
    try:
        parsed: Any = json.loads(arguments or "{}")
    except json.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    given = cast("dict[str, Any]", parsed)
    return given if all(isinstance(value, str) for value in given.values()) else None


def _answer(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
