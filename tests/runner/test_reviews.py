"""People label what a judge decided: what they are asked and shown, how their labels come in, and what they change."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from statsmodels.stats.inter_rater import cohens_kappa  # type: ignore[import-untyped]
from support.judged import JudgedRuns, judged, judged_runs
from support.locks import locked_arm
from support.loopback_judge import LoopbackJudge, Read, by_words, loopback_judge
from support.places import short_dir

from eval_pipeline.analysis.load_calibration import load_badge
from eval_pipeline.analysis.stats import Badge
from eval_pipeline.cli.main import cli
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.judge_calls import CALLS_PER_MINUTE
from eval_pipeline.store.ledger import ExperimentRow

pytestmark = pytest.mark.slow

LEASE = judged("lease", "Says that the Kiel lease needs written consent", 2)
FUEL = judged("fuel", "Says that the fuel supply ends in Rotterdam", 1)
INVENTED = judged("invented", "Invented contracts named nowhere", -1, per_occurrence=True)
GOOD = "The Kiel lease needs written consent of the landlord."
BOTH = f"{GOOD}\nAnd the fuel supply ends in Rotterdam."
ARMS = (locked_arm("left-arm"), locked_arm("right-arm"))


@pytest.fixture(scope="module")
def judge() -> Generator[LoopbackJudge]:
    with loopback_judge() as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(shared_state: Path) -> Generator[JudgedRuns]:
    with short_dir() as worlds, judged_runs(Settings(state_dir=shared_state, worlds_dir=worlds)) as opened:
        opened.records.judge_calls.set_limit(CALLS_PER_MINUTE, None, 60_000)
        yield opened


class Evals:
    """The command line, in this process."""

    def __init__(self, runs: JudgedRuns) -> None:
        self._env = {"EVALS_STATE_DIR": str(runs.settings.state_dir), "EVALS_WORLDS_DIR": str(runs.settings.worlds_dir)}

    def __call__(self, *args: str) -> Any:
        done = CliRunner().invoke(cli, [*args, "--json"], env=self._env, catch_exceptions=False, standalone_mode=False)
        envelope = json.loads(done.stdout)
        assert envelope["ok"], envelope
        return envelope["data"]

    def typed(self, *args: str, keys: str) -> str:
        return CliRunner().invoke(cli, args, input=keys, env=self._env, catch_exceptions=False, standalone_mode=False).stdout


@pytest.fixture
def evals(runs: JudgedRuns) -> Evals:
    return Evals(runs)


_test = count()


def two_arms(runs: JudgedRuns, judge: LoopbackJudge, n_cases: int = 10, **more: Any) -> ExperimentRow:
    """Every answer another bundle: no two cells share a question, and none has a label that another test gave."""
    mark = next(_test)
    answers = [f"{GOOD if n % 2 else 'Nothing.'} In the test {mark} ({n})" for n in range(2 * n_cases)]
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url)
    experiment = runs.experiment(spec, [LEASE, FUEL], answers, arms=ARMS, **more)
    runs.judge(experiment)
    return experiment


def filled(path: Path, label: Any) -> list[dict[str, str]]:
    """Fill the CSV in as a person does; label(row) says with what."""
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    with path.open("w", encoding="utf-8-sig", newline="") as sink:
        writer = csv.DictWriter(sink, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "label": label(row)} for row in rows)
    return rows


def test_a_sample_is_drawn_evenly_from_the_arms_and_a_larger_one_holds_it(
    runs: JudgedRuns, judge: LoopbackJudge, evals: Evals
) -> None:
    experiment = two_arms(runs, judge)
    assert evals("judge", "review", experiment.id, "--sample", "10")["n_drawn"] == 20  # both criteria of ten cells
    items = runs.records.reviews.items(experiment.id)
    assert Counter(one.cell_key.split("/")[2] for one in items) == {"left-arm": 10, "right-arm": 10}
    assert Counter(one.raters for one in items) == {1: 16, 2: 4}  # a fifth by two people
    assert evals("judge", "review", experiment.id, "--sample", "10")["n_drawn"] == 0
    assert evals("judge", "review", experiment.id, "--sample", "12")["n_drawn"] == 4
    assert runs.records.reviews.items(experiment.id)[:20] == items


def test_a_reviewer_sees_the_work_and_neither_arm_nor_verdict(
    runs: JudgedRuns, judge: LoopbackJudge, evals: Evals, tmp_path: Path
) -> None:
    experiment = two_arms(runs, judge, n_cases=2, reference="The lease of Kiel.", files={"memo.txt": b"=1+1 is two"})
    evals("judge", "review", experiment.id, "--sample", "4")
    evals("judge", "review", experiment.id, "--rater", "ann", "--into", str(tmp_path / "ann.csv"))
    text = (tmp_path / "ann.csv").read_text(encoding="utf-8-sig")
    assert not any(word in text for word in ("left-arm", "right-arm", "looked for", "w.c0", experiment.id))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == 8 and all(row["label"] == "" for row in rows)
    assert {row["criterion"] for row in rows} == {LEASE.text, FUEL.text}
    assert {row["task"] for row in rows} == {"Which contracts need consent?"}
    assert {row["reference"] for row in rows} == {"The lease of Kiel."}
    assert all("=1+1 is two" in row["work"] and "[[[" not in row["work"] for row in rows)
    assert sum(GOOD in row["work"] for row in rows) == 4
    with pytest.raises(SpecError, match="is there already"):
        evals("judge", "review", experiment.id, "--rater", "ann", "--into", str(tmp_path / "ann.csv"))


def test_a_label_wins_over_the_judge_and_shows(runs: JudgedRuns, judge: LoopbackJudge, evals: Evals, tmp_path: Path) -> None:
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url)
    experiment = runs.experiment(spec, [LEASE, FUEL, INVENTED], [f"{GOOD} Once."])
    runs.judge(experiment)
    key = str(experiment.run.cell_keys()[0])
    assert evals("cell", "show", key)["score"] == pytest.approx(2 / 3)

    path = tmp_path / "ann.csv"
    evals("judge", "review", experiment.id, "--sample", "1", "--rater", "ann", "--into", str(path))
    filled(path, lambda row: {LEASE.text: "not_met", FUEL.text: "met", INVENTED.text: ""}[row["criterion"]])
    assert evals("judge", "label", str(path), "--rater", "ann") == {"n_labels": 2, "n_new": 2}
    assert evals("judge", "label", str(path), "--rater", "ann") == {"n_labels": 2, "n_new": 0}
    shown = evals("cell", "show", key)
    assert shown["score"] == pytest.approx(1 / 3)
    lease, fuel, invented = shown["criteria"]
    assert (lease["verdict"], lease["by_hand"], fuel["verdict"], fuel["by_hand"]) == (0, True, 1, True)
    assert "ann" in lease["reason"] and "the judge said 1" in lease["reason"]
    assert (invented["verdict"], invented["by_hand"]) == (0, False)
    (row,) = runs.table(experiment)
    assert row.n_by_hand == 2

    other = JudgeSpec(model="openai:another", base_url=judge.url)
    runs.records.scorings.set(experiment.id, experiment.score.model_copy(update={"judge": other}))
    (row,) = runs.table(experiment)
    assert (row.n_by_hand, row.n_not_judged) == (2, 1)  # another judge, that was not asked yet, and the same labels
    runs.records.scorings.set(experiment.id, experiment.score)

    # the same person's last word holds; another person's makes it disputed, and then the judge's stays
    filled(path, lambda row: "met" if row["criterion"] == LEASE.text else "2" if row["criterion"] == INVENTED.text else "")
    evals("judge", "label", str(path), "--rater", "ann")
    assert [one["verdict"] for one in evals("cell", "show", key)["criteria"]] == [1, 1, 2]
    filled(path, lambda row: "no" if row["criterion"] == FUEL.text else "")
    evals("judge", "label", str(path), "--rater", "ben")
    _, fuel, _ = evals("cell", "show", key)["criteria"]
    assert (fuel["verdict"], fuel["by_hand"]) == (0, False)  # what the judge had said


def test_what_two_cells_share_is_labelled_once_and_counts_for_both(
    runs: JudgedRuns, judge: LoopbackJudge, evals: Evals, tmp_path: Path
) -> None:
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url)
    experiment = runs.experiment(spec, [FUEL], ["The same.", "The same.", "Another.", "A third."], trials=4)
    assert evals("judge", "review", experiment.id, "--sample", "4")["n_drawn"] == 4
    evals("judge", "review", experiment.id, "--rater", "ann", "--into", str(tmp_path / "ann.csv"))
    rows = filled(tmp_path / "ann.csv", lambda row: "met" if "The same." in row["work"] else "not_met")
    assert len(rows) == 3
    evals("judge", "label", str(tmp_path / "ann.csv"), "--rater", "ann")
    assert [row.score for row in runs.table(experiment)] == [1, 1, 0, 0]


def test_a_file_with_a_wrong_row_is_not_taken_in(runs: JudgedRuns, judge: LoopbackJudge, evals: Evals, tmp_path: Path) -> None:
    experiment = two_arms(runs, judge, n_cases=1)
    path = tmp_path / "ann.csv"
    evals("judge", "review", experiment.id, "--sample", "2", "--rater", "ann", "--into", str(path))
    labels = iter(["met", "perhaps", "2", "not met"])
    filled(path, lambda _: next(labels))
    with pytest.raises(SpecError) as refused:
        evals("judge", "label", str(path), "--rater", "ann")
    assert "'perhaps'" in str(refused.value) and "'2'" in str(refused.value) and f"{path}:" in str(refused.value)
    assert evals("judge", "review", experiment.id)["n_labelled"] == 0

    semicolons = "label;item\nmet;{}\n".format(evals("judge", "review", experiment.id)["items"][0]["item"])
    path.write_text(semicolons, encoding="utf-8-sig")  # as a spreadsheet of other lands writes it
    assert evals("judge", "label", str(path), "--rater", "ann")["n_new"] == 1
    path.write_text("item,label\n0123456789abcdef,met\n")
    with pytest.raises(SpecError, match="no review asks"):
        evals("judge", "label", str(path), "--rater", "ann")
    path.write_text("item\nx\n")
    with pytest.raises(SpecError, match="no column label"):
        evals("judge", "label", str(path), "--rater", "ann")


def test_in_the_terminal_each_label_is_kept_at_once_and_two_people_share_the_double_ones(
    runs: JudgedRuns, judge: LoopbackJudge, evals: Evals
) -> None:
    experiment = two_arms(runs, judge, n_cases=5)
    evals("judge", "review", experiment.id, "--sample", "10")
    seen = evals.typed("judge", "review", experiment.id, "--rater", "ann", keys="what\nmet\ns\nnot_met\nq\n")
    assert seen.count("\nWork") == 2 and "left-arm" not in seen and "looked for" not in seen
    state = evals("judge", "review", experiment.id)
    assert (state["n_items"], state["n_labelled"], state["n_waiting"]) == (20, 2, 18 + sum(
        one["raters_wanted"] == 2 for one in state["items"] if one["raters"]
    ))  # fmt: skip
    evals.typed("judge", "review", experiment.id, "--rater", "ann", keys="met\n" * 18)
    state = evals("judge", "review", experiment.id)
    assert (state["n_labelled"], state["n_waiting"]) == (20, 4)
    seen = evals.typed("judge", "review", experiment.id, "--rater", "ben", keys="no\n" * 18)
    assert seen.count("Criterion (") == 4
    assert evals("judge", "review", experiment.id)["n_waiting"] == 0
    name = state["items"][0]["item"]
    evals.typed("judge", "review", "--item", name, "--rater", "ann", keys="?\n")  # another word on one that is labelled
    digest = runs.records.reviews.named(name).question_digest
    assert {one.rater: one.verdict for one in runs.records.reviews.labels([digest])[digest]}["ann"] is None


def number(work: str) -> int:
    return int(work.rpartition("(")[2].partition(")")[0])


def test_a_judge_is_calibrated_by_a_random_sample_of_its_verdicts(
    runs: JudgedRuns, judge: LoopbackJudge, evals: Evals, tmp_path: Path
) -> None:
    """The judge says met of odd answers. To people the fuel never ends, and the lease is as the judge says but for every seventh."""
    answers = [f"{GOOD if n % 2 else 'Nothing.'} ({n})" for n in range(40)]
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url)
    arms = (locked_arm("left-arm", config={"model": "openai:gpt-test"}), locked_arm("right-arm", config={"model": "other:m"}))
    experiment = runs.experiment(spec, [LEASE, FUEL], answers, arms=arms)
    runs.judge(experiment)
    assert load_badge(runs.records, experiment) == Badge(
        badge="judge unvalidated", reasons=("nobody has labelled a random sample of its verdicts",)
    )
    path = tmp_path / "ann.csv"
    evals("judge", "review", experiment.id, "--sample", "30", "--rater", "ann", "--into", str(path))

    def truth(row: dict[str, str]) -> bool:
        n = number(row["work"])
        return row["criterion"] == LEASE.text and bool(n % 2) != (n % 7 == 0)

    rows = filled(path, lambda row: "met" if truth(row) else "not_met")
    before = evals("judge", "calibrate", str(path))  # by the file alone
    assert evals("judge", "review", experiment.id)["n_labelled"] == 0
    evals("judge", "label", str(path), "--rater", "ann")
    found = evals("judge", "calibrate", experiment.id)
    assert found == before

    said = [row["criterion"] == LEASE.text and number(row["work"]) % 2 == 1 for row in rows]
    table = np.zeros((2, 2))
    np.add.at(table, ([int(one) for one in said], [int(truth(row)) for row in rows]), 1)
    whole = found["calibration"]["whole"]
    assert (whole["n"], table.sum()) == (60, 60) and table[0, 1] > 0 < table[1, 0]
    expected: Any = cohens_kappa(table)
    assert whole["kappa"] == pytest.approx(expected.kappa)
    assert (whole["tpr"], whole["tnr"]) == (table[1, 1] / table[:, 1].sum(), table[0, 0] / table[:, 0].sum())
    biases = found["calibration"]["biases"]
    assert (biases["judge_family"], set(biases["families"]), biases["position"]) == ("openai", {"openai", "other"}, None)
    assert biases["verbosity"] == pytest.approx(1, abs=0.5)  # the good answer is the longer one
    reasons = found["calibration"]["reasons"]
    assert "openai: 15 labelled cells, 100 are needed" in reasons
    assert load_badge(runs.records, experiment) == Badge(badge="judge unvalidated", reasons=tuple(reasons))

    judged_means, decided = {}, {}
    for arm, cell in ((arm, n) for n in range(40) for arm in ["left-arm", "right-arm"][n % 2 :][:1]):
        judged_means.setdefault(arm, []).append(2 / 3 * (cell % 2))
        decided.setdefault(arm, []).append(2 / 3 * (bool(cell % 2) != (cell % 7 == 0)))
    for mean in found["means"]:
        assert mean["raw"] == pytest.approx(np.mean(judged_means[mean["arm"]]))
        assert mean["ci_low"] < np.mean(decided[mean["arm"]]) < mean["ci_high"] and mean["n_labelled"] == 15
    people = evals.typed("judge", "calibrate", experiment.id, keys="")
    assert "judge unvalidated" in people and "15/20" in people
    board = evals("leaderboard", experiment.id)["judge"]
    assert (board["badge"], board["badge_reasons"]) == ("unvalidated", reasons)
    assert (board["corrected"], board["n_by_hand"]) == (found["means"], 60)
    lines = evals.typed("leaderboard", experiment.id, keys="")
    assert "judge unvalidated: " in lines and f"right-arm {board['corrected'][1]['corrected']:.3f} (" in lines
    (pooled,) = [one for one in evals("judge", "calibrate") if experiment.id in one["experiments"]]
    assert pooled["calibration"]["n_labelled"] >= 60


def test_labels_of_what_was_in_doubt_say_nothing_of_the_judge(
    runs: JudgedRuns, judge: LoopbackJudge, evals: Evals, tmp_path: Path
) -> None:
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url)
    experiment = runs.experiment(spec, [LEASE], [f"{GOOD} (5000)", "No. (5001)"], trials=2)
    runs.judge(experiment)
    path = tmp_path / "ann.csv"
    assert evals("judge", "review", experiment.id, "--doubtful", "--rater", "ann", "--into", str(path))["n_drawn"] == 2
    filled(path, lambda _: "not_met")
    evals("judge", "label", str(path), "--rater", "ann")
    assert [row.score for row in runs.table(experiment)] == [0, 0]
    found = evals("judge", "calibrate", experiment.id)
    assert (found["calibration"]["n_drawn"], found["calibration"]["whole"]["n"]) == (0, 0)
    assert (found["means"][0]["raw"], found["means"][0]["corrected"]) == (0.5, None)


def test_what_is_in_doubt_is_asked_about(runs: JudgedRuns, judge: LoopbackJudge, evals: Evals) -> None:
    from support.locks import criterion

    def torn(request: Read) -> dict[str, Any]:
        said = by_words(request)
        return {**said, "evidence": "", "verdict": "cannot_assess"} if "hmm" in request.work else said

    check = criterion("kiel", check={"contains": "Kiel"})
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url, temperature=0.5)
    steady, unsteady = [f"{GOOD} 1", f"{GOOD} 2", f"{GOOD} 3"], [f"{GOOD} 4", "Kiel, or so.", "Kiel, I think."]
    against, unsure = ["Not a word of Kiel. 1", "Not a word of Kiel. 2", "Not a word of Kiel. 3"], ["hmm 1", "hmm 2", "hmm 3"]
    experiment = runs.experiment(spec, [LEASE, check], [*steady, *unsteady, *against, *unsure], trials=3)
    judge.decide = torn
    try:
        runs.judge(experiment)
    finally:
        judge.decide = by_words
    evals("judge", "review", experiment.id, "--doubtful")
    items = runs.records.reviews.items(experiment.id)
    assert {one.kind for one in items} == {"doubt"}
    assert Counter(one.cell_key.split("/")[1] for one in items) == {"w.c1": 3, "w.c2": 3, "w.c3": 3}
