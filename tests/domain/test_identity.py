"""What identifies a run, a cell and a name, and what does not."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock

from eval_pipeline.domain.app import AppManifest, ImageSpec
from eval_pipeline.domain.canonical import canonical_json, digest
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.ids import SLUG_MAX, CellKey, check_slug, sandbox_name
from eval_pipeline.domain.lock import RunLock, ScoreLock

SLUG = st.from_regex(r"[a-z0-9]{1,6}([-_][a-z0-9]{1,4}){0,2}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


CELL = (
    '{"backend":"local","config":{"model":"stand-in","top_k":8},"deliverables":["memo.docx"],"identity_version":1,'
    '"limits":{"cost_usd":2.5,"turns":7,"wall_s":60.0},"manifest":{"agent":["bin/agent"],"build":null,"egress":[],'
    '"image":{"base":"host","requirements":null},"name":"tiny","resources":{"cpu":1.0,"disk_mib":1024,"memory_mib":1024},'
    '"restore":null,"secrets":{"agent":[]}},"prompt":"Answer d.","seed":SEED,"tree":"'
    + "b" * 40
    + '","trial":1,"world":"'
    + "a" * 64
    + '"}'
)


def wide_lock(**more: Any) -> RunLock:
    cases = [locked_case("c"), locked_case("d", deliverables=("memo.docx",), limits=Limits(wall_s=60.0, cost_usd=2.5, turns=7))]
    arms = [
        locked_arm("base", config={"model": "stand-in", "top_k": 3}),
        locked_arm("wide", config={"model": "stand-in", "top_k": 8}),
    ]
    return run_lock("demo", cases, arms, trials=2, seed=11, **more)


def test_golden_digests() -> None:
    """A changed value here is a new identity: every stored experiment would be run again. Raise IDENTITY_VERSION, then pin anew."""
    lock = wide_lock()
    assert lock.digest == "7956edd80338dfcd2feeaf9c04813c90f99a91fd6eb5c9f32577d6c022e97e14"
    assert lock.experiment_id == "demo-" + lock.digest[:12]
    assert lock.source_digest == "227e4b68f0754829ba23971a9bc82b63bd4816c2b54546585a5a4f9065ff178f"
    key = lock.cell_keys()[-1]
    assert str(key) == f"{lock.experiment_id}/w.d/wide/1"
    assert lock.cell_digest(key) == hashlib.sha256(CELL.replace("SEED", str(lock.cell_seed(key))).encode()).hexdigest()
    assert lock.cell_seed(key) == 766032011
    assert score_lock(lock).digest == "fa9271b1cd9aaa79aaf178e68a89d32775a2af621553863e8305e45f31b07328"
    assert sandbox_name("i", str(key), 1) == "e-34cbc4df46f4e6aa83ca639c"


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 12},
        {"trials": 3},
        {"backend": "other"},
        {"worlds": {"w": "0" * 64}},
        {"app_path": "sub"},
        {"identity_version": 2},
        {"name": "other"},
        {"cases": (locked_case("c"),)},
        {"cases": (locked_case("c", prompt="Something else."), locked_case("d"))},
        {"cases": (locked_case("c", deliverables=("x",)), locked_case("d"))},
        {"cases": (locked_case("c", limits=Limits(wall_s=1.0)), locked_case("d"))},
        {"arms": (locked_arm("a", tree="0" * 40), locked_arm("b"))},
        {"arms": (locked_arm("a", config={"x": 1}), locked_arm("b"))},
        {
            "arms": (
                locked_arm("a", manifest=AppManifest(name="tiny", image=ImageSpec(base="host"), agent=("other",))),
                locked_arm("b"),
            )
        },
        {"arms": (locked_arm("b"), locked_arm("a"))},  # the order of the tensor
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_runs_changes_the_run_digest(change: dict[str, Any]) -> None:
    lock = run_lock(cases=[locked_case("c"), locked_case("d")], arms=[locked_arm("a"), locked_arm("b")])
    assert lock.model_copy(update=change).digest != lock.digest


@given(ref=st.text(max_size=20), commit=st.none() | st.text("0123456789abcdef", min_size=40, max_size=40))
def test_where_the_tree_was_found_is_no_identity(ref: str, commit: str | None) -> None:
    lock = run_lock(arms=[locked_arm("a")])
    moved = run_lock(arms=[locked_arm("a", ref=ref, commit=commit)])
    assert moved.digest == lock.digest
    assert moved.cell_digest(moved.cell_keys()[0]) == lock.cell_digest(lock.cell_keys()[0])


def test_a_changed_copy_has_a_digest_of_its_own() -> None:
    lock = run_lock()
    before = lock.digest
    copied = lock.model_copy(update={"seed": lock.seed + 1})
    assert copied.digest == RunLock.model_validate(copied.model_dump(), strict=False).digest != before
    assert lock.model_copy().digest == before


def test_the_source_digest_follows_the_refs_as_written_and_not_where_they_point() -> None:
    lock, moved = run_lock(), run_lock(arms=[locked_arm(tree="0" * 40, commit="1" * 40)])
    assert moved.digest != lock.digest
    assert moved.source_digest == lock.source_digest
    assert run_lock(arms=[locked_arm(ref="v1")]).source_digest != lock.source_digest


def test_the_cell_digest_knows_no_names_of_experiment_arm_or_app() -> None:
    first = run_lock("one", arms=[locked_arm("a", config={"k": 1}), locked_arm("b", config={"k": 2})])
    second = run_lock("two", arms=[locked_arm("other", config={"k": 2})], app="renamed")
    assert first.cell_digest(first.cell_keys()[1]) == second.cell_digest(second.cell_keys()[0])
    assert first.cell_digest(first.cell_keys()[0]) != second.cell_digest(second.cell_keys()[0])


def test_the_cell_digest_knows_the_seed_that_the_agent_gets() -> None:
    """It comes from the case's name, so a renamed case is another run."""
    lock, renamed = run_lock(cases=[locked_case("c", prompt="Do.")]), run_lock(cases=[locked_case("d", prompt="Do.")])
    (key,), (other,) = lock.cell_keys(), renamed.cell_keys()
    assert lock.cell_seed(key) != renamed.cell_seed(other)
    assert lock.cell_digest(key) != renamed.cell_digest(other)


