"""`evals import inspect` and `harbor`, and the verbs that read what they keep, from the words to the numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from support.locks import locked_arm, locked_case, run_lock, score_lock

from eval_pipeline.cli.main import cli
from eval_pipeline.cli.output import emit_error
from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.records import open_records

DATA = Path(__file__).parents[1] / "analysis" / "data" / "imported"
SUMS = ("--as", "sums", "--arm", f"right={DATA / 'right.eval'}", "--arm", f"wrong={DATA / 'wrong.eval'}")

Say = Callable[..., Result]


@pytest.fixture
def say(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.setenv("EVALS_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("EVALS_WORLDS_DIR", str(settings.worlds_dir))
    monkeypatch.setenv("EVALS_POSTGRES_URL", str(settings.postgres_url))
    monkeypatch.delenv("EVALS_POSTGRES_EMBEDDED", raising=False)
    monkeypatch.setenv("COLUMNS", "150")
    return lambda *words: CliRunner().invoke(cli, list(words), catch_exceptions=False)


def data(done: Result) -> Any:
    return json.loads(done.stdout)["data"]


def accuracy(name: str) -> float:
    log = json.loads((DATA / name).read_text())
    return log["results"]["scores"][0]["metrics"]["accuracy"]["value"]


def test_an_export_is_never_written_under_another_formats_name(say: Say, tmp_path: Path) -> None:
    say("import", "inspect", *SUMS, "--json")
    refused = CliRunner().invoke(cli, ["export", "sums", "--output", str(tmp_path / "sums.xlsx")], standalone_mode=False)
    assert isinstance(refused.exception, SpecError) and "does not end in parquet, csv, json" in str(refused.exception)
    assert list(tmp_path.glob("*.xlsx")) == []
    for name, more in (("sums.csv", []), ("sums", []), ("sums.txt", ["--format", "csv"])):
        say("export", "sums", "--output", str(tmp_path / name), *more)
        assert pd.read_csv(tmp_path / name).shape[0] == 24


def test_a_log_is_imported_and_read_by_the_same_verbs(say: Say, tmp_path: Path) -> None:
    first = data(say("import", "inspect", *SUMS, "--json"))
    again = data(say("import", "inspect", *SUMS, "--json"))
    assert (first.pop("kept"), again.pop("kept")) == ("new", "unchanged") and first == again
    board = data(say("leaderboard", "sums", "--json"))
    assert board["arms"][0]["score"] == pytest.approx(accuracy("right.json"))
    assert board["imported"]["digest"] == first["digest"] and board["versions"] is None
    shown = say("leaderboard", "sums", "--wide").stdout
    assert "IMPORTED from inspect" in shown and "nothing of it was run, judged or priced here" in shown
    assert "23 of 24 cells ended in a result; missing: 1 ended in an error, without a score" in shown
    compared = say("compare", "sums", "right", "wrong")
    assert "6 cases, each a draw of its own" in compared.stdout and "evals cell show" not in compared.stdout
    assert data(say("compare", "sums:right", "sums:wrong", "--json"))["a"]["imported"] is True
    told = data(say("export", "sums", "--output", str(tmp_path / "t.parquet"), "--json"))
    assert told["rows"] == 24
    frame: Any = pd.read_parquet(tmp_path / "t.parquet")
    assert frame[frame["arm"] == "right"].groupby("case")["score"].mean().mean() == pytest.approx(accuracy("right.json"))
    with pytest.raises(SpecError, match="no tag is known"):
        say("leaderboard", "sums", "--by", "tag")


def test_a_job_is_imported_under_its_own_name(say: Say, tmp_path: Path) -> None:
    shutil.copytree(DATA / "job", tmp_path / "Nightly Job")
    done = data(say("import", "harbor", str(tmp_path / "Nightly Job"), "--json"))
    assert done["import"] == "harbor-nightly-job"
    assert (done["n_absent"], [arm["n_absent"] for arm in done["arms"]]) == (1, [None, None])
    assert [arm["arm"] for arm in done["arms"]] == ["alpha-openai-small-1", "beta-openai-large-2"]
    assert [one["import"] for one in data(say("import", "list", "--json"))] == ["harbor-nightly-job"]
    rows = data(say("import", "show", "harbor-nightly-job", "--json"))["rows"]
    assert len(rows["alpha-openai-small-1"]) == 6
    assert data(say("import", "remove", "harbor-nightly-job", "--json"))["removed"] is True
    assert data(say("import", "list", "--json")) == []


def test_a_damaged_import_is_listed_and_removed(say: Say, settings: Settings) -> None:
    say("import", "inspect", *SUMS)
    (settings.state_dir / "imports" / "broken.json").write_text("{")
    broken, sums = data(say("import", "list", "--json"))
    assert (broken["import"], sums["import"]) == ("broken", "sums") and "broken.json: can't be read" in broken["problem"]
    shown = say("import", "list")
    assert "damaged" in shown.stdout and "evals import remove broken" in shown.stderr
    assert data(say("import", "remove", "broken", "--dry-run", "--json"))["removed"] is False
    assert data(say("import", "remove", "broken", "--json"))["removed"] is True
    assert [one["import"] for one in data(say("import", "list", "--json"))] == ["sums"]


def test_a_name_that_an_experiment_has_too_is_asked_about(say: Say, settings: Settings) -> None:
    say("import", "inspect", *SUMS)
    run = run_lock("sums", cases=[locked_case("c")], arms=[locked_arm("a")])
    with open_records(settings) as records:
        records.ledger.create_experiment(run, score_lock(run), repo="/app", baseline=None, budget_usd=None)
    with pytest.raises(SpecError, match="'sums' is an experiment and an import") as refused:
        say("leaderboard", "sums")
    assert run.experiment_id in str(refused.value.hint)
    assert data(say("leaderboard", run.experiment_id, "--json"))["imported"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspect",), "nothing to read was named"),
        (("inspect", "no-such.eval"), "no-such.eval: can't be read: No such file"),
        (("inspect", str(DATA)), "is no file|can't be read"),
        (("harbor", str(DATA / "right.eval")), "is no folder"),
        (("harbor", str(DATA / "job"), "--scorer", "other"), "no score is called 'other'"),
        (("harbor", str(DATA / "job"), "--range", "1", "0"), "is no range"),
        (("harbor", str(DATA / "job"), "--range", "0", "inf"), "--range 0 inf is no range"),
        (("harbor", str(DATA / "job"), "--range", "nan", "1"), "is no range"),
        (("harbor", str(DATA / "job"), "--pass-at", "nan"), "--pass-at nan is no score"),
        (("harbor", str(DATA / "job"), "--pass-at", "-inf"), "is no score"),
        (("harbor", "--arm", f"one={DATA / 'job'}"), "they can't all be one"),
        (("inspect", "--arm", f"A B={DATA / 'right.eval'}"), "is not a name"),
        (("show", "sums"), "there is no import 'sums'"),
    ],
)
def test_mistakes_are_the_authors(say: Say, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        say("import", *words)
    assert emit_error(refused.value, as_json=True) == 2
