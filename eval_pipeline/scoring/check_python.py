"""The check `python`: a program of the author's own, `def check(...)`, in a file beside the case.

It names as its parameters what it looks at:
  answer      text; None where there is none, as of a failed agent
  texts       deliverables as text by name (also .docx, .xlsx, .pdf, .eml), those that have one
  files       bytes by name          world       pathlib.Path of the snapshot, read-only
  world_diff  as JSON, or None       usage       what the agent used, one mapping a model
  options     what stands in `with`
It returns whether it is met (True or False), a count on a per-occurrence criterion, or one of these with a reason: `True, "why"`.
It runs in a sandbox with the standard library alone, without a network, and is given so much time and memory and no more.
One that crashes, hangs, or returns anything else gives no verdict: that is nobody's failure but its own.
"""

from __future__ import annotations

import ast
import json
import signal
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from eval_pipeline.errors import EvalsError
from eval_pipeline.sandbox.local import once
from eval_pipeline.scoring import check_driver
from eval_pipeline.scoring.check_base import Absent, Arguments, CheckResult, Evidence, Run, Undecided, file_text, shown

PYTHON = "`python: checks/my_check.py` or `python: {file: checks/my_check.py, with: {KEY: VALUE}}`"
PARAMETERS = ("answer", "files", "texts", "world", "world_diff", "usage", "options")
FUNCTION = "check"
SOURCE_MAX_BYTES = 256 << 10
MEMORY_MIB, CPU_S, WALL_S, FILE_MIB, PROCESSES = 1024, 30, 60.0, 16, 32
_LIMITS = {
    "RLIMIT_AS": MEMORY_MIB << 20,
    "RLIMIT_CPU": CPU_S,
    "RLIMIT_FSIZE": FILE_MIB << 20,
    "RLIMIT_NPROC": PROCESSES,
    "RLIMIT_CORE": 0,
}
_REASON_MAX = 500


@dataclass(frozen=True, kw_only=True)
class _Program:
    """parameters: of its function. source: the file's content, which is what a lock holds of it."""

    file: str
    source: str
    parameters: tuple[str, ...]
    options: dict[str, Any]


def located(argument: Any) -> tuple[str, dict[str, Any]]:
    """The file and the options of a check as a person wrote it. Raises ValueError."""
    options = Arguments("python", PYTHON, argument, main="file", options=("with",))
    given = options.value("with")
    if not (given is None or isinstance(given, dict)):
        raise options.wrong(f"needs a mapping as `with`, found {shown(str(given), 40)}")
    return options.text("file"), cast(dict[str, Any], given or {})


def loaded(file: str, source: str, options: dict[str, Any]) -> dict[str, Any]:
    """The argument as a lock holds it: with the file's content."""
    return {"file": file, "source": source, "with": options}


def python(argument: Any, per_occurrence: bool) -> Run:
    """argument: as `loaded` gives it. Raises ValueError, with the file's line, for a file that is no check."""
    program = _program(argument)

    def run(evidence: Evidence) -> CheckResult:
        ended = _run(program, evidence)
        if ended.code is None:
            raise Undecided(f"{program.file} was ended: it ran for more than {WALL_S:g} s")
        if ended.code != 0:
            raise Undecided(f"{program.file} {_how(ended.code)}: {_last_line(ended.stderr)}")
        return _result(program.file, ended.stdout, per_occurrence)

    return run


def asks_for(argument: Any, parameter: str) -> bool:
    try:
        return parameter in _program(argument).parameters
    except ValueError:
        return False


def _program(argument: Any) -> _Program:
    if not isinstance(argument, Mapping) or "source" not in argument:
        raise ValueError(f"check `python` names a file beside a case, which was not read here; write {PYTHON}")
    given = cast(Mapping[str, Any], argument)
    file, source = str(given["file"]), str(given["source"])
    return _Program(file=file, source=source, parameters=_parameters(file, source), options=dict(given["with"]))


