"""The workflow of docs/gate.md: it is YAML, and the commands it names are commands with these options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from scipy import stats

from eval_pipeline.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs" / "gate.md").read_text()
(WORKFLOW,) = [yaml.safe_load(text) for text in re.findall(r"```yml\n(.*?)```", PAGE, re.DOTALL)]
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["gate"]["steps"]


def commands() -> list[list[str]]:
    lines = "\n".join(step["run"] for step in STEPS if "run" in step).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line)) and words[0].endswith("/evals")]


def test_it_runs_the_gate_for_pull_requests() -> None:
    assert [words[0] for words in commands()] == ["doctor", "gate"]
    assert set(WORKFLOW[True]) == {"pull_request"}  # YAML reads `on` as true
    assert WORKFLOW["permissions"]["pull-requests"] == "write"  # for the comment


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[0])
def test_the_real_parser_takes_its_commands(words: list[str]) -> None:
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    with command.make_context(words[0], list(words[1:])) as context:
        given = {name: context.get_parameter_source(name) for name in context.params}
    if words[0] == "gate":
        assert context.params["base"] == "$BASE" and context.params["margin"] == 0.1
        assert given["markdown"] is click.core.ParameterSource.COMMANDLINE


def test_no_text_of_a_pull_request_gets_into_a_script() -> None:
    """Names of branches and titles are written by strangers: they come through the environment."""
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_what_it_writes_is_what_it_shows() -> None:
    (gate,) = [words for words in commands() if words[0] == "gate"]
    written = {gate[gate.index(option) + 1] for option in ("--markdown", "--junit")}
    assert written == {"gate.md", "gate.xml"}
    assert "--body-file gate.md" in str(STEPS) and "'path': 'gate.xml'" in str(STEPS)


def test_the_numbers_of_worlds_are_right() -> None:
    said = re.search(r"takes (\d+) worlds .*?margin of ([\d.]+), (\d+) for ([\d.]+), (\d+) for ([\d.]+), and (\d+) for ([\d.]+)\.", PAGE, re.DOTALL)  # fmt: skip
    assert said is not None
    for worlds, margin in zip(said.groups()[::2], said.groups()[1::2], strict=True):
        needed = next(n for n in range(2, 200) if float(margin) * (n + 1) - 1 > stats.t.ppf(0.95, n - 1))
        assert needed == int(worlds), margin
