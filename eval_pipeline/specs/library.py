"""Everything under `worlds_src/`, read and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from eval_pipeline.domain.case import Case, CaseSpec
from eval_pipeline.domain.experiment import AppSpec, DatasetSpec, ExperimentSpec
from eval_pipeline.domain.ids import check_slug, check_written
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.scoring.checks import validate_check
from eval_pipeline.scoring.prices import PriceBook, PriceRow
from eval_pipeline.specs import git
from eval_pipeline.specs.check_files import with_files
from eval_pipeline.specs.schedule import check_schedule
from eval_pipeline.specs.unreadable import UnreadableCase, selects
from eval_pipeline.specs.yaml_file import Location, YamlFile, parse_model


@dataclass(frozen=True)
class World:
    spec: WorldSpec
    folder: Path


def given_name(text: str) -> str:
    """Itself. Raises SpecError for what can't be a name."""
    try:
        return check_slug(text)
    except ValueError as error:
        raise SpecError(str(error), hint="take a name like `lease-review`") from None


def case_paths(world: World) -> list[Path]:
    return sorted((world.folder / "cases").glob("*.yaml"))


class Library:
    """Reads lazily; every method raises SpecError (with file:line) or NotFound (with what there is)."""

    def __init__(self, worlds_dir: Path) -> None:
        self.root = worlds_dir

    def world_names(self) -> list[str]:
        if not self.root.is_dir():
            hint = "run the command in the project's folder, name another worlds_src in EVALS_WORLDS_DIR, or begin one: `mkdir worlds_src`"
            raise NotFound(f"there is no folder {self.root}", hint=hint)
        folder = self.root / "worlds"
        return sorted(path.parent.name for path in folder.glob("*/world.yaml")) if folder.is_dir() else []

    def world(self, name: str) -> World:
        path = self.root / "worlds" / name / "world.yaml"
        if name not in self.world_names():
            raise NotFound(f"there is no world {name!r} under {self.root / 'worlds'}", hint=_known("worlds", self.world_names()))
        file = self.file(path)
        spec = parse_model(file, WorldSpec)
        if spec.id != name:
            raise SpecError(f"id is {spec.id!r} but the folder is named {name!r}", where=file.where(("id",)))
        return World(spec, path.parent)

    def cases(self, world: str) -> list[Case]:
        """The world's cases by id, all of them right."""
        self.world(world)
        return _all_right(self.read_cases(world))

    def read_cases(self, world: str) -> tuple[list[Case], list[UnreadableCase]]:
        """Those that are right, by id, and what is wrong, each by itself. Raises nothing that a file of the world's is to blame for."""
        try:
            owner = self.world(world)
        except NotFound:
            raise
        except SpecError as error:
            return [], [UnreadableCase(world=world, error=error)]
        found: dict[str, tuple[Case, YamlFile]] = {}
        wrong: list[UnreadableCase] = []
        for path in case_paths(owner):
            file: YamlFile | None = None
            try:
                file = self.file(path)
                case = self.parse_case(owner, path, file)
                if case.spec.id in found:
                    other = found[case.spec.id][1].where(("id",))
                    raise SpecError(f"the case id {case.spec.id!r} is already taken at {other}", where=file.where(("id",)))
            except SpecError as error:
                wrong.append(UnreadableCase.of(world, file, error))
            else:
                found[case.spec.id] = (case, file)
        return [found[name][0] for name in sorted(found)], wrong

    def parse_case(self, owner: World, path: Path, file: YamlFile) -> Case:
        case = Case(world=owner.spec.id, spec=_parse_case(file, path.parent))
        _check_citations(file, case.spec, owner)
        return case

    def where(self, case: Case, location: Location) -> str:
        """`file:line` in the file of the case."""
        owner = self.world(case.world)
        for path in case_paths(owner):
            with suppress(SpecError):  # of another case
                file = self.file(path)
                if self.parse_case(owner, path, file).spec.id == case.spec.id:
                    return file.where(location)
        return self.shown(owner.folder)

    def all_cases(self) -> list[Case]:
        """All of them right."""
        return _all_right(self.read_all_cases())

    def read_all_cases(self) -> tuple[list[Case], list[UnreadableCase]]:
        read = [self.read_cases(world) for world in self.world_names()]
        return [case for cases, _ in read for case in cases], [one for _, wrong in read for one in wrong]

    def case(self, name: str) -> Case:
        world, dot, case_id = name.partition(".")
        if not dot:
            raise SpecError(f"{name!r} is not a case name: write <world>.<case>", hint="`evals case list` lists them")
        self.world(world)
        cases, wrong = self.read_cases(world)
        found = next((case for case in cases if case.spec.id == case_id), None)
        for one in wrong:
            if one.case_id == case_id or (found is None and one.case_id is None):
                raise one.error
        if found is not None:
            return found
        raise NotFound(f"the world {world!r} has no case {case_id!r}", hint=_known("cases", [case.spec.id for case in cases]))

    def dataset_names(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "datasets").glob("*.yaml"))

    def dataset(self, name: str) -> DatasetSpec:
        return self._dataset_file(name)[1]

    def dataset_cases(self, name: str) -> list[Case]:
        """The selected cases in world, case order. A pattern that selects nothing is a SpecError, and so is one that may select
        a case that can't be read; what no pattern can select may be wrong."""
        cases, wrong = self.read_dataset(name)
        if wrong:
            raise wrong[0].error
        return cases

    def read_dataset(self, name: str) -> tuple[list[Case], list[UnreadableCase]]:
        """Those it selects, and what it may select and can't be read."""
        file, spec = self._dataset_file(name)
        cases, unreadable = self.read_all_cases()
        wrong = [one for one in unreadable if any(one.may_be(pattern) for pattern in spec.cases)]
        for index, pattern in enumerate(spec.cases):
            if not any(selects(pattern, case) for case in cases) and not any(one.may_be(pattern) for one in wrong):
                hint = _known("worlds", self.world_names())
                raise SpecError(f"{pattern!r} selects no case", where=file.where(("cases", index)), hint=hint)
        chosen = [case for case in cases if any(selects(pattern, case) for pattern in spec.cases)]
        return sorted(chosen, key=lambda case: case.name), wrong

    def only_app(self) -> AppSpec:
        return parse_model(self.file(self.root / "app.yaml"), AppSpec)

    def app(self, name: str) -> AppSpec:
        spec = self.only_app()
        if spec.name != name:
            raise NotFound(f"there is no app {name!r}; {self.shown(self.root / 'app.yaml')} describes {spec.name!r}")
        return spec

    def the_app(self) -> AppSpec | None:
        """The one that app.yaml describes; None when there is no such file."""
        path = self.root / "app.yaml"
        return parse_model(self.file(path), AppSpec) if path.is_file() else None

    def app_repo(self, spec: AppSpec) -> Path:
        """Relative to the folder that holds worlds_src; if that is no repository (a copy elsewhere), to the current folder,
        then to this project's own."""
        places = [(base / spec.repo).resolve() for base in (self.root.parent, Path.cwd(), Path(__file__).parents[2])]
        found = next((place for place in places if git.is_repository(place)), None)
        if found is None:
            where = self.file(self.root / "app.yaml").where(("repo",))
            raise SpecError(
                f"repo: {spec.repo!r} is no git repository: {places[0]}", where=where, hint="write its path, absolute if need be"
            )
        return found

    def prices(self) -> PriceBook:
        """Empty when there is no file of them."""
        path = self.root / "prices.yaml"
        if not path.exists():
            return PriceBook(())
        file = self.file(path)
        if not isinstance(file.data, list):
            raise SpecError("must be a list of price rows", where=file.where())
        return PriceBook(tuple(parse_model(file, PriceRow, index) for index in range(len(cast(list[object], file.data)))))

    def experiment_path(self, argument: str) -> Path:
        """A path, or the name of a file under `experiments/`."""
        for path in (Path(argument), self.root / "experiments" / argument, self.root / "experiments" / f"{argument}.yaml"):
            if path.is_file():
                return path
        known = [path.stem for path in self.experiment_files()]
        raise NotFound(f"there is no experiment file {argument!r}", hint=_known("experiments", known))

    def experiment(self, path: Path) -> tuple[YamlFile, ExperimentSpec]:
        """With the file, for complaints about what it names."""
        file = self.file(path)
        spec = parse_model(file, ExperimentSpec)
        if spec.schedule is not None:
            check_schedule(spec.schedule, file.where(("schedule",)))
        return file, spec

    def experiment_files(self) -> list[Path]:
        """Those that have their place: of others nobody knows without being told."""
        return sorted((self.root / "experiments").glob("*.yaml"))

    def _dataset_file(self, name: str) -> tuple[YamlFile, DatasetSpec]:
        path = self.root / "datasets" / f"{name}.yaml"
        if not path.is_file():
            raise NotFound(f"there is no dataset {name!r}", hint=_known("datasets", self.dataset_names()))
        file = self.file(path)
        spec = parse_model(file, DatasetSpec)
        if spec.name != name:
            raise SpecError(f"name is {spec.name!r} but the file is named {path.name!r}", where=file.where(("name",)))
        return file, spec

    def file(self, path: Path) -> YamlFile:
        return YamlFile(path, self.shown(path))

    def shown(self, path: Path) -> str:
        """Relative to the folder that holds worlds_src, as complaints name it."""
        return str(path.relative_to(self.root.parent) if path.is_relative_to(self.root.parent) else path)


