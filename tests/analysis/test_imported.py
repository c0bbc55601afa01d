"""Results of two other systems as tables. The logs were written by Inspect 0.3.285 (a mock model that answers six sums, some of them
wrong), the job by Harbor 0.26.0's own models. What they are checked against is what those systems say of them themselves."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import zipfile as plain_zip
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from backports.zstd import zipfile
from support.tabled import Did, tabled

from eval_pipeline.analysis.comparable import imported_side, side
from eval_pipeline.analysis.compare import compare
from eval_pipeline.analysis.frame import COLUMNS, encoded, flat_row, scored_frame
from eval_pipeline.analysis.imported import inspect_log
from eval_pipeline.analysis.imported.assemble import Options, assemble
from eval_pipeline.analysis.imported.board import imported_board
from eval_pipeline.analysis.imported.harbor_job import read_harbor
from eval_pipeline.analysis.imported.inspect_log import read_inspect
from eval_pipeline.analysis.imported.reading import ReadRow, number
from eval_pipeline.analysis.imported.shelf import Shelf
from eval_pipeline.analysis.imported.table import ImportedRow, ImportedTable
from eval_pipeline.errors import NotFound, SpecError

DATA = Path(__file__).parent / "data" / "imported"


def of_logs(*names: str, **options: Any) -> ImportedTable:
    read = [(Path(name).stem, read_inspect(DATA / name)) for name in names]
    return assemble("sums", "inspect", read, Options(**options))


def of_job(folder: Path = DATA / "job", **options: Any) -> ImportedTable:
    return assemble("acme", "harbor", [(None, one) for one in read_harbor(folder)], Options(**options))


def header(name: str) -> dict[str, Any]:
    with zipfile.ZipFile(DATA / name) as log:
        return json.loads(log.read("header.json"))


def rows(table: ImportedTable, arm: str) -> dict[tuple[str, int], ImportedRow]:
    return {(row.case, row.trial): row for row in table.arm(arm).rows}


def test_the_mean_is_what_inspect_says() -> None:
    board = imported_board(of_logs("right.eval", "wrong.eval"), resamples=200)
    for arm, name in zip(board.arms, ("right.eval", "wrong.eval"), strict=True):
        metrics = header(name)["results"]["scores"][0]["metrics"]
        assert arm.score == pytest.approx(metrics["accuracy"]["value"])
        assert arm.se == pytest.approx(metrics["stderr"]["value"])  # both are sd / sqrt(n) over cases


def test_usage_and_cost_are_what_inspect_says() -> None:
    table = of_logs("right.eval")
    told = header("right.eval")["stats"]["model_usage"]["mockllm/model"]
    usages = [usage for cell in table.cells for usage in cell.usages]
    assert sum(usage.input_uncached for usage in usages) == told["input_tokens"]
    assert sum(usage.cache_read for usage in usages) == told["input_tokens_cache_read"]
    assert sum(usage.output for usage in usages) == told["output_tokens"]
    assert imported_board(table, resamples=200).spent_usd == pytest.approx(told["total_cost"])


def test_a_json_log_is_the_same_log() -> None:
    assert of_logs("right.json").arm("right").rows == of_logs("right.eval").arm("right").rows


def test_errors_and_limits_keep_what_was_scored() -> None:
    found = rows(of_logs("wrong.eval"), "wrong")
    lost, again = found["sum-5", 0], found["sum-5", 1]
    assert (lost.outcome, lost.score, lost.passed) == ("infra_failure", None, None)
    assert lost.error == "RuntimeError('the solver broke')"
    assert (again.outcome, again.score) == ("ok", 1.0)
    limited = found["sum-3", 0]
    assert (limited.outcome, limited.score, limited.error) == ("budget_exceeded", 1.0, "limit: message 3")
    counted = rows(of_logs("wrong.eval", errors_count=True), "wrong")["sum-5", 0]
    assert (counted.outcome, counted.score) == ("agent_error", 0.0)


def test_a_log_of_a_killed_run_is_read_as_far_as_it_goes() -> None:
    table = of_logs("killed.eval")
    with zipfile.ZipFile(DATA / "killed.eval") as log:
        planned = json.loads(log.read("_journal/start.json"))["eval"]["dataset"]["sample_ids"]
        written = sum(name.startswith("samples/") for name in log.namelist())
    found = rows(table, "killed")
    assert {case for case, _ in found} == set(planned) and 0 < written < len(planned)
    assert sum(row.score is not None for row in found.values()) == written
    assert table.notes == [
        "killed.eval: its status is started; what it holds was read",
        "killed.eval: 2 planned samples are not in it",
    ]
    board = imported_board(table, resamples=200)
    assert board.status == "provisional" and board.missing == {"cancelled": len(planned) - written}


def test_several_scores_want_a_choice() -> None:
    with pytest.raises(SpecError, match="3 scores") as refused:
        of_logs("graded.eval")
    assert "graded.right, graded.short, match" in str(refused.value.hint)
    graded = of_logs("graded.eval", score="graded.right")
    assert rows(graded, "graded")["sum-1", 0].score == 0.0
    assert rows(graded, "graded")["sum-3", 0].score is None  # Inspect's own sign for: not scored
    assert graded.notes == ["graded: 2 cells ended without a score that is a number: they are missing, not 0"]
    with pytest.raises(SpecError, match="no score is called 'graded'"):
        of_logs("graded.eval", score="graded")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0), ("yes", 1.0), ("False", 0.0), ("0.25", 0.25), (True, 1.0), (3, 3.0)]
    + [(value, None) for value in ("maybe", "nan", "inf", float("nan"), float("-inf"), 10**400, "9" * 400, None)],
)
def test_values_are_numbers_or_missing(value: Any, expected: float | None) -> None:
    assert number(value) == expected


def test_scores_outside_of_the_range_are_refused_until_it_is_said() -> None:
    job = of_job()
    assert (job.low, job.high, job.pass_at) == (0.0, 1.0, None)  # one reward is 0.5: nobody said whether that passes
    assert of_job(pass_at=0.5).pass_at == 0.5
    with pytest.raises(SpecError, match=r"outside of 0 to 0\.4") as refused:
        of_job(span=(0.0, 0.4))
    assert "--range" in str(refused.value.hint)


def test_the_rewards_are_what_harbor_says() -> None:
    told = json.loads((DATA / "job" / "result.json").read_text())["stats"]
    board = imported_board(of_job(), resamples=200)
    for arm, key in zip(board.arms, ("alpha__small-1__acme", "beta__large-2__acme"), strict=True):
        stats = told["evals"][key]["reward_stats"]["reward"]
        tasks: dict[str, list[float]] = {}
        for reward, trials in stats.items():
            for trial in trials:
                tasks.setdefault(trial.partition("__")[0], []).append(float(reward))
        assert arm.score == pytest.approx(fmean(map(fmean, tasks.values())))
        assert arm.n_valid == told["evals"][key]["n_trials"]
    assert board.spent_usd == pytest.approx(told["cost_usd"])
    usages = [usage for cell in of_job().cells for usage in cell.usages]
    assert sum(usage.input_uncached + usage.cache_read for usage in usages) == told["n_input_tokens"]
    assert {usage.model for usage in usages} == {"small-1", "large-2", "mini"}


def test_how_trials_ended() -> None:
    table = of_job()
    alpha, beta = rows(table, "alpha-openai-small-1"), rows(table, "beta-openai-large-2")
    late = alpha["acme/serve", 0]
    assert (late.outcome, late.score, late.censored, late.latency_s) == ("agent_timeout", 0.0, True, 90.0)
    lost = alpha["acme/train", 1]
    assert (lost.outcome, lost.score) == ("infra_failure", None)
    assert (beta["acme/serve", 0].outcome, beta["acme/serve", 0].score) == ("agent_error", 1.0)
    assert (beta["acme/serve", 1].usage, beta["acme/serve", 1].cost_usd) == (None, None)
    assert "job: 1 of 12 planned trials have no result" in table.notes
    board = imported_board(table, resamples=200)
    assert "planned cells that are not in the files, which do not say of which cases: 1" in board.reasons
    assert (table.n_absent, {arm.n_absent for arm in table.arms}) == (1, {None})  # nobody knows whose it was


def test_what_is_absent_of_a_job_of_one_arm_is_that_arms(tmp_path: Path) -> None:
    job = copied_job(tmp_path, lambda trial: trial["agent_info"].update(name="alpha", model_info=None))
    (job / "parse__0000001" / "result.json").unlink()
    table = of_job(job)
    assert (table.n_absent, [arm.n_absent for arm in table.arms]) == (0, [2])
    assert "planned cells that are not in the files, which do not say of which cases: 2" in imported_board(table, 200).reasons


def test_an_error_that_counts_passes_no_test_that_nobody_named() -> None:
    unsaid, said = of_job(errors_count=True), of_job(errors_count=True, pass_at=0.5)
    lost, failed = (rows(table, "alpha-openai-small-1")["acme/train", 1] for table in (unsaid, said))
    assert (lost.outcome, lost.score, lost.passed) == ("agent_error", 0.0, None)
    assert failed.passed is False
    assert {row.passed for arm in unsaid.arms for row in arm.rows} == {None}


def copied_job(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The job with each trial's result changed."""
    job = tmp_path / "job"
    shutil.copytree(DATA / "job", job)
    for path in job.glob("*/result.json"):
        trial = json.loads(path.read_text())
        change(trial)
        path.write_text(json.dumps(trial))
    return job


