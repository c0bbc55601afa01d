"""One case and one arm as an experiment of a single cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval_pipeline.domain.case import Case
from eval_pipeline.domain.experiment import ArmSpec, ExperimentSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import Locked, lock_spec
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

_NAME_MAX = 60


@dataclass(frozen=True, kw_only=True)
class TryRequest:
    """arm: EXPERIMENT:ARM, or a file with `ref` and `config`. ref, config: over what the arm says; without either the app's branch."""

    case: str
    arm: str | None = None
    ref: str | None = None
    config: Mapping[str, Any]
    judge: str | None = None
    backend: str | None = None


class _OneCase(Library):
    """Every dataset of it is the one case: no dataset needs to be written for it."""

    def __init__(self, worlds_dir: Path, case: Case) -> None:
        super().__init__(worlds_dir)
        self._case = case

    def dataset_cases(self, name: str) -> list[Case]:
        return [self._case]


def lock_try(library: Library, asked: TryRequest) -> Locked:
    """Raises SpecError before anything is spent."""
    case = library.case(asked.case)
    app = library.only_app()
    kept, arm = _arm(library, asked.arm)
    rubric = case.spec.rubric
    spec: dict[str, Any] = {
        **kept,
        "name": f"try-{case.spec.id}"[:_NAME_MAX].rstrip("-_"),
        "dataset": "one-case",
        "app": app.name,
        "arms": [
            {"name": "try", "ref": asked.ref or arm.get("ref") or app.branch, "config": {**arm.get("config", {}), **asked.config}}
        ],
        **({"policy": rubric.policy} if rubric.policy else {}),
        **({"judge": {"model": asked.judge}} if asked.judge else {}),
        **({"backend": asked.backend} if asked.backend else {}),
    }
    file = YamlFile.from_bytes(yaml.safe_dump(spec, allow_unicode=True, sort_keys=False).encode(), "the try")
    return lock_spec(_OneCase(library.root, case), file, parse_model(file, ExperimentSpec))


def _arm(library: Library, named: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an experiment says besides its arms and what an arm says, as far as it is said."""
    if named is None:
        return {}, {}
    experiment, colon, name = named.rpartition(":")
    if not colon or Path(named).is_file():
        return {}, _from_file(library, Path(named))
    file, found = library.experiment(library.experiment_path(experiment))
    arms: dict[str, ArmSpec] = {arm.name: arm for arm in found.arms}
    if name not in arms:
        raise SpecError(f"it has no arm {name!r}", where=file.where(("arms",)), hint=f"its arms: {', '.join(arms)}")
    kept = found.model_dump(mode="json", include={"judge", "backend", "limits", "seed"}, exclude_none=True)
    return kept, {"ref": arms[name].ref, "config": arms[name].config}


def _from_file(library: Library, path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SpecError(
            f"there is no file {str(path)!r}", hint="name an arm as EXPERIMENT:ARM, or a file with `ref` and `config`"
        )
    file = library.file(path)
    data = file.data if isinstance(file.data, dict) else {}
    file.data = {"name": "try", "ref": "main", **data}
    arm = parse_model(file, ArmSpec)
    return {"config": arm.config, **({"ref": arm.ref} if "ref" in data else {})}
