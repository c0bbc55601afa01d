"""The README stays true: its commands, files, words and tables are held to the project."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from eval_pipeline.cli.main import NOUNS, cli
from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.domain.case import CaseSpec
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.experiment import AppSpec, ExperimentSpec
from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.research.goal import Goal
from eval_pipeline.scoring.checks import validate_check

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", f"{README}\n{DOCS}", re.DOTALL)


def commands() -> list[list[str]]:
    inline = re.findall(r"`((?:\.venv/bin/)?evals [^`]+)`", f"{README}\n{DOCS}")
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.startswith("evals ")]
    return [line.split("#")[0].split()[1:] for line in [*inline, *lines]]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_exists_with_its_options(words: list[str]) -> None:
    found: click.Command = cli
    for word in words:
        if not isinstance(found, click.Group):
            break
        name = word
        child = found.get_command(click.Context(found), name)
        assert child is not None, f"evals {' '.join(words)}: {name!r} is not a command"
        found = child
    options = {name for parameter in found.params for name in parameter.opts}
    used = [word for word in words if word.startswith("--")]
    assert set(used) <= options | {"--help"}, f"evals {' '.join(words)}: known options are {sorted(options)}"


def test_every_noun_is_mentioned_by_help_and_works() -> None:
    for noun in NOUNS:
        assert cli.get_command(click.Context(cli), noun) is not None


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert used and used <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_map_names_the_packages_that_exist() -> None:
    mapped = set(re.findall(r"^\| `eval_pipeline/(\w+)/`", README, re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "eval_pipeline").glob("*/__init__.py")}
    assert mapped == packages


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:eval_pipeline|worlds_src|examples|tests|bench)/[\w./]+)`", f"{README}\n{DOCS}")))
)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists() or "<" in path


def test_links_and_pictures_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / target).is_file(), target


def test_the_readme_stays_an_introduction_and_leads_to_every_page() -> None:
    assert len(README) < 24_000
    assert all(f"](docs/{path.name})" in README for path in (ROOT / "docs").glob("*.md"))


def test_the_examples_are_valid() -> None:
    models = {
        "title": WorldSpec,
        "prompt": CaseSpec,
        "image": AppManifest,
        "space": Goal,
        "arms": ExperimentSpec,
        "repo": AppSpec,
    }
    seen: set[str] = set()
    for kind, text in BLOCKS:
        if kind == "yaml":
            data = yaml.safe_load(text)
            if set(data) < set(AppManifest.model_fields) and "image" not in data:  # some lines of a manifest
                data = {"name": "a", "image": {"base": "host"}, "agent": ["a"], **data}
            key = next(name for name in models if name in data)
            seen.add(key)
            model = models[key].model_validate_json(canonical_json(data))
            if isinstance(model, CaseSpec):
                for criterion in model.rubric.criteria:
                    assert criterion.check is not None
                    validate_check(criterion.check)
    assert seen == set(models)


def test_the_words_name_every_outcome() -> None:
    assert all(str(outcome) in README for outcome in Outcome)


def test_it_is_no_template() -> None:
    assert "@@" not in README
    assert len(README.split(".")[0].split()) < 60
