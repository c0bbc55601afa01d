"""What a gate decides and writes, from tables made by hand: JUnit by a schema and by counting, Markdown as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from support.tabled import Did, one_a_world, tabled

from eval_pipeline.analysis.comparable import side
from eval_pipeline.analysis.compare import compare
from eval_pipeline.analysis.gate import Gate, Revision, decide, passes_unchanged, worlds_to_pass
from eval_pipeline.cli.gate_report import gate_lines, junit_xml, markdown_text

SCHEMA = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:simpleType name="when"><xs:restriction base="xs:dateTime"><xs:pattern value="[0-9-]{10}T[0-9:]{8}"/></xs:restriction></xs:simpleType>
  <xs:complexType name="why"><xs:simpleContent><xs:extension base="xs:string">
    <xs:attribute name="message" type="xs:string"/><xs:attribute name="type" type="xs:string" use="required"/>
  </xs:extension></xs:simpleContent></xs:complexType>
  <xs:element name="testsuite"><xs:complexType><xs:sequence>
    <xs:element name="properties"><xs:complexType><xs:sequence>
      <xs:element name="property" minOccurs="0" maxOccurs="unbounded"><xs:complexType>
        <xs:attribute name="name" type="xs:token" use="required"/><xs:attribute name="value" type="xs:string" use="required"/>
      </xs:complexType></xs:element>
    </xs:sequence></xs:complexType></xs:element>
    <xs:element name="testcase" minOccurs="0" maxOccurs="unbounded"><xs:complexType><xs:choice minOccurs="0">
      <xs:element name="skipped"><xs:complexType><xs:attribute name="message" type="xs:string"/></xs:complexType></xs:element>
      <xs:element name="error" type="why"/><xs:element name="failure" type="why"/>
    </xs:choice>
      <xs:attribute name="name" type="xs:token" use="required"/><xs:attribute name="classname" type="xs:token" use="required"/>
      <xs:attribute name="time" type="xs:decimal" use="required"/>
    </xs:complexType></xs:element>
    <xs:element name="system-out" type="xs:string"/><xs:element name="system-err" type="xs:string"/>
  </xs:sequence>
    <xs:attribute name="name" type="xs:token" use="required"/><xs:attribute name="timestamp" type="when" use="required"/>
    <xs:attribute name="hostname" type="xs:token" use="required"/><xs:attribute name="tests" type="xs:int" use="required"/>
    <xs:attribute name="failures" type="xs:int" use="required"/><xs:attribute name="errors" type="xs:int" use="required"/>
    <xs:attribute name="skipped" type="xs:int"/><xs:attribute name="time" type="xs:decimal" use="required"/>
  </xs:complexType></xs:element>
</xs:schema>"""
"""What readers of JUnit XML agree on, at its strictest: every attribute is there, and nothing beside."""

BASE, HEAD = Revision(ref="main", commit="c" * 40, tree="a" * 40), Revision(ref="feature/*x*<b>", commit="d" * 40, tree="b" * 40)


def gate(did: Mapping[str, Did], margin: float = 0.2, **more: Any) -> Gate:
    names = list(dict.fromkeys(key.split("/")[0] for key in did))
    experiment, table = tabled(did, one_a_world(names), **more)
    found = compare(side(experiment, table, "base"), side(experiment, table, "head"), margin=margin)
    decision, why = decide(found)
    return Gate(
        base=BASE, head=HEAD, margin=margin, alpha=0.05, decision=decision, why=why, experiment=experiment.id, comparison=found
    )


def same(n: int = 20, /, **others: Did) -> dict[str, Did]:
    did = {f"c{n:02d}/{arm}/0": Did(a=1, b=1, latency_s=1.5) for n in range(n) for arm in ("base", "head")}
    return did | {key.replace("_", "/"): one for key, one in others.items()}


WORSE = {f"c{n:02d}_head_0": Did(a=1, b=0) for n in range(12)}


