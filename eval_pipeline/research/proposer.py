"""Ask a command for a proposal: what is known as JSON on its standard input, its answer as JSON on its standard output."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from eval_pipeline.research.goal import ProposerSpec

_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_ANSWER_MAX = 1 << 20
_SAID_MAX = 300


def ask(command: Sequence[str], rule: ProposerSpec, given: Mapping[str, Any]) -> dict[str, Any] | str:
    """The answer, or in words why there is none. command: as it is run. It never runs for longer than `rule.timeout_s`."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        told.write(json.dumps(given, ensure_ascii=False).encode("utf-8", "backslashreplace"))
        told.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=told, stdout=said, stderr=errors, env=_environment(rule, given), start_new_session=True
            )
        except OSError as error:
            return f"the proposer's command can't be started: {error}"
        try:
            code = process.wait(rule.timeout_s)
        except subprocess.TimeoutExpired:
            return f"the proposer had not answered after {rule.timeout_s:g} s and was ended"
        finally:
            _end(process)
        if code != 0:
            return f"the proposer ended with {code}: {_tail(errors)}"
        return _read(said)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its whole session; within walls its pid namespace ends with it, whoever left the session."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def _environment(rule: ProposerSpec, given: Mapping[str, Any]) -> dict[str, str]:
    """Nothing that leads to the ledger."""
    passed = {name: os.environ[name] for name in (*_PASSED, *_PROXIES, *rule.env) if name in os.environ}
    return passed | {"EVALS_RESEARCH": str(given["research"]), "EVALS_RESEARCH_STEP": str(given["step"])}


def _tail(errors: Any) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _SAID_MAX))
    return errors.read().decode(errors="replace").strip() or "it said nothing"


def _read(said: Any) -> dict[str, Any] | str:
    said.seek(0)
    text = said.read(_ANSWER_MAX + 1)
    if len(text) > _ANSWER_MAX:
        return f"the proposer's answer has more than {_ANSWER_MAX} bytes"
    try:
        answer = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"the proposer's answer is no JSON ({error}): {_start(text)}"
    if not isinstance(answer, dict):
        return f"the proposer's answer is no JSON object: {_start(text)}"
    if "\\u0000" in json.dumps(answer):
        return "the proposer's answer holds a NUL, which can't be stored"
    return answer


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number that can be used")


def _start(text: bytes) -> str:
    return repr(text[:_SAID_MAX].decode(errors="replace"))
