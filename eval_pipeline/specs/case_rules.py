"""What an experiment refuses of the cases it selects, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence

from eval_pipeline.domain.case import Case
from eval_pipeline.domain.rubric import Policy
from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox.local import preflight
from eval_pipeline.specs.check_files import programs
from eval_pipeline.specs.library import Library


def refuse_policy(library: Library, case: Case, policy: Policy) -> None:
    """One table has one policy, so it is the experiment's."""
    meant = case.spec.rubric.policy
    if meant in (None, policy):
        return
    raise SpecError(
        f"the rubric of {case.name} is written for the policy {meant}, and the experiment scores by {policy}",
        where=library.where(case, ("rubric", "policy")),
        hint=f"write `policy: {meant}` in the experiment, select other cases, or take the line out of the rubric",
    )


def refuse_programs(library: Library, cases: Sequence[Case]) -> None:
    """A check that is a program of one's own runs in a sandbox of this machine, whatever the backend of the agents."""
    found = ((case, index, file) for case in cases for index, file in programs(case.spec.rubric))
    case, index, file = next(found, (None, 0, ""))
    if case is None or (why := preflight.why_not()) is None:
        return
    raise SpecError(
        f"the check {file} is a program, which runs in a local sandbox only, and there is none here: {why}",
        where=library.where(case, ("rubric", "criteria", index, "check")),
        hint="run the experiment where `evals doctor` finds sandboxes isolated, or decide the criterion by another check or a judge",
    )
