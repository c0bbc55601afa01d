"""What a plan says before anything is spent."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.boards import PRICE
from support.ledgers import HERE, Books, keys
from support.locks import MANIFEST, criterion, locked_arm, locked_case, run_lock, score_lock

from eval_pipeline.domain.app import Resources, SecretNames
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import ArmSpec, Budget, ExperimentSpec
from eval_pipeline.domain.lock import LockedArm, LockedCase, RunLock
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.planning import Plan, commit, most_usd, moved_text, plan
from eval_pipeline.runner.room import no_room
from eval_pipeline.scoring.sandbox_prices import listed
from eval_pipeline.settings import Settings
from eval_pipeline.specs.lock import Locked
from eval_pipeline.store.records import Records
from eval_pipeline.vault.delivery import Secrets

pytestmark = pytest.mark.slow


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


@pytest.fixture
def records(books: Books) -> Records:
    return Records(database=books.database, ledger=books.ledger, leases=books.leases, verdicts=books.verdicts, views=books.views)


def locked(
    cases: Sequence[LockedCase] = (locked_case(),),
    arms: Sequence[LockedArm] = (locked_arm(),),
    criteria: Sequence[Criterion] = (criterion(),),
    repo: Path = Path("/app"),
    budget_usd: float | None = None,
    **more: Any,
) -> Locked:
    run = run_lock("x", cases, arms, **more)
    budget = None if budget_usd is None else Budget(cost_usd=budget_usd)
    specs = tuple(ArmSpec(name=arm.name, ref=arm.ref) for arm in arms)
    spec = ExperimentSpec(name="x", dataset="all", app="tiny", arms=specs, budget=budget, baseline=arms[0].name)
    return Locked(spec, run, score_lock(run, criteria), repo)


def vault(records: Records, environ: Mapping[str, str]) -> Secrets:
    """Without a file of secrets."""
    nowhere = Path("/nonexistent")
    return Secrets(Settings(state_dir=nowhere, worlds_dir=nowhere), records, environ)


def make(records: Records, experiment: Locked, *, fresh: bool = False) -> Plan:
    planned = plan(experiment, records, vault(records, {}), fresh=fresh)
    commit(experiment, planned, records)
    return planned


def finish_first(books: Books, run: RunLock, *numbers: int) -> None:
    chosen = [keys(run)[number] for number in numbers]
    for claim in books.ledger.claim(books.engine(), chosen, HERE.place):
        books.finish(claim, books.begin(claim))


def test_a_new_experiment(records: Records) -> None:
    cases = [locked_case("c"), locked_case("d")]
    experiment = locked(cases, criteria=[criterion("a"), criterion("b", judge=True)], trials=3, budget_usd=0.1)
    planned = plan(experiment, records, vault(records, {}), fresh=False)
    assert (planned.run, planned.resumes, planned.moved) == (experiment.run, None, [])
    assert (planned.n_cells, planned.n_done, planned.n_judge_criteria, planned.n_cases_with_judge) == (6, 0, 2, 2)
    assert records.ledger.experiments() == []  # a plan writes nothing
    row = commit(experiment, planned, records)
    assert (row.id, row.baseline, row.budget_usd, row.repo) == (experiment.run.experiment_id, "a", Decimal("0.1"), "/app")


def test_the_same_file_again_resumes_with_what_is_done(books: Books, records: Records) -> None:
    experiment = locked([locked_case("c"), locked_case("d")], trials=2)
    make(records, experiment)
    finish_first(books, experiment.run, 0, 3)
    again = make(records, experiment)
    assert again.resumes is not None and again.resumes.id == experiment.run.experiment_id
    assert (again.n_cells, again.n_done, again.moved) == (4, 2, [])


def test_a_plan_says_what_the_open_cells_may_cost(books: Books, records: Records) -> None:
    dear, cheap = locked_case("c", limits=Limits(cost_usd=10.0)), locked_case("d", limits=Limits(cost_usd=0.1))
    experiment = locked([dear, cheap], trials=2)
    assert make(records, experiment).max_cost_usd == 20.2
    finish_first(books, experiment.run, 2, 3)
    assert make(records, experiment).max_cost_usd == 20
    finish_first(books, experiment.run, 0, 1)
    assert make(records, experiment).max_cost_usd == 0


def test_without_a_limit_nobody_knows_the_cost(books: Books, records: Records) -> None:
    experiment = locked([locked_case("c", limits=Limits(cost_usd=1.0)), locked_case("d")])
    assert make(records, experiment).max_cost_usd is None
    finish_first(books, experiment.run, 1)
    assert make(records, experiment).max_cost_usd == 1


def test_a_plan_says_what_its_sandboxes_take_and_where_it_knows_that_from(books: Books, records: Records) -> None:
    large = MANIFEST.model_copy(update={"resources": Resources(cpu=2, memory_mib=4096)})
    arms = [locked_arm("a"), locked_arm("b", manifest=large)]
    experiment = locked([locked_case("c", limits=Limits(wall_s=1800))], arms, backend="modal")
    rates = listed("modal", None)
    first = plan(experiment, records, vault(records, {}), fresh=False, rates=rates).sandboxes
    # 0.5 hours: 0.1419 a core and 0.024 a GiB; 1 core and 1 GiB, 2 cores and 4 GiB
    assert (first.seconds, first.at_most, first.seconds_from) == (3600.0, True, "the cases' limits.wall_s")
    assert first.cost_usd == pytest.approx(Decimal("0.27285"))
    commit(experiment, plan(experiment, records, vault(records, {}), fresh=False), records)
    (claim,) = books.ledger.claim(books.engine(), keys(experiment.run)[:1], HERE.place)
    attempt = books.begin(claim, backend="modal")
    books.finish(claim, attempt)
    books.ledger.sandbox_ended(attempt.id, 360.0)
    again = plan(experiment, records, vault(records, {}), fresh=False, rates=rates).sandboxes
    assert (again.seconds, again.at_most) == (360.0, False)  # one cell is left
    assert again.seconds_from == "the mean of 1 earlier cell of tiny on modal"
    assert again.cost_usd == pytest.approx(Decimal("0.03798"))
    unknown = plan(experiment, records, vault(records, {}), fresh=False).sandboxes
    assert (unknown.cost_usd, unknown.rate, unknown.seconds) == (None, None, 360.0)


def test_a_plan_says_what_models_are_expected_to_cost_and_how_it_knows(books: Books, records: Records) -> None:
    arms = [locked_arm("a"), locked_arm("b", config={"k": 1})]
    experiment = locked([locked_case("c", limits=Limits(cost_usd=1.0))], arms, trials=2, budget_usd=3)
    first = make(records, experiment)
    assert (first.models.cost_usd, first.models.source, first.models.at_most) == (4, "the cases' limits.cost_usd", True)
    assert most_usd(first, experiment.spec.budget) == 3  # the budget is nearer than the limits
    (claim,) = books.ledger.claim(books.engine(), keys(experiment.run)[:1], HERE.place)
    books.finish(claim, books.begin(claim), cost_usd=Decimal("0.25"))
    again = make(records, experiment)
    assert (again.models.cost_usd, again.models.at_most) == (Decimal("0.75"), False)
    assert (
        again.models.source
        == "the mean of 1 earlier cell of the arm a as it is; the mean of 1 earlier cell of tiny in other arms"
    )
    assert most_usd(again, experiment.spec.budget) == Decimal("2.75")
    assert most_usd(again, None) == 3
    unbounded = make(records, locked([locked_case("d")], [locked_arm("a")]))
    assert (unbounded.models.cost_usd, most_usd(unbounded, None)) == (Decimal("0.25"), Decimal("0.25"))


def test_who_runs_a_plan_first_created_its_experiment(records: Records) -> None:
    experiment = locked(trials=2)
    planned = plan(experiment, records, vault(records, {}), fresh=False)
    for who in ("sam", "kim"):
        assert commit(experiment, planned, records, who).created_by == "sam"


def test_a_ref_that_moved_resumes_the_locked_run_and_says_so(records: Records, tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    commits: list[str] = []
    for _ in range(3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        commits.append(subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip())
    still = locked_arm("still", ref="v1", commit=commits[0])
    before = locked(arms=[locked_arm(tree="1" * 40, commit=commits[0]), still], repo=tmp_path)
    make(records, before)
    after = locked(arms=[locked_arm(tree="2" * 40, commit=commits[2]), still], repo=tmp_path)
    planned = plan(after, records, vault(records, {}), fresh=False)
    assert (planned.run, planned.resumes is not None) == (before.run, True)
    assert planned.moved == ["main (arm 'a') moved 2 commits"]
    text = moved_text(planned, "x.yaml") or ""
    assert "refs have moved since (main (arm 'a') moved 2 commits): `evals experiment run x.yaml --fresh`" in text
    fresh = make(records, after, fresh=True)
    assert (fresh.run, fresh.resumes, fresh.moved) == (after.run, None, [])
    assert make(records, after).run == after.run  # now there is one of its own
    dirty = locked(arms=[locked_arm(tree="3" * 40, commit=None), still], repo=tmp_path)
    assert plan(dirty, records, vault(records, {}), fresh=False).moved == ["main (arm 'a') moved to another tree"]


def test_another_experiment_of_the_same_name_is_not_resumed(records: Records) -> None:
    make(records, locked(trials=2))
    assert make(records, locked(trials=3)).resumes is None


def test_an_arm_that_lacks_a_secret_is_refused_before_anything_is_spent(records: Records) -> None:
    manifest = MANIFEST.model_copy(update={"secrets": SecretNames(agent=("KEY_A", "KEY_B"))})
    real = locked(arms=[locked_arm(manifest=manifest, config={"model": "real"})])
    for environ in ({}, {"KEY_A": "x"}, {"KEY_A": "x", "KEY_B": ""}):
        with pytest.raises(
            SpecError,
            match=r"KEY_B could not be had; looked in: the file /nonexistent/secrets.env \(there is none\), the environment",
        ) as caught:
            plan(real, records, vault(records, environ), fresh=False)
        assert "stand-in" in (caught.value.hint or "")
    assert plan(real, records, vault(records, {"KEY_A": "x", "KEY_B": "y"}), fresh=False).n_cells == 1
    stand_in = locked(arms=[locked_arm(manifest=manifest, config={"model": "stand-in"})])
    assert any("stand-in" in note for note in plan(stand_in, records, vault(records, {}), fresh=False).notes)


def test_a_plan_for_modal_says_what_is_not_held_there(records: Records) -> None:
    arms = [locked_arm(manifest=MANIFEST.model_copy(update={"egress": ("api.example.com:443",)}))]
    here, there, closed = locked(arms=arms), locked(arms=arms, backend="modal"), locked(backend="modal")
    said = "egress on modal: the allowlist goes by the name in a TLS greeting on port 443"
    assert not any(said in note for note in make(records, here).notes)
    assert any(said in note for note in make(records, there).notes)
    notes = make(records, closed).notes  # nothing may be reached: there is no network at all
    assert not any(said in note for note in notes)
    assert any("not held on modal: egress, disk, memory" in note for note in notes)


def test_an_experiment_that_is_too_large(records: Records) -> None:
    with pytest.raises(SpecError, match="has 100001 cells; at most 100000"):
        plan(locked(trials=100_001), records, vault(records, {}), fresh=False)


def test_a_cell_that_the_whole_budget_cannot_hold_is_refused_before_anything_is_spent(books: Books, records: Records) -> None:
    cases = [locked_case("c", limits=Limits(cost_usd=0.5)), locked_case("d", limits=Limits(cost_usd=0.005))]
    wanted = [r"b.yaml:7: budget: a cell of w.c reserves 0.5 USD \(limits.cost_usd\), the budget is 0.01: no cell can start"]
    wanted.append("no cell of w.c can start")
    for chosen, said in zip((cases[:1], cases), wanted, strict=True):
        poor = replace(locked(chosen, budget_usd=0.01), budget_at="b.yaml:7")
        with pytest.raises(SpecError, match=said) as caught:
            make(records, poor)
        assert "at least 0.5" in (caught.value.hint or "")
    assert records.ledger.experiments() == []
    rich = locked(cases, budget_usd=0.5)
    make(records, rich)
    finish_first(books, rich.run, 0)
    assert make(records, locked(cases, budget_usd=0.01)).n_done == 1  # the dear one is done: nothing is held for it any more


def test_a_budget_that_is_nearly_used_up_says_what_the_next_cell_needs(books: Books, records: Records) -> None:
    cases = [locked_case(name, limits=Limits(cost_usd=0.5)) for name in "cde"]
    experiment = locked(cases, budget_usd=0.6)
    assert not any("NO CELL" in note for note in make(records, experiment).notes)
    assert no_room(records, records.ledger.experiment("x"), None) is None
    (claim,) = books.ledger.claim(books.engine(), keys(experiment.run)[:1], HERE.place)
    books.finish(claim, books.begin(claim, reserve_usd="0.5"), cost_usd=Decimal("0.2"))
    said = "the next cell must reserve 0.5 USD, and 0.4 of 0.6 are left"
    assert any(said in note and "raise budget.cost_usd to 0.7" in note for note in make(records, experiment).notes)
    found = no_room(records, records.ledger.experiment("x"), None)
    assert found is not None and (found.said, found.waits_for) == (said, "the budget (needs 0.5, 0.4 left)")
    assert found.remedy == "raise budget.cost_usd to 0.7 at least; 1.2 hold all 2 open cells at their limits"
    make(records, locked(cases, budget_usd=0.7))
    assert no_room(records, records.ledger.experiment("x"), None) is None


def test_a_budget_of_sandboxes_is_no_mistake_but_said(records: Records) -> None:
    experiment = locked([locked_case("c", limits=Limits(wall_s=3600, cost_usd=0.01))], backend="modal", budget_usd=0.02)
    planned = plan(experiment, records, vault(records, {}), fresh=False, rates=listed("modal", None))
    assert any("NO CELL CAN BEGIN: the next cell must reserve 0.1" in note for note in planned.notes)


def test_under_a_monthly_cap_every_cell_that_can_call_a_model_must_say_what_it_may_cost(records: Records) -> None:
    reaches = locked_arm(manifest=MANIFEST.model_copy(update={"egress": ("api.example.com:443",)}))
    limited, free = locked_case("c", limits=Limits(cost_usd=0.5)), locked_case("d")
    make(records, locked([free], [reaches]))  # without a cap nothing is refused
    records.spending.set(monthly_cap_usd=Decimal(10))
    with pytest.raises(
        SpecError, match=r"e.yaml:4: .*month is capped at 10 USD, and nothing says what a cell of w.d may cost"
    ) as caught:
        make(records, replace(locked([limited, free], [reaches], trials=2), budget_at="e.yaml:4"))
    assert "`limits: {cost_usd: 0.5}`" in (caught.value.hint or "")
    make(records, locked([limited], [reaches]))
    make(records, locked([free]), fresh=True)


def test_an_arm_whose_model_has_no_price_is_told(records: Records) -> None:
    arms = [locked_arm("steady"), locked_arm("unpriced", config={"model": "mystery-9"})]
    said = "arm 'unpriced': no price for mystery-9: what its cells cost will be null until prices.yaml has one"
    assert [note for note in plan(locked(arms=arms), records, vault(records, {}), fresh=False).notes if "price" in note] == [said]


def test_a_run_after_a_price_came_has_the_money_again_that_was_held_without_it(books: Books, records: Records) -> None:
    cases = [locked_case(name, limits=Limits(cost_usd=0.5)) for name in "cd"]
    experiment = locked(cases, budget_usd=0.6)
    make(records, experiment)
    (claim,) = books.ledger.claim(books.engine(), keys(experiment.run)[:1], HERE.place)
    usage = [{"model": "m", "output": 1000}]
    books.finish(claim, books.begin(claim, reserve_usd="0.5"), usage=usage, usage_source="self-reported")
    assert no_room(records, records.ledger.experiment("x"), None) is not None
    make(records, replace(experiment, score=score_lock(experiment.run, prices=[PRICE])))
    assert no_room(records, records.ledger.experiment("x"), None) is None
    assert books.committed_usd(experiment.run) == Decimal("0.01")
