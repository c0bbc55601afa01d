"""The pure part of a research: what may be proposed, how it is decided, what comes next, and how often nothing is taken for something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.errors import BudgetExceeded, SpecError
from eval_pipeline.research.decide import decide, gain
from eval_pipeline.research.goal import Constraint, DecideRule, Goal, Metric, Range, Space, StopRule
from eval_pipeline.research.journal import Row, State, following, public, replay
from eval_pipeline.research.loop import Ground, Hands, Proposal, advance
from eval_pipeline.research.space import complaint, search
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WORLDS = {f"w{n}.c": f"w{n}" for n in range(16)}
SPAN = {"score": (0.0, 1.0), "passed": (0.0, 1.0)}
SPACE = Space(config={"k": Range(min=1, max=4), "t": Range(min=0.0, max=1.0), "style": ("a", "b")})
GOAL: dict[str, Any] = {
    "name": "g",
    "dataset": "d",
    "app": "a",
    "baseline": {"ref": "main"},
    "space": {"config": {"k": {"min": 1, "max": 3}}},
    "budget": {"cells": 5},
}


def column(values: list[float | None], name: str = "score") -> dict[str, Any]:
    return {name: {case: [value] for case, value in zip(WORLDS, values, strict=True)}}


# ---- the goal file


@pytest.mark.parametrize(
    "change, key, message",
    [
        ({"space": {"config": {"k": {"min": 3, "max": 1}}}}, "k:", "min must lie below max, found 3 and 1"),
        ({"space": {"config": {"k": []}}}, "k:", "at least 1 item"),
        ({"space": {}}, "space:", "nothing may be changed"),
        ({"space": {"repo": {"branch": "main"}}}, "name:", "the search can't write commits"),
        (
            {"metric": {"column": "cost_usd", "constraint": {"column": "score"}}},
            "constraint:",
            "write one of margin, at_most and at_least, found none",
        ),
        (
            {"metric": {"column": "score", "constraint": {"column": "cost_usd", "margin": 0.1}}},
            "constraint:",
            "has none: write at_most",
        ),
        ({"metric": {"column": "beauty"}}, "column:", "found 'beauty'"),
        ({"budget": {}}, "budget:", "write cost_usd, cells or wall_s"),
        ({"stop": {"pateince": 3}}, "pateince:", "did you mean 'patience'?"),
        ({"name": "a" * 25}, "name:", "at most 24 are possible"),
        ({"baseline": {"ref": "WORKTREE"}, "space": {"repo": {"branch": "main"}}}, "name:", "must be a commit"),
    ],
)
def test_a_goal_file_is_refused_at_its_line(tmp_path: Path, change: dict[str, Any], key: str, message: str) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(yaml.safe_dump(GOAL | change, sort_keys=False))
    with pytest.raises(SpecError) as caught:
        parse_model(YamlFile(path, "g.yaml"), Goal)
    assert message in str(caught.value)
    line = path.read_text().splitlines()[int(str(caught.value).split(":")[1]) - 1]
    assert line.strip().startswith(key)


def test_what_may_change_while_it_goes_on_is_no_part_of_its_identity() -> None:
    def digest(**more: Any) -> str:
        return Goal.model_validate_json(json.dumps(GOAL | more)).source_digest

    assert digest(budget={"cells": 9}, stop={"accepted": 1}, proposer={"seed": 5}) == digest()
    assert len({digest(), digest(metric={"column": "passed"}), digest(trials=2), digest(decide={"alpha": 0.01})}) == 4


# ---- the space


@given(kind=st.sampled_from(["local", "random"]), seed=st.integers(0, 2**40))
def test_the_search_stays_inside_never_repeats_and_is_the_same_again(kind: str, seed: int) -> None:
    config: dict[str, Any] = {"model": "m", "k": 2, "t": 0.5, "style": "a"}
    tried = [config]
    for step in range(1, 12):
        found = search(kind, SPACE, config, tried, seed, step)
        assert found is not None and complaint(SPACE, config, found) is None and found not in tried
        assert search(kind, SPACE, config, tried, seed, step) == found
        tried.append(found)


def test_a_space_is_used_up() -> None:
    space = Space(config={"k": Range(min=0.0, max=1.0, step=0.5), "style": ("a", "b")})
    tried: list[dict[str, Any]] = [{"k": 0, "style": "a"}]
    while (found := search("local", space, tried[0], tried, 3, len(tried))) is not None:
        tried.append(found)
    assert len(tried) == 6
    assert {(float(one["k"]), one["style"]) for one in tried} == {(k, s) for k in (0.0, 0.5, 1.0) for s in "ab"}


@pytest.mark.parametrize(
    "config, message",
    [
        ({"k": 5, "t": 0.5, "style": "a"}, "k must be a number from 1 to 4, found 5"),
        ({"k": 1.5, "t": 0.5, "style": "a"}, "k must be a whole number"),
        ({"k": True, "t": 0.5, "style": "a"}, "k must be a number"),
        ({"k": 1, "t": 0.5, "style": "c"}, "style must be one of ['a', 'b'], found 'c'"),
        ({"k": 1, "t": 0.5}, "'style' is missing"),
        ({"k": 1, "t": 0.5, "style": "a", "model": "dear"}, "'model' may not be changed"),
    ],
)
def test_what_lies_outside_is_named(config: dict[str, Any], message: str) -> None:
    assert message in (complaint(SPACE, {"k": 1, "t": 0.5, "style": "a"}, config) or "")


# ---- decisions


def test_lost_cells_count_against_the_candidate_and_for_the_incumbent() -> None:
    low, high = column([0.4] * 16), column([0.9] * 16)
    assert decide(Metric(), low, high, WORLDS, 0.05, SPAN).better
    lost = column([None] * 8 + [0.9] * 8)
    found = decide(Metric(), low, lost, WORLDS, 0.05, SPAN)
    assert (found.better, found.n_missing, found.mean_b) == (False, 8, pytest.approx(0.45))
    assert not decide(
        Metric(), column([None] * 16), high, WORLDS, 0.05, SPAN
    ).better  # an incumbent that was not measured counts 1
    assert gain(Metric(), column([None] * 8 + [0.4] * 8), high, WORLDS, SPAN).effect == pytest.approx(
        0.5
    )  # publishing fills nothing


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=16, max_size=16), st.integers(0, 15))
def test_losing_one_more_cell_never_helps(values: list[float | None], lost: int) -> None:
    base = column([0.5, 0.4] * 8)
    fewer = [None if n == lost else value for n, value in enumerate(values)]
    before, after = (decide(Metric(), base, column(arm), WORLDS, 0.05, SPAN) for arm in (values, fewer))
    assert before.effect is not None and after.effect is not None and after.effect <= before.effect + 1e-12


def test_one_world_can_confirm_nothing() -> None:
    one = dict.fromkeys(WORLDS, "w")
    found = decide(Metric(), column([0.0] * 16), column([1.0] * 16), one, 0.05, SPAN)
    assert (found.better, found.p) == (False, None) and "one_cluster" in found.why


def test_cheaper_counts_only_at_an_equal_score() -> None:
    metric = Metric(column="cost_usd", constraint=Constraint(column="score", margin=0.1))
    noise = [0.001 * (n % 5) for n in range(16)]
    dear, cheap = [0.1 + one for one in noise], [0.05 + 0.001 * (n % 3) for n in range(16)]
    score: list[float | None] = [0.8 + one for one in noise]
    incumbent = column(list(dear), "cost_usd") | column(score)
    equal = column(list(cheap), "cost_usd") | column(
        [value + 0.01 * (n % 3) for n, value in enumerate(score) if value is not None]
    )
    worse = column(list(cheap), "cost_usd") | column([value - 0.3 for value in score if value is not None])
    unpriced = column([None, *cheap[1:]], "cost_usd") | column(score)
    found = decide(metric, incumbent, equal, WORLDS, 0.05, SPAN)
    assert (found.kind, found.better, found.constraint_held) == ("ratio", True, True) and found.effect == pytest.approx(
        0.5, abs=0.01
    )
    refused = decide(metric, incumbent, worse, WORLDS, 0.05, SPAN)
    assert (refused.better, refused.constraint_held) == (False, False) and "score (margin 0.1) is not held" in refused.why
    assert "no known cost_usd" in decide(metric, incumbent, unpriced, WORLDS, 0.05, SPAN).why
    dearer = decide(metric, equal, incumbent, WORLDS, 0.05, SPAN)
    assert (dearer.better, dearer.why) == (False, "not better")


def test_a_bound_on_another_columns_mean() -> None:
    metric = Metric(constraint=Constraint(column="cost_usd", at_most=0.1))
    low, high = column([0.1] * 16), column([0.9] * 16)
    cost = column([0.05] * 16, "cost_usd"), column([0.2] * 16, "cost_usd"), column([None] * 16, "cost_usd")
    verdicts = [decide(metric, low | cost[0], high | one, WORLDS, 0.05, SPAN).better for one in cost]
    assert verdicts == [True, False, False]


# ---- the loop


class Bench:
    """A loop over given values: `dev` and `holdout` by step."""

    def __init__(self, dev: list[float], holdout: list[float], refuse: tuple[int, ...] = ()) -> None:
        self.values, self.refuse = {"dev": dev, "holdout": holdout}, refuse
        self.rows: list[Row] = []
        self.measured: list[tuple[int, str]] = []
        self.broke = False
        self.append("started", 0, {"arm": {"config": {"n": 0}}})
        self.ground = Ground(metric=Metric(), rule=DecideRule(), world=WORLDS, span=SPAN)

    def append(self, kind: str, step: int, data: dict[str, Any]) -> Row:
        self.rows.append(Row(ordinal=len(self.rows), kind=kind, step=step, data=json.loads(json.dumps(data))))
        return self.rows[-1]

    def measure(self, _state: State, step: int, half: str) -> dict[str, Any]:
        if self.broke:
            raise BudgetExceeded("0.1 of 1 are left", hint="raise it")
        self.measured.append((step, half))
        return {"columns": column([self.values[half][step]] * 16)}

    def propose(self, _state: State, step: int) -> Proposal:
        if step in self.refuse:
            return Proposal(why="nonsense")
        return Proposal(arm={"config": {"n": step}}) if step < len(self.values["dev"]) else Proposal()

    def go(self, **rule: Any) -> State:
        state = replay(self.rows)
        hands = Hands(append=self.append, measure=self.measure, propose=self.propose)
        advance(state, self.ground, StopRule(**rule), hands)
        assert replay(self.rows) == state  # the rows are the only state
        return state


def test_dev_chooses_and_the_holdout_decides() -> None:
    bench = Bench(dev=[0.5, 0.7, 0.4, 0.8], holdout=[0.5, 0.4, 0.5, 0.9])
    state = bench.go()
    assert [row.kind for row in bench.rows if row.kind in ("decided", "asked", "answered")] == [
        *("decided", "asked", "answered"),
        "decided",
        *("decided", "asked", "answered"),
    ]
    assert (state.n_accepted, state.incumbent.number, state.n_queries) == (1, 3, 2)
    # what the incumbent did is measured once; the holdout sees nobody that dev has rejected
    assert bench.measured == [(0, "dev"), (1, "dev"), (0, "holdout"), (1, "holdout"), (2, "dev"), (3, "dev"), (3, "holdout")]
    alphas = [row.data["alpha"] for row in bench.rows if row.kind == "asked"]
    assert alphas == [pytest.approx(0.0304, abs=1e-4), pytest.approx(0.0076, abs=1e-4)]
    assert state.stopped == "nothing left to propose: the space is used up"


def test_after_every_row_it_goes_on_where_it_was() -> None:
    whole = Bench(dev=[0.5, 0.7, 0.4, 0.8], holdout=[0.5, 0.4, 0.5, 0.9])
    whole.go()
    for end in range(1, len(whole.rows)):
        half = Bench(dev=[0.5, 0.7, 0.4, 0.8], holdout=[0.5, 0.4, 0.5, 0.9])
        half.rows = whole.rows[:end]
        half.go()
        assert [(row.kind, row.step, row.data) for row in half.rows] == [(row.kind, row.step, row.data) for row in whole.rows]
        done = {(row.step, row.data["half"]) for row in whole.rows[:end] if row.kind == "measured"}
        assert done.isdisjoint(half.measured)


@pytest.mark.parametrize(
    "rule, why",
    [
        ({"accepted": 1}, "accepted: 1 of 1"),
        ({"patience": 2}, "patience: 2 candidates in a row"),
        ({"candidates": 2}, "candidates: 2 were tried"),
    ],
)
def test_it_says_why_it_stops(rule: dict[str, int], why: str) -> None:
    better = [0.5, 0.7, 0.6, 0.6, 0.6]
    assert why in (Bench(dev=better, holdout=better).go(**rule).stopped or "")


def test_the_holdout_is_retired_and_a_proposer_that_fails_ends_it() -> None:
    rising = [0.1 + 0.03 * n for n in range(30)]
    worse = [0.9, *[0.1] * 29]
    state = Bench(dev=rising, holdout=worse).go(patience=None)
    assert state.n_queries == 20 and (state.stopped or "").startswith("holdout retired")
    assert (Bench(dev=[0.5] * 9, holdout=[0.5] * 9, refuse=(2, 3, 4)).go().stopped or "").startswith(
        "proposer: 3 proposals in a row"
    )
    assert (Bench(dev=[0.5] * 6, holdout=[0.5] * 6, refuse=(2, 4)).go().stopped or "").startswith("nothing left")


def test_a_budget_that_is_raised_goes_on_with_the_question_it_had_asked() -> None:
    bench = Bench(dev=[0.5, 0.7], holdout=[0.5, 0.9])
    state, hands = replay(bench.rows), Hands(append=bench.append, measure=bench.measure, propose=bench.propose)

    def measure(state: State, step: int, half: str) -> dict[str, Any]:
        bench.broke = half == "holdout"
        return bench.measure(state, step, half)

    advance(state, bench.ground, StopRule(), Hands(append=bench.append, measure=measure, propose=bench.propose))
    assert state.stopped == "budget: 0.1 of 1 are left"
    assert [row.kind for row in bench.rows][-2:] == ["asked", "stopped"]
    bench.broke = False
    bench.append("resumed", 1, {})
    state = replay(bench.rows)
    advance(state, bench.ground, StopRule(), hands)
    assert (state.n_queries, state.n_accepted) == (1, 1)


def test_a_proposer_is_told_nothing_of_the_holdout() -> None:
    bench = Bench(dev=[0.5, 0.7, 0.4], holdout=[0.123, 0.987, 0.5])
    bench.go()
    told = json.dumps(public(bench.rows))
    assert "0.123" not in told and "0.987" not in told and '"half": "holdout"' not in told
    answered = [row for row in public(bench.rows) if row["kind"] == "answered"]
    assert answered == [{"step": 1, "kind": "answered", "accepted": True}]
    assert "0.7" in told


def test_what_comes_next_is_said_for_an_outside_agent() -> None:
    bench = Bench(dev=[0.5], holdout=[0.5])
    state = replay(bench.rows)
    due = advance(state, bench.ground, StopRule(), Hands(append=bench.append, measure=bench.measure))
    assert (due.do, due.step, following(state, StopRule()).do) == ("propose", 1, "propose")


# ---- no true effect


def null(seeds: int) -> dict[str, Any]:
    script = [sys.executable, str(ROOT / "bench" / "research_null.py"), "--seeds", str(seeds)]
    done = subprocess.run(script, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_where_nothing_has_an_effect_hardly_anything_is_accepted() -> None:
    found = null(100)
    assert found["seeds"] == 100
    assert found["false_accepts"] <= 9  # 5% would be exceeded so far by chance in 3% of all sets of seeds
    assert found["dev_gain_mean"] > 0.01  # what the best of dev would have been taken for


@pytest.mark.long
def test_2000_researches_without_an_effect() -> None:
    found = null(2000)
    assert found["false_accepts"] <= 0.05 * found["seeds"]
