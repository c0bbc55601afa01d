"""The experiment of a gate: two refs of the app as arms with one config, on the same cases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml

from eval_pipeline.domain.experiment import ExperimentSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import Locked, lock_spec
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

BASE, HEAD = "base", "head"
_NAME_MAX = 60


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """base, head: refs, or WORKTREE. template: an experiment's file or name; what is None here is as there, or as in any experiment.

    config: JSON. arm: the template's whose config counts; None: its baseline, or its only one.
    """

    base: str
    head: str
    dataset: str | None = None
    app: str | None = None
    config: str | None = None
    trials: int | None = None
    budget_usd: float | None = None
    template: str | None = None
    arm: str | None = None


def lock_gate(library: Library, asked: GateRequest) -> Locked:
    """Raises SpecError before anything is spent, for what the gate asks and what its cases and refs are."""
    spec, config = _template(library, asked)
    dataset = asked.dataset or spec.get("dataset")
    if dataset is None:
        raise SpecError("no dataset is given", hint="--dataset NAME (`evals dataset list`), or --experiment FILE with one")
    config = config if asked.config is None else _json(asked.config)
    spec |= {
        "name": f"gate-{dataset}"[:_NAME_MAX].rstrip("-_"),
        "dataset": dataset,
        "app": asked.app or spec.get("app") or library.only_app().name,
        "baseline": BASE,
        "arms": [{"name": name, "ref": ref, "config": config} for name, ref in ((BASE, asked.base), (HEAD, asked.head))],
    }
    if asked.trials is not None:
        spec["trials"] = asked.trials
    if asked.budget_usd is not None:
        spec["budget"] = {**(spec.get("budget") or {}), "cost_usd": asked.budget_usd}
    file = YamlFile.from_bytes(yaml.safe_dump(spec, allow_unicode=True, sort_keys=False).encode(), "the gate's experiment")
    return lock_spec(library, file, parse_model(file, ExperimentSpec))


def _template(library: Library, asked: GateRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the template says of everything but its arms, and the config of one of these."""
    if asked.template is None:
        if asked.arm is not None:
            raise SpecError("--arm names an arm of a template, and there is none", hint="name its file: --experiment FILE")
        return {}, {}
    file, found = library.experiment(library.experiment_path(asked.template))
    arms = {arm.name: arm for arm in found.arms}
    name = asked.arm or found.baseline or (next(iter(arms)) if len(arms) == 1 else None)
    if name is None:
        raise SpecError("it has several arms and no baseline", where=file.where(("arms",)), hint=f"--arm {' | '.join(arms)}")
    if name not in arms:
        raise SpecError(f"it has no arm {name!r}", where=file.where(("arms",)), hint=f"its arms: {', '.join(arms)}")
    kept = found.model_dump(mode="json", exclude_none=True, exclude={"name", "description", "arms", "baseline", "schedule"})
    return kept, arms[name].config


def _json(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise SpecError(f"--config is not JSON: {error}", hint="""for example --config '{"model": "stand-in"}'""") from None
    if not isinstance(found, dict):
        raise SpecError("--config must be a JSON object", hint="""for example --config '{"model": "stand-in"}'""")
    return found  # pyright: ignore[reportUnknownVariableType]