def _parameters(file: str, source: str) -> tuple[str, ...]:
    """Of its function. The file is read, not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the author's escapes; they are no reason to refuse
            tree = ast.parse(source, file)
    except SyntaxError as error:
        raise ValueError(f"{file}:{error.lineno or 1}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{file}:1: can't be read as Python: {error}") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    form = f"write `def {FUNCTION}(answer, files): return True, 'why'` with any of {', '.join(PARAMETERS)}"
    if not functions:
        raise ValueError(f"{file}:1: has no function `{FUNCTION}`; {form}")
    arguments = functions[-1].args
    where = f"{file}:{functions[-1].lineno}"
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise ValueError(f"{where}: `{FUNCTION}` names what it looks at, no *args, **kwargs or /; {form}")
    names = tuple(one.arg for one in [*arguments.args, *arguments.kwonlyargs])
    if unknown := [name for name in names if name not in PARAMETERS]:
        raise ValueError(f"{where}: `{FUNCTION}` can't be given {', '.join(map(repr, unknown))}; {form}")
    return names


def _run(program: _Program, evidence: Evidence) -> once.Ended:
    bench = evidence.bench
    if bench is None:
        raise Undecided(f"{program.file} was not run: there is no sandbox for it here")
    try:
        with once.desk(bench.state_dir) as folder:
            _lay_out(folder, program, evidence)
            arguments = [f"{check_driver.GIVEN}/driver.py"]
            return once.run_python(bench.state_dir, folder, bench.world_dir, arguments, wall_s=WALL_S)
    except (EvalsError, OSError) as error:
        raise Undecided(f"{program.file} was not run: {error}") from error


def _lay_out(folder: Path, program: _Program, evidence: Evidence) -> None:
    """What it asks for, and no more: a text costs a reader of its own."""
    files = evidence.files if "files" in program.parameters else {}
    texts = _texts(evidence) if "texts" in program.parameters else {}
    given: dict[str, Any] = {"answer": evidence.answer, "options": program.options}
    given["usage"] = [one.model_dump(mode="json") for one in evidence.usage]
    if "world_diff" in program.parameters:
        given["world_diff"] = None if evidence.world_diff is None else evidence.world_diff.model_dump(mode="json")
    asked = {"file": program.file, "parameters": program.parameters, "limits": _LIMITS, "given": given}
    _put(folder / "asked.json", json.dumps({**asked, "files": list(files), "texts": list(texts)}).encode())
    _put(folder / "check.py", program.source.encode())
    _put(folder / "driver.py", Path(check_driver.__file__).read_bytes())
    for name, contents in (("files", list(files.values())), ("texts", [text.encode() for text in texts.values()])):
        (folder / name).mkdir()
        (folder / name).chmod(0o711)
        for place, content in enumerate(contents):
            _put(folder / name / str(place), content)


def _put(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o444)


def _texts(evidence: Evidence) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in evidence.files:
        try:
            found[name] = file_text(evidence, name)
        except Absent:
            continue
    return found


def _result(file: str, stdout: bytes, per_occurrence: bool) -> CheckResult:
    try:
        said: Any = json.loads(stdout)
    except (ValueError, RecursionError):
        raise Undecided(f"{file} ended without an answer") from None
    values = cast(list[Any], said) if isinstance(said, list) else []
    value: Any = values[0] if values else None
    reason: Any = values[1] if len(values) == 2 else "no reason given"
    fits = _is_count(value) if per_occurrence else isinstance(value, bool)
    if not fits or not isinstance(reason, str) or len(values) > 2:
        wanted = "a count of 0 or more" if per_occurrence else "True or False"
        raise Undecided(f"{file} returned {shown(repr(values))}, not {wanted}, alone or with a reason")
    return CheckResult(float(value), f"{file}: {reason[:_REASON_MAX]}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _how(code: int) -> str:
    number = -code if code < 0 else code - 128  # bwrap ends with 128 and the number of the signal
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return f"used more than {CPU_S} s of processor time, or was killed"
    return f"was ended by {signal.Signals(number).name}" if number in [*signal.Signals] else f"failed with code {code}"


def _last_line(stderr: bytes) -> str:
    lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    return shown(lines[-1], _REASON_MAX) if lines else "it said nothing"