def copied_log(tmp_path: Path, change: Callable[[int, dict[str, Any]], Any]) -> Path:
    """right.json with each sample changed."""
    log = json.loads((DATA / "right.json").read_text())
    for at, sample in enumerate(log["samples"]):
        change(at, sample)
    path = tmp_path / "right.json"
    path.write_text(json.dumps(log))
    return path


TOKENS = ["input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "input_tokens", "output_tokens", "reasoning_tokens"]


def tokens_of(table: ImportedTable) -> list[list[int | None]]:
    return [[flat_row(cell).get(name) for name in TOKENS] for cell in table.cells]


def test_tokens_that_nobody_told_are_null(tmp_path: Path) -> None:
    def log(**told: int) -> ImportedTable:
        path = copied_log(tmp_path, lambda _, sample: sample.update(model_usage={"m": told}))
        return assemble("x", "inspect", [("a", read_inspect(path))], Options())

    told = {"input_tokens": 100, "output_tokens": 20}
    assert tokens_of(log(**told))[0] == [100, None, None, None, None, 20, None]
    assert tokens_of(log(**told, total_tokens=120))[0] == [100, None, None, None, 100, 20, None]
    cached = log(**told, input_tokens_cache_read=10, input_tokens_cache_write=3, reasoning_tokens=0)
    assert tokens_of(cached)[0] == [100, 10, 3, None, 113, 20, 0]
    assert tokens_of(log(output_tokens=20))[0] == [None] * 7
    shares = [imported_board(table, 200).arms[0].money.cache_share for table in (log(**told), cached)]
    assert shares == [None, pytest.approx(10 / 113)]
    assert tokens_of(of_job())[0] == [601, 400, None, None, 1001, 50, None]  # Harbor knows no other class
    half = copied_job(tmp_path, lambda trial: (trial["agent_result"] or {}).update(n_cache_tokens=None, model_usage=None))
    assert tokens_of(of_job(half))[0] == [None] * 7
    assert {row.usage is None for arm in of_job(half).arms for row in arm.rows} == {True}


def test_every_cell_that_ran_and_told_no_cost_is_counted(tmp_path: Path) -> None:
    table = of_job(copied_job(tmp_path, lambda trial: trial.update(agent_result=None)))
    assert any(not cell.valid for cell in table.cells)
    board = imported_board(table, resamples=200)
    assert board.imported is not None and board.imported.n_unknown_cost == len(table.cells) == 11

    def withdrawn(at: int, sample: dict[str, Any]) -> None:
        sample.update({"invalidation": {"author": "x"}, "model_usage": {}} if at < 2 else {})

    path = copied_log(tmp_path, withdrawn)
    log = json.loads(path.read_text())
    log["samples"].pop()  # planned and not there: it cost nothing
    path.write_text(json.dumps(log))
    board = imported_board(assemble("x", "inspect", [("a", read_inspect(path))], Options()), resamples=200)
    assert board.missing == {"cancelled": 3}
    assert board.imported is not None and board.imported.n_unknown_cost == 2


def test_a_strangers_names_are_no_formulas() -> None:
    table = of_logs("right.eval")
    first, *others = table.arms[0].rows
    named = [first.model_copy(update={"case": "=HYPERLINK(1)", "error": "@SUM(1)"}), *others]
    arm = table.arms[0].model_copy(update={"rows": named})
    frame = scored_frame(table.model_copy(update={"arms": [arm]}).cells)
    back = next(csv.DictReader(io.StringIO(encoded(frame, "csv").decode())))
    assert (back["case"], back["error"], back["score"]) == ("'=HYPERLINK(1)", "'@SUM(1)", str(first.score))
    assert json.loads(encoded(frame, "json"))[0]["case"] == "=HYPERLINK(1)"


def test_the_frame_has_our_columns_and_only_what_is_known() -> None:
    table = of_logs("right.eval", "wrong.eval")
    frame = scored_frame(table.cells)
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == COLUMNS
    ours = ["world", "commit", "snapshot", "run_lock", "score_lock", "judge_version", "cell_digest", "n_criteria", "sandbox_s"]
    assert frame[[*ours, "state", "attempts", "model_calls"]].isna().to_numpy().all()
    assert set(frame["usage_source"].dropna()) == {"reported"}
    assert (len(frame), int(frame["score"].notna().to_numpy().sum())) == (24, 23)


def test_two_arms_are_compared() -> None:
    table = of_logs("right.eval", "wrong.eval")
    found = compare(imported_side(table, "right"), imported_side(table, "wrong"))
    told = [header(name)["results"]["scores"][0]["metrics"]["accuracy"]["value"] for name in ("right.eval", "wrong.eval")]
    assert found.difference.diff == pytest.approx(told[1] - told[0])
    assert (found.n_cases, found.n_worlds, found.criteria) == (6, 6, [])
    assert all(move.cell_a is None for move in found.cases)
    assert any("imported" in note for note in found.notes)
    other = ImportedTable.model_validate_json(table.model_copy(update={"name": "later"}).stored)
    across = compare(imported_side(table, "right"), imported_side(other, "right"))
    assert any("one and the same result" in note for note in across.notes)


def test_what_is_not_known_is_not_different(tmp_path: Path) -> None:
    whole, cut = of_logs("right.eval"), of_logs("killed.eval").model_copy(update={"name": "cut"})
    cases = compare(imported_side(whole, "right"), imported_side(cut, "killed")).cases
    assert [move.diff is not None for move in cases].count(True) == 6 - 2
    names = {"sum-0": "acme/parse", "sum-1": "acme/serve", "sum-2": "acme/train"}
    path = copied_log(tmp_path, lambda _, sample: sample.update(id=names.get(sample["id"], sample["id"])))
    renamed = assemble("renamed", "inspect", [("mock", read_inspect(path))], Options())
    found = compare(imported_side(of_job(), "alpha-openai-small-1"), imported_side(renamed, "mock"))
    assert found.n_cases == 3  # a checksum of one system says nothing of the other's digest
    other = copied_log(tmp_path, lambda at, sample: sample.update(input="What is 9 + 9?") if at == 0 else None)
    log = json.loads(other.read_text())
    log["samples"] = log["samples"][:1]
    other.write_text(json.dumps(log))
    asked = assemble("asked", "inspect", [("mock", read_inspect(other))], Options())
    with pytest.raises(SpecError, match="ask different things in 1 case"):
        compare(imported_side(whole, "right"), imported_side(asked, "mock"))


def test_an_arm_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound, match="sums has no arm 'left'") as refused:
        imported_side(of_logs("right.eval", "wrong.eval"), "left")
    assert refused.value.hint == "its arms: right, wrong"


