"""The document service as the agent sees it, with the session that it was given."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

from matter_desk.places import HOST, port, run_dir

METHODS = ("bm25", "keyword")
"""Of search: documents by their best passage, or by how many of the words they hold."""

TIMEOUT_S = 120.0


class DeskRefused(Exception):
    """The service said what is wrong with a request."""


class Desk:
    """Raises DeskRefused for a request that is wrong, and OSError or http.client.HTTPException when the service is away."""

    def __init__(self, token: str) -> None:
        self._connection = http.client.HTTPConnection(HOST, port(), timeout=TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def session(self) -> dict[str, Any]:
        return self._json("GET", "/session")

    def documents(self) -> list[dict[str, Any]]:
        return self._json("GET", "/documents")["documents"]

    def read(self, path: str) -> dict[str, Any]:
        return self._json("GET", f"/documents/{quote(path)}")

    def content(self, path: str) -> bytes:
        return self._request("GET", f"/content/{quote(path)}", None)

    def search(self, query: str, method: str, top_k: int) -> list[dict[str, Any]]:
        asked = urlencode({"query": query, "method": method, "top_k": top_k}, errors="replace")
        return self._json("GET", f"/search?{asked}")["hits"]

    def create(self, path: str, content: str) -> dict[str, Any]:
        return self._json("POST", "/documents", {"path": path, "content": content})

    def edit(self, path: str, action: str, find: str, text: str) -> dict[str, Any]:
        return self._json("POST", f"/edits/{quote(path)}", {"action": action, "find": find, "text": text})

    def records(self, table: str) -> list[dict[str, Any]]:
        return self._json("GET", f"/records/{quote(table, safe='')}")["records"]

    def save(self, table: str, row: dict[str, Any]) -> dict[str, Any]:
        return self._json("POST", f"/records/{quote(table, safe='')}", row)

    def _json(self, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self._request(method, url, body))

    def _request(self, method: str, url: str, body: dict[str, Any] | None) -> bytes:
        self._connection.request(method, url, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 400:
            raise DeskRefused(json.loads(data)["error"])
        return data


def own_desk() -> Desk:
    """With the session of the matter's user, which the service leaves for the agent when it starts."""
    return Desk((run_dir() / "session").read_text())