def _parse_case(file: YamlFile, folder: Path) -> CaseSpec:
    spec = parse_model(file, CaseSpec)
    criteria = tuple(_with_check(file, folder, index, one) for index, one in enumerate(spec.rubric.criteria))
    return spec.model_copy(update={"rubric": spec.rubric.model_copy(update={"criteria": criteria})})


def _with_check(file: YamlFile, folder: Path, index: int, criterion: Criterion) -> Criterion:
    """Its check found to be one, with the files that it names."""
    if criterion.check is None:
        return criterion
    try:
        check = with_files(criterion.check, folder)
        validate_check(check, per_occurrence=criterion.per_occurrence)
        for written in _looked_in(check):
            check_written(written)
    except ValueError as error:
        raise SpecError(str(error), where=file.where(("rubric", "criteria", index, "check"))) from None
    return criterion.model_copy(update={"check": check})


def _check_citations(file: YamlFile, case: CaseSpec, world: World) -> None:
    """A citation of a document that the world lacks could never be judged."""
    for index, criterion in enumerate(case.rubric.criteria):
        for document in _cited(criterion.check):
            if not any(place.is_file() for place in _places(world, document)):
                where = file.where(("rubric", "criteria", index, "check"))
                raise SpecError(f"cites {document!r}, which the world {world.spec.id!r} does not have", where=where)