def lost(n: int) -> dict[str, Did]:
    return {f"c{one:02d}_head_0": Did(outcome="infra_failure") for one in range(n)}


def suite(made: Gate) -> Any:
    root = etree.fromstring(junit_xml(made).encode())
    etree.XMLSchema(etree.fromstring(SCHEMA.encode())).assertValid(root)
    cases = root.findall("testcase")
    counts = {kind: sum(case.find(kind[:-1] if kind != "skipped" else kind) is not None for case in cases) for kind in ("failures", "errors", "skipped")}  # fmt: skip
    assert {kind: int(root.get(kind)) for kind in counts} == counts
    assert int(root.get("tests")) == len(cases)
    return root


def test_a_head_that_is_no_worse_passes() -> None:
    made = gate(same())
    assert (made.decision, made.passed, made.why) == ("non_inferior", True, [])
    root = suite(made)
    assert (root.get("tests"), root.get("failures"), root.get("time")) == ("21", "0", "60.000")
    assert gate_lines(made)[0] == "PASSED: head is no worse than base by more than 0.2"


def test_a_head_that_is_worse_fails_with_the_cases_that_lost() -> None:
    made = gate(same(**WORSE))
    assert (made.decision, made.passed) == ("not_shown", False)
    root = suite(made)
    failed = [case.get("name") for case in root.findall("testcase") if case.find("failure") is not None]
    assert failed == [*(f"c{n:02d}" for n in range(12)), "verdict"]
    text = markdown_text(made)
    assert "| score | 1.000 | 0.550 | -0.450 |" in text
    assert f"evals cell show {made.experiment}/w-c00.c00/head/0" in text


def test_a_case_that_lost_is_no_failure_of_a_head_that_passes() -> None:
    made = gate(same(60, c00_head_0=Did(a=1, b=0)))
    assert made.passed
    assert suite(made).get("failures") == "0"


def test_what_is_missing_passes_nothing() -> None:
    made = gate(same(30, **lost(4)))
    assert (made.decision, made.passed) == ("undecided", False)
    root = suite(made)
    assert (root.get("skipped"), root.get("errors")) == ("4", "1")
    # even where it could change no verdict: a table that is only provisional passes nothing
    made = gate(same(200, **lost(5)))
    assert made.comparison is not None and made.comparison.non_inferior is True
    assert (made.decision, made.passed) == ("undecided", False)


def test_an_application_that_is_the_same_passes_without_a_run() -> None:
    made = Gate(base=BASE, head=HEAD, margin=0.1, alpha=0.05, decision="identical")
    assert made.passed
    assert suite(made).get("tests") == "1"
    assert "nothing was run" in markdown_text(made)
    assert made.as_data()["passed"] is True


def test_names_are_text_in_markdown() -> None:
    assert r"head feature/\*x\*&lt;b&gt; (dddddddddddd)" in markdown_text(gate(same()))


@pytest.mark.parametrize("margin, least", [(0.5, 6), (0.2, 13), (0.05, 53)])
def test_how_many_worlds_a_margin_takes(margin: float, least: int) -> None:
    """By hand: a lost world as a guard leaves margin (G + 1) - 1 above the t quantile."""
    from scipy import stats

    by_hand = next(n for n in range(2, 100) if margin * (n + 1) - 1 > stats.t.ppf(0.95, n - 1))
    assert worlds_to_pass(margin, 0.05, (0.0, 1.0)) == by_hand == least
    assert passes_unchanged({f"c{n}": f"w{n}" for n in range(least)}, margin, 0.05, (0.0, 1.0)) is True
    assert passes_unchanged({f"c{n}": f"w{n}" for n in range(least - 1)}, margin, 0.05, (0.0, 1.0)) is False
    assert passes_unchanged({f"c{n}": "w" for n in range(least)}, margin, 0.05, (0.0, 1.0)) is None