def test_an_import_against_an_experiment_on_cases_of_the_same_names(tmp_path: Path) -> None:
    log = json.loads((DATA / "right.json").read_text())
    for sample in log["samples"]:
        sample["id"] = sample["id"].replace("sum-", "w.c")
    log["eval"]["dataset"]["sample_ids"] = []
    (tmp_path / "log.json").write_text(json.dumps(log))
    theirs = assemble("theirs", "inspect", [("mock", read_inspect(tmp_path / "log.json"))], Options())
    did = {f"c{n}/x/0": Did(a=1.0, b=float(n > 1), cost_usd=0.01, latency_s=1.0) for n in range(6)}
    experiment, table = tabled(did)
    ours = side(experiment, table, "x")
    found = compare(ours, imported_side(theirs, "mock"))
    assert found.n_cases == 6 and found.criteria == []
    expected = fmean(float(n != 1) - (1.0 if n > 1 else 0.25) for n in range(6))  # Inspect's accuracy is 5/6: one sum is wrong
    assert found.difference.diff == pytest.approx(expected)
    assert found.latency.ratio is not None and found.cost.ratio == pytest.approx(0.0035 / 0.01)
    assert {move.cell_b for move in found.cases} == {None} and all(move.cell_a for move in found.cases)
    ranged = assemble("ranged", "inspect", [("mock", read_inspect(tmp_path / "log.json"))], Options(span=(0.0, 10.0)))
    with pytest.raises(SpecError, match="different ranges: from 0 to 1 and from 0 to 10"):
        compare(ours, imported_side(ranged, "mock"))