def _cited(check: Any) -> Iterator[str]:
    """The documents of every `cites` in a check, however deep it stands."""
    if isinstance(check, list):
        for part in check:
            yield from _cited(part)
    if isinstance(check, dict):
        for name, argument in check.items():
            if name == "cites":
                yield argument if isinstance(argument, str) else argument["document"]
            elif name != "python":
                yield from _cited(argument)


def _looked_in(check: Any) -> Iterator[str]:
    """The files of every `in` in a check, however deep it stands."""
    if isinstance(check, list):
        for part in cast(list[Any], check):
            yield from _looked_in(part)
    if isinstance(check, dict):
        for name, argument in cast(dict[str, Any], check).items():
            if name == "in" and isinstance(argument, str) and argument.startswith("file:"):
                yield argument.removeprefix("file:")
            elif name != "python":
                yield from _looked_in(argument)


def _places(world: World, document: str) -> list[Path]:
    """Where a document named as in the snapshot, or relative to one of its parts, stands in the world's folder."""
    places = [world.folder / document]
    for part, path in world.spec.parts().items():
        places += [world.folder / path / document, world.folder / path / document.removeprefix(f"{part}/")]
    return places


def _all_right(read: tuple[list[Case], list[UnreadableCase]]) -> list[Case]:
    cases, wrong = read
    if wrong:
        raise wrong[0].error
    return cases


_FIRST = {
    "worlds": "`evals world new NAME` writes one",
    "cases": "`evals case new WORLD.CASE` writes one",
    "datasets": "write datasets/NAME.yaml in the worlds' folder",
    "experiments": "write experiments/NAME.yaml in the worlds' folder",
}


def _known(what: str, names: list[str]) -> str:
    if not names:
        return f"known {what}: none; {_FIRST[what]}"
    return f"known {what}: {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}"
