"""A judge of our own behind real HTTP, in the shapes of OpenAI's chat completions and Anthropic's messages, with ways to fail.

It reads a request as its quotation marks say and looks for the criterion's words in the work, line by line: so its verdicts follow
from the texts, and a text that broke out of its quotation would change them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_WORD = re.compile(r"\w{4,}")
_COMMON = frozenset(["does", "that", "with", "from", "this", "every", "response", "state", "says", "contract"])


@dataclass(frozen=True, kw_only=True)
class Read:
    """A request as a reader of the marks sees it. outside: what stands between no marks."""

    blocks: list[tuple[str, str]]
    outside: str
    criterion_id: str
    per_occurrence: bool

    def block(self, name: str) -> str:
        (text,) = [text for kind, text in self.blocks if kind == name]
        return text

    @property
    def work(self) -> str:
        return "\n".join(text for kind, text in self.blocks if kind in ("answer", "file", "changes"))


def read(body: Mapping[str, Any]) -> Read:
    (text,) = [message["content"] for message in body["messages"] if message["role"] == "user"]
    text = text if isinstance(text, str) else "".join(part["text"] for part in text)
    code = re.search(r"\[\[\[BEGIN task ([0-9a-f]+)\]\]\]", text)
    assert code is not None and text.startswith(code[0]), "the request begins with the task"
    marks = re.compile(rf"\[\[\[BEGIN (\w+) {code[1]}\]\]\]\n(.*?)\n\[\[\[END \1 {code[1]}\]\]\]", re.DOTALL)
    outside = marks.sub("", text)
    named = re.search(r"criterion_id is ([\w-]+):", outside)
    assert named is not None
    (tool,) = body["tools"]
    form = tool["function"]["parameters"] if "function" in tool else tool["input_schema"]
    counts = "occurrences" in form["properties"]
    blocks = [(match[1], match[2]) for match in marks.finditer(text)]
    return Read(blocks=blocks, outside=outside, criterion_id=named[1], per_occurrence=counts)


def by_words(request: Read) -> dict[str, Any]:
    """Met when a line of the work holds most of the criterion's longer words; every such line is an occurrence."""
    wanted = set(_WORD.findall(request.block("criterion").lower())) - _COMMON
    lines = [line.strip() for line in request.work.splitlines() if line.strip()]
    found = [line for line in lines if wanted and 2 * len(wanted & set(_WORD.findall(line.lower()))) > len(wanted)]
    said = {"criterion_id": request.criterion_id, "reasoning": f"looked for {', '.join(sorted(wanted))}"}
    if request.per_occurrence:
        return {**said, "occurrences": found, "verdict": "counted"}
    return {**said, "evidence": found[0] if found else "", "verdict": "met" if found else "not_met"}


@dataclass
class LoopbackJudge:
    """faults: taken one a request, oldest first, before `decide` is asked. requests: every body that came, with its headers."""

    url: str = ""
    decide: Callable[[Read], dict[str, Any]] = by_words
    faults: deque[Callable[[BaseHTTPRequestHandler], None]] = field(
        default_factory=deque[Callable[[BaseHTTPRequestHandler], None]]
    )
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str | None] = field(default_factory=list[str | None])
    times: list[float] = field(default_factory=list[float])
    most_at_once: int = 0
    at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def asked(self) -> list[Read]:
        return [read(body) for body in self.requests]


def completion(arguments: str | None, *, words: str | None = None, finish: str = "stop", usage: Any = ...) -> bytes:
    function = {"name": "verdict", "arguments": arguments}
    calls = None if arguments is None else [{"id": "call-1", "type": "function", "function": function}]
    message = {"role": "assistant", "content": words, "tool_calls": calls}
    told = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050, "prompt_tokens_details": {"cached_tokens": 400}}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "loopback",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": told if usage is ... else usage,
    }
    return json.dumps(body).encode()


def message(arguments: dict[str, Any]) -> bytes:
    """The same as Anthropic's messages say it: what comes from a cache is outside of the input tokens."""
    usage = {"input_tokens": 600, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 0, "output_tokens": 50}
    content = [{"type": "tool_use", "id": "t", "name": "verdict", "input": arguments}]
    body = {"id": "m", "type": "message", "role": "assistant", "model": "loopback", "content": content, "usage": usage}
    return json.dumps({**body, "stop_reason": "tool_use", "stop_sequence": None}).encode()


def answer(handler: BaseHTTPRequestHandler, data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


Fault = Callable[[BaseHTTPRequestHandler], None]


def says(data: bytes, status: int = 200, **headers: str) -> Fault:
    """Underscores in the names of headers stand for hyphens."""
    return lambda handler: answer(handler, data, status, {name.replace("_", "-"): value for name, value in headers.items()})


def fails(status: int, **headers: str) -> Fault:
    return says(json.dumps({"error": {"message": f"no: {status}", "type": "error"}}).encode(), status, **headers)


def hangs(judge: LoopbackJudge) -> Fault:
    """Until the server ends."""
    return lambda handler: (judge.ended.wait(60), None)[1]


def truncated(handler: BaseHTTPRequestHandler) -> None:
    """Half of a body that announces its whole length."""
    data = completion("{}")
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.close_connection = True


@contextmanager
def loopback_judge() -> Generator[LoopbackJudge]:
    judge = LoopbackJudge()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with judge.lock:
                judge.requests.append(body)
                judge.keys.append(self.headers["Authorization"] or self.headers["X-Api-Key"])
                judge.times.append(time.monotonic())
                judge.at_once += 1
                judge.most_at_once = max(judge.most_at_once, judge.at_once)
                fault = judge.faults.popleft() if judge.faults else None
            try:
                if fault is not None:
                    fault(self)
                elif self.path.endswith("/messages"):
                    answer(self, message(judge.decide(read(body))))
                else:
                    answer(self, completion(json.dumps(judge.decide(read(body)))))
            finally:
                with judge.lock:
                    judge.at_once -= 1

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield judge
    finally:
        judge.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
