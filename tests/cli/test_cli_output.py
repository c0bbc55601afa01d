"""What people read: tables whose keys can be pasted, and what a missing name is answered with."""

from __future__ import annotations

import json

import click
import pytest

from eval_pipeline.cli.main import cli
from eval_pipeline.cli.output import counted, emit, emit_error, harmless, note, table
from eval_pipeline.errors import BuildError

KEY = "mine-77be7aa5d54e/kiel.notice-period/dirty/0"


@pytest.mark.parametrize("columns", ["60", "100", "200"])
def test_keys_stay_in_one_piece_and_the_error_is_shortened(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    rows = [[KEY, "done", 0.25, "ended with code 3: " + "no such option " * 20], [KEY[:-1] + "1", "open", None, "短い" * 90]]
    table(["cell", "state", "score", "error"], rows, right=["score"], cut="error")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.rstrip().endswith("…") for line in lines[1:])
    assert [line.split()[0] for line in lines[1:]] == [KEY, KEY[:-1] + "1"]
    assert "ended with code 3" in lines[1]
    assert all(len(line) <= max(int(columns), 90) for line in lines)


def test_a_short_error_is_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    table(["cell", "error"], [[KEY, "lost"]], cut="error")
    assert capsys.readouterr().out.splitlines()[1].split() == [KEY, "lost"]


def test_who_names_no_experiment_hears_where_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.MissingParameter) as caught:
        cli.main(["leaderboard"], prog_name="evals", standalone_mode=False)
    assert emit_error(caught.value, as_json=False) == 2
    assert "`evals experiment list` lists them" in capsys.readouterr().err


def test_one_is_not_many() -> None:
    assert [counted(n, "case", "cases") for n in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]


HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b31m \u202egnp.exe \ud800 a\ttab\nline"


def test_what_a_program_printed_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """An error may hold the last lines of an app's build, and a note its log."""
    emit_error(BuildError(HOSTILE, hint=HOSTILE), as_json=False)
    note(HOSTILE)
    emit({"answer": HOSTILE}, as_json=True, show=lambda: None)
    out, err = capsys.readouterr()
    assert json.loads(out)["data"]["answer"] == HOSTILE
    assert err.count("\\x1b]0;title\\x07") == 3 and err.count("a\ttab\nline") == 3
    for text in (out, err, harmless(HOSTILE)):
        assert not [char for char in text if not (char.isprintable() or char in "\n\t")]
