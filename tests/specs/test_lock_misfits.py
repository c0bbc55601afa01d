"""Arms that could never start are refused before anything is spent: by the backend they need, by the worlds they can't load."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from typing import Any

import pytest
from support.places import short_dir
from support.project import Project

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import Locked, lock_experiment
from eval_pipeline.store.snapshots import scan_world

pytestmark = pytest.mark.slow

UP = {"up": ["bin/up"]}
AUTHOR = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]


@pytest.fixture(scope="module")
def drawn() -> Generator[Project]:
    with short_dir() as root:
        project = Project(root, root / "state")
        project.case()
        project.agent("answer yes\n")
        yield project


@pytest.fixture
def project(drawn: Project) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, root / "state", like=drawn)


def manifest(project: Project, **more: Any) -> str:
    project.manifest(**more)
    return project.commit({})


def world(project: Project, **more: Any) -> None:
    project.write("worlds/w/world.yaml", {"id": "w", "title": "w", "documents": "documents/", **more})


def lock(project: Project, **more: Any) -> Locked:
    return lock_experiment(Library(project.worlds), project.experiment("x", **more))


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"schema_version": 2}, {"schema_version": 3}, "version 3.*restores schema version 2"),
    ({"schema_version": 2}, {"made_with": {"app": "tiny", "schema_version": 1}}, "version 1.*restores schema version 2"),
    ({"schema_version": 2, "restores": [1, 2]}, {"schema_version": 3}, "version 3.*restores schema version 1, 2"),
    ({"restores": []}, {"schema_version": 1}, "version 1.*restores no version"),
]


def test_a_file_of_the_image_that_is_not_there(project: Project) -> None:
    manifest(project, image={"base": "host", "requirements": "requirements.lock"})
    with pytest.raises(
        SpecError, match=r"^worlds_src/experiments/x\.yaml:5: arm 'a': requirements\.lock is not in the app's folder"
    ):
        lock(project)


@pytest.mark.parametrize("resources", [{"cpu": 1e300}, {"memory_mib": 10**30}, {"disk_mib": 10**30}])
def test_resources_that_no_machine_has(project: Project, resources: dict[str, Any]) -> None:
    manifest(project, resources=resources)
    with pytest.raises(SpecError, match=r"^worlds_src/experiments/x\.yaml:5: arm 'a': `resources` of the app: .* is the most"):
        lock(project)


def test_a_time_limit_that_no_ledger_can_hold(project: Project) -> None:
    project.case(limits={"wall_s": 1e300})
    with pytest.raises(SpecError, match=r"x\.yaml:2: `limits` of the case w\.c: wall_s is 1e\+300"):
        lock(project)


@pytest.mark.parametrize("app, world_yaml, said", REFUSED)
def test_a_world_that_an_arm_cannot_restore(project: Project, app: dict[str, Any], world_yaml: dict[str, Any], said: str) -> None:
    commit = manifest(project, **app)
    world(project, **world_yaml)
    with pytest.raises(
        SpecError, match=rf"(?s)^worlds_src/experiments/x\.yaml:5: arm 'a' \(main, {commit[:12]}\).*'w'.*{said}"
    ) as error:
        lock(project)
    assert error.value.hint is not None
    assert "evals world open w" in error.value.hint


ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"schema_version": 3}),
    ({"schema_version": 2}, {}),
    ({"schema_version": 2}, {"schema_version": 2}),
    ({"schema_version": 3, "restores": [2, 3]}, {"made_with": {"app": "tiny", "commit": "c" * 40, "schema_version": 2}}),
    ({"schema_version": 3}, {"made_with": {"app": "tiny"}}),
]


@pytest.mark.parametrize("app, world_yaml", ACCEPTED)
def test_a_world_that_it_can_or_may_restore(project: Project, app: dict[str, Any], world_yaml: dict[str, Any]) -> None:
    manifest(project, **app)
    world(project, **world_yaml)
    assert [arm.name for arm in lock(project).run.arms] == ["a"]


def test_the_second_arm_is_the_one_that_is_named(project: Project) -> None:
    old = manifest(project)
    manifest(project, schema_version=4)
    world(project, schema_version=3)
    arms = [{"name": "old", "ref": old}, {"name": "new", "ref": "WORKTREE"}]
    with pytest.raises(SpecError, match=r"x\.yaml:7: arm 'new' \(WORKTREE, the working tree\) can't restore"):
        lock(project, arms=arms)


def test_two_versions_that_contradict_each_other(project: Project) -> None:
    world(project, schema_version=3, made_with={"app": "tiny", "schema_version": 2})
    with pytest.raises(SpecError, match="schema_version is 3, but made_with says 2"):
        lock(project)


@pytest.mark.parametrize(
    "app, said",
    [
        ({"image": {"dockerfile": "Dockerfile"}}, r"`image\.dockerfile` can't be built on the backend `local`"),
        ({"image": {"registry": "debian:12"}}, "an image of a registry can't be had on the backend `local`"),
        ({"image": {"dockerfile": "Dockerfile"}, "services": {"compose": "compose.yaml"}}, r"`image\.dockerfile` can't be built"),
        ({"services": {"compose": "compose.yaml"}}, r"`services\.compose` can't run on the backend `local`"),
    ],
)
def test_what_the_local_backend_has_no_engine_for(project: Project, app: dict[str, Any], said: str) -> None:
    project.commit({"compose.yaml": "services: {}\n"})
    commit = manifest(project, **app)
    with pytest.raises(SpecError, match=rf"^worlds_src/experiments/x\.yaml:5: arm 'a' \(main, {commit[:12]}\): {said}") as error:
        lock(project)
    assert error.value.hint is not None


@pytest.mark.parametrize(
    "egress, said",
    [
        (["10.1.2.3:443"], "egress to 10.1.2.3:443: Modal's allowlist takes names, no IP address"),
        (["api.example.com:8443"], "egress to api.example.com:8443: Modal's allowlist holds on port 443 only"),
        ([f"h{n}.example.com:443" for n in range(101)], "egress to 101 hosts; Modal's allowlist takes 100"),
    ],
)
def test_what_the_allowlist_of_modal_cannot_hold(project: Project, egress: list[str], said: str) -> None:
    manifest(project, egress=egress)
    lock(project)
    with pytest.raises(SpecError, match=rf"^worlds_src/experiments/x\.yaml:5: arm 'a': {said}"):
        lock(project, backend="modal")
    manifest(project, egress=[f"h{n}.example.com:443" for n in range(100)])
    lock(project, backend="modal")


COMPOSE = {"image": {"dockerfile": "Dockerfile"}, "services": {"compose": "compose.yaml"}}


def test_containers_need_an_image_with_an_engine_and_their_file(project: Project) -> None:
    project.commit({"Dockerfile": "FROM debian:12\n"})
    manifest(project, **COMPOSE)
    with pytest.raises(SpecError, match=r"x\.yaml:5: arm 'a': compose\.yaml is not in the app's folder"):
        lock(project, backend="modal")
    project.commit({"compose.yaml": "services: {}\n"})
    assert lock(project, backend="modal").run.arms[0].manifest.compose == "compose.yaml"
    manifest(project, services={"compose": "compose.yaml"})
    with pytest.raises(SpecError, match=r"`services\.compose` needs a container engine, and the image `base: host` has none"):
        lock(project, backend="modal")


def test_containers_need_a_kernel_of_their_own(project: Project) -> None:
    project.commit({"Dockerfile": "FROM debian:12\n", "compose.yaml": "services: {}\n"})
    manifest(project, **COMPOSE)
    project.experiment("x", backend="modal")
    project.env["EVALS_MODAL_RUNTIME"] = "gvisor"
    refused = project.evals("experiment", "plan", "x", check=False)
    assert refused["exit_code"] == 2
    assert (
        "arm 'a' needs a container engine (`services.compose`), and the runtime 'gvisor' has no kernel"
        in refused["error"]["message"]
    )


def test_only_containers_give_an_agent_an_engine(project: Project) -> None:
    manifest(project, services={**UP, "agent_engine": True})
    with pytest.raises(SpecError, match=r"`agent_engine` belongs to `compose`"):
        lock(project)


def test_where_a_world_comes_from_is_no_part_of_its_snapshot(project: Project) -> None:
    library = Library(project.worlds)
    before = scan_world(library.world("w").folder, library.world("w").spec).digest
    world(project, made_with={"app": "tiny", "commit": "c" * 40, "schema_version": 2}, schema_version=2)
    assert scan_world(library.world("w").folder, library.world("w").spec).digest == before


def test_a_manifest_that_names_no_ports_is_stored_as_before() -> None:
    plain = {"name": "tiny", "image": {"base": "host"}, "agent": ["bin/agent"], "services": UP}
    stored = AppManifest.model_validate_json(AppManifest.model_validate(plain, strict=False).model_dump_json()).model_dump()
    assert "ports" not in stored["services"]
    named = AppManifest.model_validate({**plain, "services": {**UP, "ports": [8080]}}, strict=False).model_dump()
    assert named["services"]["ports"] == (8080,)


def test_submodules_would_be_empty(project: Project) -> None:
    index = ["git", "-C", str(project.app), "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},vendor/engine"]
    subprocess.run(index, check=True)
    subprocess.run(["git", "-C", str(project.app), *AUTHOR, "commit", "-q", "-m", "x"], check=True)
    with pytest.raises(SpecError, match=r"arm 'a': the app's folder holds submodules.*vendor/engine"):
        lock(project)
