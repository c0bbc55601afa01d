"""A benchmark's board, read from the ledger, and what is added to it."""

from __future__ import annotations

from collections.abc import Sequence

from eval_pipeline.analysis.benchmark import (
    BenchmarkBoard,
    Member,
    arm_identity,
    benchmark_board,
    repriced,
    require_same,
    shared_prices,
)
from eval_pipeline.analysis.leaderboard import RESAMPLES
from eval_pipeline.analysis.load_tables import load_tables
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records


def load_benchmark(records: Records, name: str, baseline: str | None = None) -> BenchmarkBoard:
    """Raises NotFound without an entry, and SpecError when entries are of different versions by now."""
    entries = records.benchmarks.entries(name)
    if not entries:
        raise unknown(records, name)
    found = [records.ledger.experiment(one) for one in dict.fromkeys(entry.experiment for entry in entries)]
    for one in found[:-1]:
        require_same(one, found[-1], name)
    prices = shared_prices(found)
    experiments = {one.id: repriced(one, prices) for one in found}
    tables = {one.id: load_tables(records, one).decided for one in experiments.values()}
    members = [
        Member(
            entry=entry,
            experiment=experiments[entry.experiment],
            cells=[cell for cell in tables[entry.experiment] if cell.key.arm == entry.arm],
        )
        for entry in entries
    ]
    return benchmark_board(name, members, baseline, RESAMPLES)


def unknown(records: Records, name: str) -> NotFound:
    names = ", ".join(records.benchmarks.names()) or "none yet"
    return NotFound(f"no benchmark {name!r}; there are: {names}", hint=f"evals benchmark add {name} EXPERIMENT makes it")


def add_arms(
    records: Records, name: str, experiment: ExperimentRow, arms: Sequence[str], *, dry_run: bool = False
) -> dict[str, bool]:
    """arms: none means all. Arm -> whether it is new: one that is the same as an entry keeps that entry's result.

    dry_run: only say so.

    Raises SpecError when the experiment is of another version than the entries, or has no such arm.
    """
    known = [arm.name for arm in experiment.run.arms]
    if strangers := [arm for arm in arms if arm not in known]:
        raise SpecError(f"{experiment.id} has no arm {', '.join(strangers)}", hint=f"its arms: {', '.join(known)}")
    entries = records.benchmarks.entries(name)
    for entered in dict.fromkeys(entry.experiment for entry in entries):
        if entered != experiment.id:
            require_same(records.ledger.experiment(entered), experiment, name)
    chosen = [arm for arm in experiment.run.arms if not arms or arm.name in arms]
    identities = {arm.name: arm_identity(experiment, arm) for arm in chosen}
    if dry_run:
        new = set(identities.values()) - {entry.identity for entry in entries}
    else:
        new = records.benchmarks.add(name, experiment.id, [(identity, arm) for arm, identity in identities.items()])
    return {arm: identity in new for arm, identity in identities.items()}
