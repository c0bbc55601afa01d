"""Which names are read at all: those that a manifest declares, of the app's branch as it is and of what runs now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import read_manifest
from eval_pipeline.store.records import Records
from eval_pipeline.store.secret_versions import Phase

STAND_IN = "stand-in"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """apps: whose manifests declare it. required: not only arms with the stand-in model do."""

    name: str
    phase: Phase
    apps: tuple[str, ...]
    required: bool


def is_real(arm: LockedArm) -> bool:
    return arm.config.get("model") != STAND_IN


def pairs_of(manifest: AppManifest) -> set[tuple[str, Phase]]:
    phases: dict[Phase, tuple[str, ...]] = {"build": manifest.secrets.build, "agent": manifest.secrets.agent}
    return {(name, phase) for phase, names in phases.items() for name in names}


def declared_now(library: Library, records: Records) -> list[Declared]:
    """By the head of the app's branch, and by the arms that engines are working on. Raises SpecError."""
    app = library.the_app()
    found: list[tuple[str, AppManifest, bool]] = []
    if app is not None:
        repo = library.app_repo(app)
        tree = git.tree_of(repo, git.resolve(repo, app.branch), app.path)
        found.append((app.name, read_manifest(repo, tree), True))
    working = [name for name, tally in records.views.tallies().items() if tally.working]
    for run in (records.ledger.experiment(name).run for name in working):
        found += [(run.app, arm.manifest, is_real(arm)) for arm in run.arms]
    return _together(found)


def declared_by(app: str, arms: Iterable[LockedArm]) -> list[Declared]:
    return _together((app, arm.manifest, is_real(arm)) for arm in arms)


def _together(manifests: Iterable[tuple[str, AppManifest, bool]]) -> list[Declared]:
    found: dict[tuple[str, Phase], Declared] = {}
    for app, manifest, required in manifests:
        for name, phase in pairs_of(manifest):
            before = found.get((name, phase))
            apps = {app, *(before.apps if before else ())}
            required_too = required or (before is not None and before.required)
            found[name, phase] = Declared(name=name, phase=phase, apps=tuple(sorted(apps)), required=required_too)
    return [found[key] for key in sorted(found)]