def test_every_cell_of_a_tensor_differs_from_the_others_in_what_it_runs() -> None:
    lock = wide_lock()
    assert len({lock.cell_digest(key) for key in lock.cell_keys()}) == 8


@given(seed=st.integers(-(2**40), 2**40), trial=st.integers(0, 500))
def test_arms_of_one_trial_share_a_seed(seed: int, trial: int) -> None:
    lock = run_lock("x", arms=[locked_arm("a"), locked_arm("b", config={"k": 1})], seed=seed)
    same = run_lock("another-name", arms=[locked_arm("z")], seed=seed)
    seeds = {lock.cell_seed(CellKey("x", "w", "c", arm, trial)) for arm in ("a", "b")}
    assert seeds == {same.cell_seed(CellKey("y", "w", "c", "z", trial))}
    assert 0 <= seeds.pop() < 2**31


def test_seeds_differ_between_trials_cases_and_experiment_seeds() -> None:
    lock = run_lock(cases=[locked_case("c"), locked_case("d")], trials=50)
    assert len({lock.cell_seed(key) for key in lock.cell_keys()}) == 100
    assert lock.cell_seed(lock.cell_keys()[0]) != lock.model_copy(update={"seed": 1}).cell_seed(lock.cell_keys()[0])


def test_cells_come_in_tensor_order() -> None:
    keys = [str(key).partition("/")[2] for key in wide_lock().cell_keys()]
    assert keys == [f"w.{case}/{arm}/{trial}" for case in "cd" for arm in ("base", "wide") for trial in (0, 1)]


@pytest.mark.parametrize("change", ["policy", "judge", "prices", "rubric", "pass_at", "scoring_version"])
def test_how_results_are_judged_is_the_score_locks_own(change: str) -> None:
    run = run_lock()
    lock = score_lock(run)
    other = {
        "policy": score_lock(run, policy="raw"),
        "judge": lock.model_copy(update={"judge": JudgeSpec(model="m")}),
        "prices": score_lock(run, prices=[{"model": "m"}]),
        "rubric": score_lock(run, [criterion("no")]),
        "pass_at": score_lock(run, pass_at=0.5),
        "scoring_version": lock.model_copy(update={"scoring_version": 2}),
    }[change]
    assert other.digest != lock.digest


@pytest.mark.parametrize("lock", [wide_lock(), score_lock(wide_lock())], ids=["run", "score"])
def test_a_lock_survives_its_storage(lock: RunLock | ScoreLock) -> None:
    stored = json.dumps(lock.model_dump(mode="json"))
    assert type(lock).model_validate(json.loads(stored), strict=False).digest == lock.digest


@given(JSON)
def test_canonical_json_is_one_spelling_of_a_value(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    assert digest(value) == digest(json.loads(text))


@given(st.dictionaries(st.text(), st.integers(), max_size=6))
def test_the_order_of_keys_is_no_identity(data: dict[str, int]) -> None:
    assert digest(dict(reversed(list(data.items())))) == digest(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_json_lacks_has_no_digest(value: float) -> None:
    with pytest.raises(ValueError):
        digest({"x": value})


@given(SLUG, SLUG, SLUG, SLUG, st.integers(0, 10**9))
def test_cell_keys_are_read_back(experiment: str, world: str, case: str, arm: str, trial: int) -> None:
    key = CellKey(experiment, world, case, arm, trial)
    assert CellKey.parse(str(key)) == key


NO_KEYS = "x|x/w.c/a|x/w.c/a/|x/w.c/a/0/1|x/wc/a/0|x/w.c/a/-1|x/w.c/a/1.0|x/W.c/a/0|x/w.c.d/a/0|x/w.c/a b/0|/w.c/a/0|x/w.c/a/00|x/w.c/a/٣|../w.c/a/0"


@pytest.mark.parametrize("text", ["", "x/w.c/a/0\n", *NO_KEYS.split("|")])
def test_what_is_no_cell_key(text: str) -> None:
    with pytest.raises(ValueError):
        CellKey.parse(text)


@given(SLUG)
def test_slugs(name: str) -> None:
    assert check_slug(name) == name


PLAIN = ["", "A", "a b", "a.b", "a/b", "-a", "a-", "a--b", "a_-b", "a\n", "\na", "a\0", "..", "a" * (SLUG_MAX + 1)]
UNICODE = ["é", "e\u0301", "ａ", "а", "ß", "ı", "１", "٣", "a\u200b", "a\u00ad", "𝐚", "a\u2010b", "\ud800"]


@pytest.mark.parametrize("name", [*PLAIN, *UNICODE])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        check_slug(name)


@given(st.tuples(st.uuids(), SLUG, st.integers(1, 9)), st.tuples(st.uuids(), SLUG, st.integers(1, 9)))
def test_sandbox_names(one: tuple[Any, str, int], other: tuple[Any, str, int]) -> None:
    names = [sandbox_name(str(installation), cell, attempt) for installation, cell, attempt in (one, other)]
    assert all(len(name) == 26 and name.startswith("e-") for name in names)
    assert (names[0] == names[1]) == (one == other)
