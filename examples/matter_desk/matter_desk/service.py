"""The document service: documents, search, edits and records over HTTP, for the user and matter of the session alone."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl

from bottle import Bottle, HTTPResponse, request
from waitress import create_server

from matter_desk import filing, library, postgres, sessions
from matter_desk.blobs import Blobs
from matter_desk.client import METHODS
from matter_desk.edits import EditRefused, edited
from matter_desk.library import NotThere, Taken
from matter_desk.permissions import EVERYBODY
from matter_desk.places import HOST, blob_dir, port, run_dir, write_private
from matter_desk.sessions import Session
from matter_desk.text import content

THREADS = 4
MAX_BODY_BYTES = 64 * 2**20
MAX_TOP_K = 100


class Refused(Exception):
    """What the caller got wrong, with the status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    def __init__(self, connections: Any, blobs: Blobs, key: bytes) -> None:
        self._connections, self._blobs, self._key = connections, blobs, key

    def app(self) -> Bottle:
        app = Bottle()
        app.route("/health", "GET", self._health)
        for method, path, handler in (
            ("GET", "/session", self._session),
            ("GET", "/documents", self._list),
            ("POST", "/documents", self._create),
            ("GET", "/documents/<path:path>", self._read),
            ("GET", "/content/<path:path>", self._content),
            ("POST", "/edits/<path:path>", self._edit),
            ("GET", "/search", self._search),
            ("GET", "/records/<table>", self._records),
            ("POST", "/records/<table>", self._save),
        ):
            app.route(path, method, partial(self._answer, handler))
        app.default_error_handler = lambda error: _json(error.status_code, {"error": error.body})
        return app

    def _answer(self, handler: Callable[..., Any], **path: str) -> Any:
        """Open the session, give the handler a transaction, say in JSON what came of it."""
        token = request.get_header("Authorization", "").removeprefix("Bearer ")
        session = sessions.opened(token, self._key)
        if session is None:
            return _json(401, {"error": "the session is unknown: send `Authorization: Bearer TOKEN`"})
        try:
            with self._transaction() as cursor:
                return handler(cursor, session, **path)
        except NotThere as error:
            return _json(404, {"error": f"there is no document {str(error)!r} that you may read"})
        except Taken as error:
            return _json(409, {"error": f"there is a document of the name {str(error)!r}: edit it, or take another name"})
        except (Refused, EditRefused, filing.RowRefused) as error:
            return _json(getattr(error, "status", 422), {"error": str(error)})

    @contextlib.contextmanager
    def _transaction(self) -> Generator[Any]:
        connection = self._connections.getconn()
        try:
            with postgres.transaction(connection) as cursor:
                yield cursor
        finally:
            self._connections.putconn(connection)

    def _health(self) -> dict[str, Any]:
        with self._transaction() as cursor:
            cursor.execute("SELECT 1")
        return {"ready": True}

    def _session(self, cursor: Any, session: Session) -> dict[str, Any]:
        return {"user": session.user, "matter": session.matter}

    def _list(self, cursor: Any, session: Session) -> dict[str, Any]:
        return {"documents": library.listed(cursor, session.user)}

    def _read(self, cursor: Any, session: Session, path: str) -> dict[str, Any]:
        return library.read(cursor, session.user, path)

    def _content(self, cursor: Any, session: Session, path: str) -> HTTPResponse:
        document = library.read(cursor, session.user, path)
        return HTTPResponse(self._blobs.read(document["blob"]), 200, {"Content-Type": "application/octet-stream"})

    def _search(self, cursor: Any, session: Session) -> dict[str, Any]:
        asked = dict(parse_qsl(request.query_string))
        method, top_k = asked.get("method", METHODS[0]), asked.get("top_k", "4")
        if method not in METHODS or not top_k.isdecimal() or not 1 <= int(top_k) <= MAX_TOP_K:
            raise Refused(422, f"method is one of {', '.join(METHODS)}, top_k from 1 to {MAX_TOP_K}")
        return {"hits": library.search(cursor, session.user, asked.get("query", ""), method, int(top_k))}

    def _create(self, cursor: Any, session: Session) -> HTTPResponse:
        from matter_desk.office import encoded

        given = _body("path", "content")
        path = _new_path(given["path"])
        try:
            data = encoded(PurePosixPath(path).suffix.lower(), given["content"])
        except ValueError as error:
            raise Refused(422, str(error)) from error
        library.create(cursor, session.user, path, self._blobs.put(data), content(PurePosixPath(path).name, data))
        return _json(201, {"path": path, "version": 1})

    def _edit(self, cursor: Any, session: Session, path: str) -> HTTPResponse:
        given = _body("action", "find", "text")
        cursor.execute("SELECT FROM documents WHERE path = %s FOR UPDATE", (path,))  # edits of one document, one after another
        document = library.read(cursor, session.user, path)
        data = edited(path, self._blobs.read(document["blob"]), author=session.user, **given)
        version = library.revise(cursor, session.user, path, self._blobs.put(data), content(PurePosixPath(path).name, data))
        return _json(201, {"path": path, "version": version})

    def _records(self, cursor: Any, session: Session, table: str) -> dict[str, Any]:
        return {"records": filing.visible(cursor, session, table)}

    def _save(self, cursor: Any, session: Session, table: str) -> HTTPResponse:
        return _json(201, filing.save(cursor, session, table, _body()))


def _json(status: int, value: dict[str, Any]) -> HTTPResponse:
    return HTTPResponse(json.dumps(value), status, {"Content-Type": "application/json"})


def _body(*names: str) -> dict[str, Any]:
    """The request's JSON object; with `names` one of exactly these texts."""
    if request.content_length > MAX_BODY_BYTES:
        raise Refused(413, f"a request has {MAX_BODY_BYTES} bytes at most")
    try:
        given = json.loads(request.body.read())
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(given, dict) or (
        names and (given.keys() != set(names) or not all(isinstance(v, str) for v in given.values()))
    ):
        raise Refused(422, f"the body is a JSON object{' of texts named ' + ', '.join(names) if names else ''}")
    return given


def _new_path(path: str) -> str:
    parts = path.split("/")
    plain = all(part.strip(". ") and "\0" not in part for part in parts) and path.encode("utf-8", "replace").decode() == path
    if len(parts) < 2 or parts[0] != "documents" or not plain:
        raise Refused(422, f"{path!r} is not a name below documents/")
    return path


def default_session(cursor: Any) -> Session:
    """That of the matter's user; of everybody in a world of documents alone."""
    cursor.execute('SELECT "user", id FROM matters ORDER BY id LIMIT 1')
    user, matter = cursor.fetchone() or (None, None)
    return Session(user or EVERYBODY, matter)


def main() -> int:
    from psycopg2.pool import ThreadedConnectionPool

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    first = postgres.wait_until_up()
    with postgres.transaction(first) as cursor:
        session = default_session(cursor)
    first.close()
    key = sessions.key()
    pool = ThreadedConnectionPool(1, THREADS, host=str(run_dir()), user=postgres.ROLE, dbname=postgres.DATABASE)
    server = create_server(Service(pool, Blobs(blob_dir()), key).app(), host=HOST, port=port(), threads=THREADS)
    write_private(run_dir() / "session", sessions.issue(session, key).encode())
    server.run()
    return 0
