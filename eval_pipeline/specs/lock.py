"""From files to locks: resolve every name, ref and content once, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.case import Case, Limits
from eval_pipeline.domain.experiment import WORKTREE, ArmSpec, ExperimentSpec, JudgeSpec
from eval_pipeline.domain.lock import LockedArm, LockedCase, RunLock, ScoredCase, ScoreLock
from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox import modal_plan
from eval_pipeline.scoring.judge_client import check_judge
from eval_pipeline.scoring.price_library import names_in, with_list_prices
from eval_pipeline.specs import git
from eval_pipeline.specs.case_rules import refuse_policy, refuse_programs
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.yaml_file import Location, YamlFile, parse_model
from eval_pipeline.store.snapshots import scan_world

MANIFEST_NAME = "evals.app.yaml"
_MOST = {"cpu": 1024, "memory_mib": 16 << 20, "disk_mib": 16 << 20}
_MOST_WALL_S = 30 * 24 * 3600


@dataclass(frozen=True)
class Locked:
    """budget_at: `file:line` of what the experiment may cost; None: it was not read from a file."""

    spec: ExperimentSpec
    run: RunLock
    score: ScoreLock
    repo: Path
    budget_at: str | None = None


def lock_experiment(library: Library, path: Path) -> Locked:
    """Read the experiment and everything it names. Raises SpecError before anything is spent."""
    return lock_spec(library, *library.experiment(path))


def lock_spec(
    library: Library,
    file: YamlFile,
    spec: ExperimentSpec,
    arms_at: Sequence[Location] | None = None,
    models: Set[str] = frozenset(),
) -> Locked:
    """file: where the spec is from, for complaints. arms_at: where each arm stands in it; None: in its list `arms`.

    models: priced besides those that the arms name.
    """
    with _placed(file, ("dataset",)):
        cases = library.dataset_cases(spec.dataset)
        for case in cases:
            refuse_policy(library, case, spec.policy)
        refuse_programs(library, cases)
    with _placed(file, ("app",)):
        app = library.app(spec.app)
    with _placed(file, ("dataset",)):
        chosen = tuple(locked_case(case, spec.limits, app.limits) for case in cases)
        for case in chosen:
            _refuse_slips(f"`limits` of the case {case.name}", {"wall_s": case.limits.wall_s}, {"wall_s": _MOST_WALL_S})
    _refuse_unbounded(spec, chosen, file.where(("budget",)))
    if spec.judge is not None:
        with _placed(file, ("judge",)):
            check_judge(spec.judge)
    repo = library.app_repo(app)
    worlds = sorted({case.world for case in cases})
    loaded = [library.world(name).spec for name in worlds]
    arms: list[LockedArm] = []
    for arm, place in zip(spec.arms, arms_at or [("arms", index) for index in range(len(spec.arms))], strict=True):
        with _placed(file, place):
            arms.append(lock_arm(repo, app.path, arm, spec.backend, loaded, file.where(place)))
    if spec.backend == "modal":
        for case in chosen:
            modal_plan.check_lifetime(f"the case {case.name}", modal_plan.lifetime_s(case.limits.wall_s))
    run = RunLock(
        name=spec.name,
        app=app.name,
        app_path=app.path,
        backend=spec.backend,
        seed=spec.seed,
        trials=spec.trials,
        worlds={name: _world_digest(library, name) for name in worlds},
        cases=chosen,
        arms=tuple(arms),
    )
    score = ScoreLock(
        policy=spec.policy,
        judge=spec.judge,
        cases={
            case.name: ScoredCase(rubric=case.spec.rubric, reference=case.spec.reference, tags=tuple(case.spec.tags))
            for case in cases
        },
        prices=with_list_prices(library.prices(), models | _model_names(arms, spec.judge)).as_data(),
    )
    return Locked(spec, run, score, repo, file.where(("budget", "cost_usd")))


def lock_arm(
    repo: Path, app_path: str, arm: ArmSpec, backend: str, worlds: Sequence[WorldSpec], where: str | None = None
) -> LockedArm:
    """The arm as it would run. Raises SpecError for one that could never start."""
    locked = _locked_arm(repo, app_path, arm, where)
    refuse_misfits(f"arm {arm.name!r}", locked, backend, worlds)
    if backend == "modal":
        modal_plan.refuse(f"arm {arm.name!r}", locked.manifest.egress, locked.config.get("model"))
    return locked


def _model_names(arms: Sequence[LockedArm], judge: JudgeSpec | None) -> set[str]:
    asked = {name for arm in arms for name in names_in(arm.config)}
    return asked if judge is None else asked | {judge.model_name}


@contextmanager
def _placed(file: YamlFile, location: Location) -> Generator[None]:
    """A complaint that names no file is about what this one says at `location`."""
    try:
        yield
    except SpecError as error:
        if error.where is not None:
            raise
        raise type(error)(str(error), where=file.where(location), hint=error.hint) from None


def _world_digest(library: Library, name: str) -> str:
    world = library.world(name)
    return scan_world(world.folder, world.spec).digest


def locked_case(case: Case, *wider: Limits | None) -> LockedCase:
    """wider: limits that hold where the case has none of its own, the nearer ones first."""
    spec = case.spec
    limits = spec.limits.over(*wider)
    return LockedCase(world=case.world, case=spec.id, prompt=spec.prompt, deliverables=spec.deliverables, limits=limits)


def _refuse_unbounded(spec: ExperimentSpec, cases: Sequence[LockedCase], where: str) -> None:
    """What a cell may cost is held before it runs: without a limit nothing can be held, and the budget would mean nothing."""
    unbounded = [case.name for case in cases if case.limits.cost_usd is None]
    if spec.budget is None or spec.budget.cost_usd is None or not unbounded:
        return
    named = ", ".join(unbounded[:3]) + (" ..." if len(unbounded) > 3 else "")
    raise SpecError(
        f"budget: {len(unbounded)} of {len(cases)} cases have no limits.cost_usd ({named}), so nothing bounds what one of them costs",
        where=where,
        hint="write `limits: {cost_usd: 0.5}` into this file for all its cases, into app.yaml for all experiments, or into each case",
    )


def _locked_arm(repo: Path, app_path: str, arm: ArmSpec, where: str | None) -> LockedArm:
    try:
        return _lock(repo, app_path, arm)
    except SpecError as error:
        raise SpecError(f"arm {arm.name!r}: {error}", where=where, hint=error.hint) from None


def _lock(repo: Path, app_path: str, arm: ArmSpec) -> LockedArm:
    commit = None if arm.ref == WORKTREE else git.resolve(repo, arm.ref)
    tree = git.worktree_tree(repo, app_path) if commit is None else git.tree_of(repo, commit, app_path)
    manifest = read_manifest(repo, tree)
    _refuse_slips("`resources` of the app", manifest.resources.model_dump(), _MOST)
    if nested := git.submodules(repo, tree):
        raise SpecError(
            f"the app's folder holds submodules, which would be empty in a sandbox: {', '.join(nested[:5])}",
            hint="commit their files into the app's repository",
        )
    if manifest.image.requirements is not None:
        git.read_file(repo, tree, manifest.image.requirements)  # asked here, before anything is spent
    if manifest.compose is not None:
        git.read_file(repo, tree, manifest.compose)
    return LockedArm(name=arm.name, ref=arm.ref, commit=commit, tree=tree, manifest=manifest, config=canonical_config(arm.config))


def _refuse_slips(what: str, values: Mapping[str, float | None], most: Mapping[str, float]) -> None:
    """Here and no rule of the models, which must read every lock that was ever stored."""
    for name, limit in most.items():
        if (value := values[name]) is not None and value > limit:
            raise SpecError(f"{what}: {name} is {value:g}, and {limit} is the most that can be kept", hint="correct the number")


def lock_app(repo: Path, app_path: str, ref: str) -> LockedArm:
    """The app as it is at `ref`, as an arm without a config: what `world open` and `app check` start. Raises SpecError."""
    return _lock(repo, app_path, ArmSpec(name="app", ref=ref))


def refuse_misfits(who: str, arm: LockedArm, backend: str, worlds: Sequence[WorldSpec]) -> None:
    """Raises SpecError for what could never start: an app that the backend can't build, a world that the app can't load."""
    at = f"{who} ({arm.ref}, {arm.commit[:12] if arm.commit else 'the working tree'})"
    for key, why, instead in _UNSUPPORTED.get(backend, ()):
        if key(arm.manifest) is not None:
            raise SpecError(f"{at}: {why}", hint=instead)
    loads = arm.manifest.loads
    for world in worlds:
        if world.version is None or loads is None or world.version in loads:
            continue
        accepted = f"schema version {', '.join(map(str, loads))}" if loads else "no version"
        raise SpecError(
            f"{at} can't restore the world {world.id!r}: its records have schema version {world.version}, "
            f"and {MANIFEST_NAME} there restores {accepted}",
            hint=f"take a commit that restores version {world.version}; or open the world with a commit that restores it, migrate it "
            f"there, and save it again (`evals world open {world.id}`, `evals world save {world.id} --into NAME`); or list "
            f"{world.version} under `restores` if that commit can load it",
        )


_UNSUPPORTED: dict[str, Sequence[tuple[Callable[[AppManifest], str | None], str, str]]] = {
    "local": (
        (
            lambda manifest: manifest.image.dockerfile,
            "`image.dockerfile` can't be built on the backend `local`: it has no container engine",
            "write `image: {base: host}` and put what the Dockerfile does into `build`, or use a backend that builds images",
        ),
        (
            lambda manifest: manifest.image.registry or manifest.image.ecr,
            "an image of a registry can't be had on the backend `local`: it has no container engine",
            "write `image: {base: host}` and put what the image holds into `build`, or use a backend that has images",
        ),
        (
            lambda manifest: manifest.compose,
            "`services.compose` can't run on the backend `local`: its sandboxes share this machine's kernel and hold no engine",
            "start the same programs as plain processes with `services: {up: [...], ready: [...]}`, or use a backend of virtual machines",
        ),
    ),
    "modal": (
        (
            lambda manifest: manifest.compose if manifest.image.base is not None else None,
            "`services.compose` needs a container engine, and the image `base: host` has none",
            "write `image: {dockerfile: Dockerfile}` and install docker.io, iptables and docker-compose there",
        ),
    ),
}


def read_manifest(repo: Path, tree: str) -> AppManifest:
    text = git.read_file(repo, tree, MANIFEST_NAME)
    return parse_model(YamlFile.from_bytes(text, f"{MANIFEST_NAME}@{tree[:12]}"), AppManifest)


def canonical_config(config: dict[str, Any]) -> dict[str, Any]:
    """1.0 and 1 are one number: a config means the same however YAML or JSON spelt it."""
    return {key: _canonical(value) for key, value in sorted(config.items())}


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return canonical_config(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, list):
        return [_canonical(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and value.is_integer():  # also the large ones: Postgres gives them back as integers
        return int(value)
    return value
