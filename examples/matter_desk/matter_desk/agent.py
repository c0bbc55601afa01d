"""The agent: reads a case, works through tools, writes its transcript, its files and one result."""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from matter_desk.client import METHODS, Desk, own_desk
from matter_desk.model import Model, ProviderError, RequestRefused, token_classes
from matter_desk.shell import unavailable
from matter_desk.tools import Tools

DEFAULT_TURNS = 30
SAMPLING = ("temperature", "max_tokens", "reasoning_effort")
KNOWN = {"model", "base_url", "retrieval", "top_k", "max_reads", "style", *SAMPLING}
STYLES = {
    "brief": "Answer in a few sentences and name your sources.",
    "careful": "Check every statement against the document itself, say where sources differ, quote the words you rely on.",
}


@dataclass(frozen=True)
class Result:
    status: str
    answer: str | None = None
    error: str | None = None
    error_class: str | None = None


class Transcript:
    """One JSON event a line, flushed at once: whoever counts tokens reads along."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._started = stream, time.monotonic()

    def add(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "elapsed_s": round(time.monotonic() - self._started, 3), **fields}
        self._stream.write(json.dumps(event) + "\n")
        self._stream.flush()


def main() -> int:
    started = time.monotonic()
    case = json.loads(Path(os.environ["EVALS_CASE"]).read_text(encoding="utf-8"))
    output = Path(os.environ["EVALS_OUTPUT"])
    files = output / "files"
    files.mkdir(parents=True, exist_ok=True)
    with (output / "transcript.jsonl").open("w", encoding="utf-8") as stream:
        try:
            result = run(case, files, Transcript(stream), started)
        except (OSError, http.client.HTTPException) as error:  # of the desk; the model's own are handled where they arise
            result = Result("error", error=f"the document service is not there: {type(error).__name__}: {error}")
    partial = output / "result.json.part"
    partial.write_text(json.dumps(vars(result)), encoding="utf-8")
    partial.rename(output / "result.json")
    return 1 if result.status == "error" else 0


def run(case: dict[str, Any], files: Path, transcript: Transcript, started: float) -> Result:
    config, limits = case["config"], case["limits"]
    if problem := config_problem(config):
        return Result("error", error=problem)
    model = Model(config, started + float(limits["wall_s"]))
    desk = own_desk()
    no_shell = unavailable()
    if no_shell:
        transcript.add("note", note=f"run_shell is not offered: {no_shell}")
    tools = Tools(
        desk,
        files,
        retrieval=str(config.get("retrieval", "bm25")),
        top_k=int(config.get("top_k", 4)),
        max_reads=int(config.get("max_reads", 4)),
        no_shell=no_shell,
    )
    messages = opening(case, desk)
    for message in messages:
        transcript.add("message", **message)
    try:
        result = converse(model, messages, tools, transcript, request_options(case), limits.get("turns") or DEFAULT_TURNS)
    except ProviderError as error:
        transcript.add("error", error=str(error), error_class="provider")
        return Result("error", error=str(error), error_class="provider")
    except RequestRefused as error:
        transcript.add("error", error=str(error))
        return Result("error", error=str(error))
    finally:
        tools.close()
    if result.answer:
        desk.save("past_chats", {"question": str(case["prompt"]), "answer": result.answer})
    return result


def config_problem(config: dict[str, Any]) -> str | None:
    """An arm that isn't what it says must not run: what is wrong with its config, or None."""
    if unknown := sorted(set(config) - KNOWN):
        return f"unknown config: {', '.join(unknown)}; known: {', '.join(sorted(KNOWN))}"
    if not isinstance(config.get("model"), str):
        return "config names no model"
    if config.get("retrieval", "bm25") not in METHODS:
        return f"retrieval {config['retrieval']!r} is unknown; known: {', '.join(METHODS)}"
    return None


def converse(
    model: Model, messages: list[dict[str, Any]], tools: Tools, transcript: Transcript, options: dict[str, Any], turns: int
) -> Result:
    """One model call a turn. The last turn forbids tools, so that what was found is still answered."""
    for turn in range(1, turns + 1):
        choice = "none" if turn == turns else "auto"
        reply = model.complete({"messages": messages, "tools": tools.definitions, "tool_choice": choice, **options})
        if reply.get("usage"):
            transcript.add("usage", model=model.name, **token_classes(reply["usage"]))
        message = reply["choices"][0]["message"]
        messages.append(message)
        transcript.add("message", **message)
        if message.get("refusal") or reply["choices"][0].get("finish_reason") == "content_filter":
            return Result("refusal", error=message.get("refusal") or "stopped by the provider's content filter")
        if not message.get("tool_calls"):
            return Result("ok", answer=message.get("content") or "")
        for call in message["tool_calls"]:
            messages.append(run_tool(call, tools, transcript))
    return Result("error", error=f"no answer after {turns} turns")


def run_tool(call: dict[str, Any], tools: Tools, transcript: Transcript) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    transcript.add("tool_call", id=call["id"], name=name, arguments=arguments)
    content = tools.call(name, arguments)
    transcript.add("tool_result", id=call["id"], name=name, content=content)
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def request_options(case: dict[str, Any]) -> dict[str, Any]:
    """Sampling options of the arm; the seed differs between trials so that they are independent draws."""
    chosen = {name: case["config"][name] for name in SAMPLING if name in case["config"]}
    return chosen | {"seed": int(case["seed"]) + int(case["trial"])}


def opening(case: dict[str, Any], desk: Desk) -> list[dict[str, Any]]:
    session = desk.session()
    matter = next(iter(desk.records("matters")), {"title": "untitled"})
    user = next((row for row in desk.records("users") if row["id"] == session["user"]), {})
    rules = [f"- {row['rule']}" for row in desk.records("playbook_rules")]
    style = str(case["config"].get("style", "careful"))
    system = [
        f"You work for {user.get('name', 'the team')}, {user.get('role', 'user')}, on the matter {matter['title']!r}.",
        "Use the tools to find and read documents. Answer from them alone and name the documents you rely on.",
        STYLES.get(style, style),
        "Rules of the house:",
        *rules,
    ]
    prompt = str(case["prompt"])
    if case.get("deliverables"):
        prompt += "\n\nWrite these files with write_file: " + ", ".join(case["deliverables"])
    return [{"role": "system", "content": "\n".join(system)}, {"role": "user", "content": prompt}]