def test_what_was_asked_differently_is_no_pair(tmp_path: Path) -> None:
    log = json.loads((DATA / "right.json").read_text())
    log["samples"][0]["input"] = "What is 9 + 9?"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(log))
    with pytest.raises(SpecError, match="asked different things in case 'sum-0'"):
        assemble("x", "inspect", [("a", read_inspect(DATA / "right.eval")), ("b", read_inspect(changed))], Options())


def changed(tmp_path: Path, name: str, **fields: Any) -> Path:
    """right.json with other fields of its `eval`."""
    log = json.loads((DATA / "right.json").read_text())
    log["eval"] |= fields
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(log))
    return path


def test_names_tell_arms_and_cases_apart(tmp_path: Path) -> None:
    def of(*paths: Path) -> ImportedTable:
        return assemble("x", "inspect", [(None, read_inspect(path)) for path in paths], Options())

    right, later = DATA / "right.eval", changed(tmp_path, "later", task_version="3-b")
    other = changed(tmp_path, "other", model="openai/gpt-4.1", solver="react")
    assert [arm.name for arm in of(right, later).arms] == ["mockllm-model-v2", "mockllm-model-v3-b"]
    assert [arm.name for arm in of(right, other).arms] == ["mockllm-model", "openai-gpt-4-1-react"]
    tasks = of(right, changed(tmp_path, "task", task="products"))
    assert [arm.name for arm in tasks.arms] == ["mockllm-model"]
    assert {row.case.partition(":")[0] for row in tasks.arms[0].rows} == {"sums", "products"}
    with pytest.raises(SpecError, match="mockllm/model and mockllm_model would both be mockllm-model"):
        of(right, changed(tmp_path, "alike", model="mockllm_model"))


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="more than once") as refused:
        assemble("x", "inspect", [(None, read_inspect(DATA / name)) for name in ("right.eval", "wrong.eval")], Options())
    assert "--arm NAME=FILE" in str(refused.value.hint)


