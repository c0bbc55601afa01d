"""What the model may do. Every tool acts for the session's user and answers in JSON."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, cast

from matter_desk.client import Desk, DeskRefused
from matter_desk.office import encoded


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
    _tool(
        "create_document",
        "Add a document to the matter. A .docx is made from Markdown, an .xlsx from tables in Markdown or CSV.",
        path="new name below documents/, e.g. documents/30-reply.docx",
        content="the document's whole text",
    ),
    _tool(
        "edit_docx",
        "Save a new version of a Word document: replace words, replace them as a tracked change, comment on them, or append.",
        path="path of the .docx",
        action="replace, track, comment or append",
        find="the words, all in one paragraph; empty for append",
        text="the new words, the comment, or the paragraphs to append",
    ),
    _tool(
        "list_records",
        "The matter's records in one table.",
        table="users, matters, playbook_rules, past_chats or tabular_reviews",
    ),
    _tool(
        "save_review",
        "Add a row to the matter's tabular review.",
        document="path of the document",
        column="what was looked for",
        value="what the document says",
    ),
]

SHELL = _tool(
    "run_shell",
    "Run a command with /bin/sh in a folder that holds copies of the documents, without a network, for 60 seconds at most. "
    "What it leaves below files/ is delivered.",
    command="the command",
)


class Tools:
    """max_reads: how many different documents may be read in one case. no_shell: why there is none; None offers it."""

    def __init__(
        self, desk: Desk, files: Path, *, retrieval: str, top_k: int, max_reads: int, no_shell: str | None = None
    ) -> None:
        self._desk, self._files = desk, files
        self._retrieval, self._top_k, self._max_reads = retrieval, top_k, max_reads
        self._read: set[str] = set()
        self._workspace: Any = None
        self.definitions = DEFINITIONS if no_shell else [*DEFINITIONS, SHELL]
        self._required = {tool["function"]["name"]: set(tool["function"]["parameters"]["required"]) for tool in self.definitions}

    def call(self, name: str, arguments: str) -> str:
        """Never raises for what the model got wrong: the error is the tool's answer."""
        if name not in self._required:
            return _answer({"error": f"there is no tool {name!r}; known: {', '.join(self._required)}"})
        given, wanted = _strings(arguments), self._required[name]
        if given is None or given.keys() != wanted:
            expected = f"a JSON object of strings named {', '.join(sorted(wanted))}" if wanted else "an empty JSON object"
            return _answer({"error": f"{name} takes {expected}; got {arguments[:200]}"})
        try:
            return _answer(getattr(self, f"_{name}")(**given))
        except DeskRefused as refused:
            return _answer({"error": str(refused)})

    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()

    def _list_documents(self) -> dict[str, Any]:
        return {"documents": [{key: found[key] for key in ("path", "title", "characters")} for found in self._desk.documents()]}

    def _search(self, query: str) -> dict[str, Any]:
        return {"hits": self._desk.search(query, self._retrieval, self._top_k)}

    def _read_document(self, path: str) -> dict[str, Any]:
        if path not in self._read and len(self._read) >= self._max_reads:
            return {"error": f"the limit of {self._max_reads} documents is reached: answer from what you have read"}
        text = self._desk.read(path)["text"]
        self._read.add(path)
        return {"path": path, "text": text}

    def _create_document(self, path: str, content: str) -> dict[str, Any]:
        return self._desk.create(path, content)

    def _edit_docx(self, path: str, action: str, find: str, text: str) -> dict[str, Any]:
        return self._desk.edit(path, action, find, text)

    def _list_records(self, table: str) -> dict[str, Any]:
        return {"records": self._desk.records(table)}

    def _save_review(self, document: str, column: str, value: str) -> dict[str, Any]:
        return self._desk.save("tabular_reviews", {"document": document, "column": column, "value": value})

    def _run_shell(self, command: str) -> dict[str, Any]:
        from matter_desk.workspace import Workspace  # few runs need it

        try:
            if self._workspace is None:
                self._workspace = Workspace(self._desk, self._files)
            return self._workspace.run(command)
        except (OSError, ValueError) as error:
            return {"error": f"the command could not be run: {error}"}

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
