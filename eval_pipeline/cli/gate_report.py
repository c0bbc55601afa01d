"""What a gate says: to people, as Markdown for a comment, as JUnit XML for a build server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from eval_pipeline.cli.compare import figures, verdict_lines
from eval_pipeline.cli.output import harmless

if TYPE_CHECKING:
    from eval_pipeline.analysis.gate import Gate, Revision
    from eval_pipeline.analysis.moves import CaseMove

_MOVES = 10


def gate_lines(gate: Gate) -> list[str]:
    refs = f"base = {_revision(gate.base)}, head = {_revision(gate.head)}"
    if gate.comparison is None:
        return [f"{_headline(gate)}\n{refs}"]
    return [_headline(gate), refs, *gate.why, *verdict_lines(gate.comparison, names=("base", "head"))]


def _headline(gate: Gate) -> str:
    return {
        "non_inferior": f"PASSED: head is no worse than base by more than {gate.margin:g}",
        "not_shown": f"NOT PASSED: that head is no worse than base by more than {gate.margin:g} is not shown",
        "undecided": "NOT PASSED: there is no verdict that counts",
        "identical": "PASSED: the application is the same at both refs; nothing was run",
    }[gate.decision]


def _revision(revision: Revision) -> str:
    return f"{harmless(revision.ref)} ({(revision.commit or revision.tree)[:12]})"


def markdown_text(gate: Gate) -> str:
    """Ends with a newline. Names of people's are escaped."""
    head = [f"### {_headline(gate)}", "", f"base {_md(_revision(gate.base))}, head {_md(_revision(gate.head))}", ""]
    if gate.comparison is None:
        return "\n".join(head)
    found = gate.comparison
    columns = ["", "base", "head", "head against base", "95% CI", "p"]
    lines = [
        *head,
        *(f"- **{_md(why)}**" for why in gate.why),
        *([""] if gate.why else []),
        *_md_table(columns, figures(found)),
        "",
    ]
    lines += [f"- {_md(line.strip())}" for line in verdict_lines(found, names=("base", "head"))]
    moved = [move for move in found.cases if move.diff != 0.0][:_MOVES]
    if moved:
        rows = [[move.case, *map(_score, (move.a, move.b)), _signed(move.diff)] for move in moved]
        lines += ["", "<details><summary>cases that moved most</summary>", ""]
        lines += [*_md_table(["case", "base", "head", "head - base"], rows), "", *_commands(moved), "", "</details>"]
    return "\n".join([*lines, "", f"`{gate.experiment}`: {found.n_cases} cases of {found.n_worlds} worlds, {found.status}", ""])


def _commands(moved: Sequence[CaseMove]) -> list[str]:
    keys = [key for move in moved for key in (move.cell_a, move.cell_b) if key is not None]
    return ["```sh", *(f"evals cell show {harmless(key)}" for key in keys), "```"]


def _md_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---", *["---:" for _ in columns[1:]]], *([_md(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _md(text: str) -> str:
    """As plain text: no name becomes a mark, a link or a tag."""
    escaped = "".join(f"\\{char}" if char in r"\`*_[]|#~@" else char for char in harmless(text).replace("\n", " "))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def junit_xml(gate: Gate) -> str:
    """One testcase a case and `verdict`. A case without a score in both is skipped. A case whose head is worse by more than the margin is
    a failure where the gate does not pass: by itself one case decides nothing."""
    moves = [] if gate.comparison is None else sorted(gate.comparison.cases, key=lambda move: move.case)
    lost = [] if gate.passed else [move.case for move in moves if move.diff is not None and move.diff < -gate.margin]
    skipped = [move.case for move in moves if move.diff is None]
    counts = {
        "tests": len(moves) + 1,
        "failures": len(lost) + (gate.decision == "not_shown"),
        "errors": int(gate.decision == "undecided"),
        "skipped": len(skipped),
    }
    suite = ElementTree.Element("testsuite", {"name": "evals gate", **{name: str(n) for name, n in counts.items()}})
    took = sum((move.latency_s_a or 0.0) + (move.latency_s_b or 0.0) for move in moves)
    suite.attrib |= {"time": f"{took:.3f}", "timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}", "hostname": "localhost"}
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(gate).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": harmless(value)})
    for move in moves:
        _case(suite, move, skipped=move.case in skipped, lost=move.case in lost)
    _verdict(suite, gate)
    ElementTree.SubElement(suite, "system-out").text = "\n".join(gate_lines(gate))
    ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _properties(gate: Gate) -> dict[str, str]:
    known = {"base": _revision(gate.base), "head": _revision(gate.head), "margin": f"{gate.margin:g}", "alpha": f"{gate.alpha:g}"}
    return known | ({} if gate.experiment is None else {"experiment": gate.experiment}) | {"decision": gate.decision}


def _case(suite: ElementTree.Element, move: CaseMove, *, skipped: bool, lost: bool) -> None:
    world, _, name = move.case.partition(".")
    took = (move.latency_s_a or 0.0) + (move.latency_s_b or 0.0)
    case = ElementTree.SubElement(suite, "testcase", {"name": name, "classname": world, "time": f"{took:.3f}"})
    said = f"base {_score(move.a)}, head {_score(move.b)}, head - base {_signed(move.diff)}"
    if skipped:
        ElementTree.SubElement(case, "skipped", {"message": f"no score in both: {said}"})
    elif lost:
        failure = ElementTree.SubElement(case, "failure", {"type": "worse", "message": said})
        failure.text = f"evals cell show {move.cell_a}\nevals cell show {move.cell_b}"


def _verdict(suite: ElementTree.Element, gate: Gate) -> None:
    case = ElementTree.SubElement(suite, "testcase", {"name": "verdict", "classname": "evals.gate", "time": "0"})
    if not gate.passed:
        kind = "error" if gate.decision == "undecided" else "failure"
        why = ElementTree.SubElement(case, kind, {"type": gate.decision, "message": harmless("; ".join(gate.why))})
        why.text = "\n".join(gate_lines(gate))