def test_the_shelf_keeps_names_apart(tmp_path: Path) -> None:
    shelf, table, other = Shelf(tmp_path), of_logs("right.eval"), of_logs("wrong.eval")
    assert shelf.put(table) == "new" and shelf.put(of_logs("right.eval")) == "unchanged"
    assert shelf.named("sums") == table
    with pytest.raises(SpecError, match="another import"):
        shelf.put(other)
    assert shelf.put(other, replace=True) == "replaced" and shelf.named("sums").digest == other.digest
    shelf.remove("sums")
    with pytest.raises(NotFound):
        shelf.named("sums")
    assert shelf.get("../sums") is None


def test_a_damaged_import_is_in_nobodys_way(tmp_path: Path) -> None:
    shelf, table = Shelf(tmp_path), of_logs("right.eval")
    shelf.put(table)
    broken = tmp_path / "imports" / "sums.json"
    broken.write_bytes(table.stored[:-100])
    with pytest.raises(NotFound) as missing:
        shelf.named("other")
    assert "sums" in str(missing.value.hint)
    assert shelf.put(table.model_copy(update={"name": "other"})) == "new" and shelf.names() == ["other", "sums"]
    for refused in (lambda: shelf.put(table), lambda: shelf.named("sums")):
        with pytest.raises(SpecError, match="can't be read") as told:
            refused()
        assert told.value.hint == "evals import remove sums, or import it again with --replace"
    assert shelf.put(table, replace=True) == "replaced" and shelf.named("sums") == table
    assert shelf.put(table, replace=True) == "unchanged"
    broken.write_bytes(b"{")
    shelf.remove("sums")
    assert shelf.names() == ["other"]


