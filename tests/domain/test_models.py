"""What the models refuse, and the arithmetic of usage and reservations."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.locks import criterion

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.budget import reservation_usd
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.experiment import ExperimentSpec
from eval_pipeline.domain.outcome import Stop, decide, read_result
from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.domain.usage import Usage, total_by_model, usage_from_event
from eval_pipeline.domain.world import SnapshotEntry, SnapshotManifest, colliding_names

COUNT = st.integers(0, 10**6)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    output = draw(COUNT)
    names = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "calls")
    counts = {name: draw(COUNT) for name in names}
    return Usage(model=draw(st.sampled_from("abc")), output=output, reasoning=draw(st.integers(0, output)), **counts)


@given(st.lists(usages(), max_size=12))
def test_totals_keep_every_token_of_every_model(parts: list[Usage]) -> None:
    totals = total_by_model(parts)
    assert [total.model for total in totals] == list(dict.fromkeys(part.model for part in parts))
    for total in totals:
        mine = [part.model_dump() for part in parts if part.model == total.model]
        assert all(value == sum(part[name] for part in mine) for name, value in total.model_dump().items() if name != "model")


def test_usages_of_two_models_are_not_added() -> None:
    with pytest.raises(ValueError, match="can't be added"):
        Usage(model="a").plus(Usage(model="b"))


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"model": 5},
        {"model": "m", "output": -1},
        {"model": "m", "output": 1.5},
        {"model": "m", "output": "7"},
        {"model": "m", "output": True},
        {"model": "m", "output": None},
        {"model": "m", "output": 1, "reasoning": 2},
        {"model": "m", "output": 10**13},
        {"model": "m" * 1000},
        {"model": "a\0b"},
        {"model": "\ud800"},
    ],
    ids=repr,
)
def test_what_is_no_usage(event: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        usage_from_event(event)


def test_a_usage_event_may_say_more() -> None:
    event = {"type": "usage", "model": "m", "output": 5, "input_uncached": 7, "at": "2026-01-01"}
    assert usage_from_event(event) == Usage(model="m", output=5, input_uncached=7, calls=1)


@pytest.mark.parametrize(
    "fields, complaint",
    [
        ({"judge": True, "check": {"contains": "x"}}, "exactly one of"),
        ({"check": None}, "exactly one of"),
        ({"cap": 3}, "not per_occurrence"),
        ({"points": 0}, "worth 0 points"),
        ({"cap": 0, "per_occurrence": True}, "greater than or equal to 1"),
        ({"points": float("nan")}, "finite"),
        ({"points": float("inf")}, "finite"),
    ],
)
def test_criteria_that_mean_nothing(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        criterion("x", **fields)


@pytest.mark.parametrize(
    "criteria, complaint",
    [
        ([], "no criterion has positive points"),
        ([criterion("a", -1)], "no criterion has positive points"),
        ([criterion("a"), criterion("b"), criterion("a", -1)], "appear twice: a"),
    ],
)
def test_rubrics_that_cannot_be_scored(criteria: list[Criterion], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Rubric(criteria=tuple(criteria))


def test_caps() -> None:
    assert criterion("a").effective_cap == 1
    assert criterion("a", per_occurrence=True).effective_cap == 5
    assert criterion("a", per_occurrence=True, cap=2).effective_cap == 2


def experiment(**more: Any) -> ExperimentSpec:
    arms = [{"name": "a", "ref": "main"}, {"name": "b", "ref": "main"}]
    return ExperimentSpec.model_validate({"name": "x", "dataset": "d", "app": "t", "arms": arms} | more, strict=False)


@pytest.mark.parametrize(
    "fields, complaint",
    [
        ({"arms": []}, "at least 1"),
        ({"arms": [{"name": "a", "ref": "x"}, {"name": "a", "ref": "y"}]}, "appear twice: a"),
        ({"baseline": "c"}, "not one of the arms: a, b"),
        ({"trials": 0}, "greater than or equal to 1"),
        ({"backend": "other"}, "'local' or 'modal'"),
        ({"policy": "mean"}, "'clip_cell'"),
        ({"budget": {"cost_usd": 0}}, "greater than 0"),
    ],
)
def test_experiments_that_cannot_run(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        experiment(**fields)
    assert experiment(baseline="b").baseline == "b"


@pytest.mark.parametrize(
    "endpoint", ["example.com", "*.example.com:443", "Example.com:443", "a:0", "a:65536", "a:443/x", "a b:1", "é:1"]
)
def test_egress_names_one_host_and_port(endpoint: str) -> None:
    data = {"name": "t", "image": {"base": "host"}, "agent": ["x"]}
    with pytest.raises(ValidationError, match="not an egress endpoint"):
        AppManifest.model_validate({**data, "egress": [endpoint]}, strict=False)
    assert AppManifest.model_validate({**data, "egress": ["a.example.com:443"]}, strict=False).egress == ("a.example.com:443",)


def test_an_attempt_reserves_its_limit_or_its_share() -> None:
    assert reservation_usd(Limits(cost_usd=0.1), Decimal(5), 10) == Decimal("0.1")
    assert reservation_usd(Limits(), Decimal(5), 3) == Decimal("1.666666667")
    assert reservation_usd(Limits(), None, 3) == 0


def test_snapshot_digests_know_content_and_order_of_bytes_only() -> None:
    file = SnapshotEntry(path="a", type="file", size=1, sha256="0" * 64)
    base = SnapshotManifest(entries=(file,)).digest
    changes: list[dict[str, Any]] = [{"path": "b"}, {"executable": True}, {"size": 2}, {"sha256": "1" * 64}, {"type": "dir"}]
    assert len({base, *(SnapshotManifest(entries=(file.model_copy(update=change),)).digest for change in changes)}) == 6


def test_names_that_one_file_system_tells_apart_and_another_does_not() -> None:
    pairs = colliding_names(["a/B", "a/b", "e\u0301", "é", "STRASSE", "straße", "x"])
    assert pairs == [("a/B", "a/b"), ("e\u0301", "é"), ("STRASSE", "straße")]


@pytest.mark.parametrize(
    "data", [None, [], "ok", 5, {}, {"status": "done"}, {"status": ["ok"]}, {"status": "ok", "answer": 5}], ids=repr
)
def test_results_that_are_not_as_the_contract_says(data: Any) -> None:
    result = read_result(data)
    assert result.status is None
    assert result.error is not None


OK, REFUSAL = read_result({"status": "ok", "answer": "x"}), read_result({"status": "refusal"})
ERROR = read_result({"status": "error", "error": "no key", "error_class": "provider"})
NOTHING = read_result(None)


@pytest.mark.parametrize(
    "result, exit_code, stop, faults, outcome",
    [
        (OK, 0, None, [], Outcome.OK),
        (OK, 1, None, ["dial failed"], Outcome.OK),
        (OK, 0, Stop.DEADLINE, [], Outcome.AGENT_TIMEOUT),
        (OK, 0, Stop.COST, ["dial failed"], Outcome.BUDGET_EXCEEDED),
        (OK, 0, Stop.TURNS, [], Outcome.BUDGET_EXCEEDED),
        (REFUSAL, 0, None, [], Outcome.REFUSAL),
        (ERROR, 1, None, [], Outcome.AGENT_ERROR),
        (ERROR, 1, None, ["dial failed"], Outcome.INFRA_FAILURE),
        (NOTHING, None, None, [], Outcome.AGENT_ERROR),
        (NOTHING, 137, None, [], Outcome.AGENT_ERROR),
    ],
)
def test_who_decides(result: Any, exit_code: int | None, stop: Stop | None, faults: list[str], outcome: Outcome) -> None:
    assert decide(result, exit_code=exit_code, stop=stop, platform_faults=faults).outcome is outcome


def test_an_agents_words_never_make_an_infrastructure_failure() -> None:
    said = read_result({"status": "error", "error": "infra_failure", "error_class": "infrastructure", "outcome": "infra_failure"})
    decision = decide(said, exit_code=1, stop=None, platform_faults=[])
    assert (decision.outcome, decision.error_class) == (Outcome.AGENT_ERROR, None)
    assert decide(ERROR, exit_code=1, stop=None, platform_faults=[]).error_class == "provider"
    assert [outcome for outcome in Outcome if not outcome.valid] == [Outcome.INFRA_FAILURE, Outcome.CANCELLED]
