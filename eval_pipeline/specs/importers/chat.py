"""A conversation somebody kept, as the draft of a case: OpenAI messages, or OpenTelemetry's spans and events of generative AI."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.otel import otel_conversations
from eval_pipeline.specs.importers.personal import Personal, Replaced

_HINT = (
    "give a JSON list of {role, content}, an object with `messages`, or spans or events with OpenTelemetry's gen_ai attributes"
)
_MOST_CRITERIA, _LEAST_CHARS = 12, 12
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'“„(\[]?[A-ZÄÖÜÀ-Þ0-9])")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_ROLES = {"developer": "system", "model": "assistant", "function": "tool"}
_WHO = {"user": "User", "assistant": "Assistant", "tool": "Tool"}


@dataclass(frozen=True)
class Message:
    """name: of the speaker or the tool, where it is told."""

    role: str
    text: str
    name: str | None = None


@dataclass(frozen=True)
class Chat:
    """n_others: shorter conversations in the same file."""

    messages: list[Message]
    n_others: int


@dataclass(frozen=True)
class Draft:
    """data: of the case's file. replaced: personal details. notes: what a person should look at."""

    data: dict[str, Any]
    replaced: list[Replaced]
    notes: list[str]


def read_chat(path: Path) -> Chat:
    """The longest conversation in the file, which is JSON or JSON lines. Raises SpecError."""
    try:
        documents = _documents(path.read_text("utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"can't be read: {why}", where=str(path), hint="name a file of JSON, in UTF-8") from None
    found = [conversation for conversation in _conversations(documents) if conversation]
    if not found:
        raise SpecError("no conversation was found in it", where=str(path), hint=_HINT)
    return Chat(max(found, key=len), len(found) - 1)


def draft_case(chat: Chat, case_id: str, personal: Personal) -> Draft:
    """The last question is the prompt, with the turns before it; what was answered is the reference and, part by part, criteria.

    Raises SpecError when nobody asks anything.
    """
    spoken = [message for message in chat.messages if message.role in _WHO and message.text.strip()]
    last = max((at for at, message in enumerate(spoken) if message.role == "user"), default=None)
    if last is None:
        raise SpecError("nobody asks anything: it has no message of the role `user`", hint=_HINT)
    answers = [message.text for message in spoken[last + 1 :] if message.role == "assistant"]
    answer = personal(answers[-1]).strip() if answers else ""
    prompt = _prompt([_said(one, personal) for one in spoken[:last]], personal(spoken[last].text).strip())
    parts = _parts(answer)
    criteria = [
        {"id": f"part-{n}", "text": f"Says in substance: {part}", "points": 1, "judge": True} for n, part in enumerate(parts, 1)
    ]
    if not criteria:
        criteria = [
            {"id": "answers", "text": "Answers the question (write here what a right answer says)", "points": 1, "judge": True}
        ]
    data: dict[str, Any] = {"id": case_id, "prompt": prompt, "tags": ["draft"]}
    if answer:
        data["reference"] = answer
    data["rubric"] = {"pass_at": 0.8, "criteria": criteria}
    return Draft(data, personal.replaced, _notes(chat, answer, len(criteria)))


def _documents(text: str, shown: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise SpecError(f"is no JSON: {whole}", where=shown, hint=_HINT) from None


def _conversations(documents: list[Any]) -> list[list[Message]]:
    plain = documents if len(documents) > 1 and all(isinstance(one, dict) and "role" in one for one in documents) else None
    found = [_messages(plain)] if plain else [_openai(document) for document in documents]
    return [*found, *(_messages(conversation) for conversation in otel_conversations(documents))]


def _openai(document: Any) -> list[Message]:
    """A list of messages, a request, a request with its response, or an object that holds both."""
    if isinstance(document, list):
        return _messages(document)
    if not isinstance(document, dict):
        return []
    said: list[Any] = []
    for part in (document, document.get("request"), document.get("response"), document.get("body")):
        if isinstance(part, dict):
            asked = part.get("messages", part.get("input"))
            said += asked if isinstance(asked, list) else [{"role": "user", "content": asked}] if isinstance(asked, str) else []
            said += [choice.get("message") for choice in part.get("choices") or [] if isinstance(choice, dict)][:1]
            said += part["output"] if isinstance(part.get("output"), list) else []
    return _messages(said)


def _messages(said: list[Any]) -> list[Message]:
    found: list[Message] = []
    for one in said:
        if isinstance(one, dict) and isinstance(one.get("role"), str):
            role = _ROLES.get(one["role"], str(one["role"]))
            name = one.get("name")
            found.append(Message(role, _content(one.get("content", one.get("parts"))), name if isinstance(name, str) else None))
    return found


def _content(content: Any) -> str:
    """The text of a message: a string, or parts of which only texts and tools' answers are kept."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content] if isinstance(content, dict) else []
    texts = [part if isinstance(part, str) else _part(part) for part in parts]
    return "\n".join(text for text in texts if text)


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") in ("reasoning", "thinking", "tool_call", "tool_use"):
        return ""
    value = next((part[key] for key in ("text", "content", "response", "result") if part.get(key) is not None), "")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _said(message: Message, personal: Personal) -> str:
    tool = f" {message.name}" if message.role == "tool" and message.name else ""
    return f"{_WHO[message.role]}{tool}: {personal(message.text).strip()}"


def _prompt(before: list[str], question: str) -> str:
    if not before:
        return question
    return "\n\n".join(["The conversation so far:", *before, "Go on with it. User:", question])


def _parts(answer: str) -> list[str]:
    """Items of lists, and sentences."""
    found: list[str] = []
    for line in answer.splitlines():
        item = _BULLET.sub("", line)
        text = re.sub(r"[*_#`]{1,3}", "", item).strip()
        found += [text] if item != line else _SENTENCE.split(text)
    return [part.strip() for part in found if len(part.strip()) >= _LEAST_CHARS and not part.strip().endswith(":")][
        :_MOST_CRITERIA
    ]


def _notes(chat: Chat, answer: str, n_criteria: int) -> list[str]:
    notes = [
        f"{n_criteria} draft criteria, each decided by a judge: keep what matters, weigh it, and write a `check` where a program can decide"
    ]
    if answer:
        notes.append("the reference is what was answered then, right or wrong: correct it")
    else:
        notes.append("it ends with the question: say in the criteria what a right answer says")
    if chat.n_others:
        notes.append(f"{chat.n_others} more in the file: the longest conversation was taken")
    if n := sum(message.role == "system" for message in chat.messages):
        notes.append(f"{n} system message{'' if n == 1 else 's'} left out: instructions are the application's")
    notes.append("names are replaced only where they are given: --replace NAME; read it before anybody else does")
    return notes