def test_a_table_that_was_kept_before_is_read(tmp_path: Path) -> None:
    table = of_job().model_dump(mode="json")
    del table["n_absent"]
    for at, arm in enumerate(table["arms"]):
        arm["n_absent"] = 1 - at
        for row in arm["rows"]:
            del row["untold"]
    kept = ImportedTable.model_validate_json(json.dumps(table))
    assert "planned cells that are not in the files, which do not say of which cases: 1" in imported_board(kept, 200).reasons


@pytest.mark.parametrize("name", ["right.eval", "right.json"])
def test_a_log_that_is_written_to_while_it_is_read_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    shutil.copy(DATA / name, path)
    assert read_inspect(path).source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    read_row = inspect_log._row  # pyright: ignore[reportPrivateUsage]

    def while_somebody_writes(*sample: Any) -> ReadRow:
        with path.open("ab") as file:
            file.write(b" ")
        return read_row(*sample)

    monkeypatch.setattr(inspect_log, "_row", while_somebody_writes)
    with pytest.raises(SpecError, match="was written to while it was read"):
        read_inspect(path)


def write_zip(path: Path, **entries: bytes) -> Path:
    with plain_zip.ZipFile(path, "w", plain_zip.ZIP_DEFLATED) as log:
        for name, data in entries.items():
            log.writestr(name.replace("__", "/") + ".json", data)
    return path


START = b'{"eval": {"task": "t", "model": "m", "dataset": {}, "config": {}}}'


def bomb(path: Path) -> Path:
    """Its own word for its size: 300 MiB."""
    data = bytearray(write_zip(path, samples__a=b" ", header=START).read_bytes())
    size = data.index(b"PK\x01\x02") + 24
    data[size : size + 4] = (300 * 1024 * 1024).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def cut(path: Path) -> Path:
    path.write_bytes((DATA / "right.eval").read_bytes()[:-200])
    return path


def flipped(path: Path) -> Path:
    data = bytearray((DATA / "right.eval").read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (bomb, "samples/a.json is larger than 256 MiB"),
        (cut, "can't be unpacked"),
        (flipped, "can't be"),
        (lambda path: write_zip(path, other=b"{}"), "is no Inspect log"),
        (lambda path: write_zip(path, header=START), "holds no samples"),
        (lambda path: write_zip(path, header=START, samples__a=b"[" * 100_000), "recursion limit"),
        (lambda path: write_zip(path, header=START, samples__a=b'{"id": 1, "epoch": 0}'), "epoch"),
        (lambda path: write_zip(path, header=START, samples__a=b'{"id": " ", "epoch": 1}'), "its id is empty"),
        (lambda path: write_zip(path, header=START, samples__a=b'{"id": 1, "epoch": 1, "total_time": -1}'), "total_time"),
        (
            lambda path: write_zip(
                path,
                header=START,
                samples__a=b'{"id": 1, "epoch": 1, "model_usage": {"m": {"input_tokens": 1, "output_tokens": -5}}}',
            ),
            "a count of tokens is below 0",
        ),
    ],
)
def test_what_is_no_good_log_is_refused(tmp_path: Path, write: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_inspect(write(tmp_path / "log.eval"))


def test_a_job_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(DATA / "job", job)
    (job / "linked").symlink_to(DATA / "job" / "parse__0000001")
    assert of_job(job).arms[0].rows == of_job().arms[0].rows
    (job / "parse__0000001" / "result.json").write_text("{")
    with pytest.raises(SpecError, match=r"parse__0000001/result\.json: can't be read"):
        of_job(job)
