"""The hourly image as Dagster runs it. What was built is seen from inside the cells that stand on it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eval_pipeline.host import reachable_root

if TYPE_CHECKING:
    import dagster as dg
    from conftest import Bench

pytestmark = pytest.mark.slow

BUILD = "#!/bin/sh\nhead -c 12 /dev/urandom | od -An -tx1 | tr -d ' \\n' > token\n"
AGENT = 'answer "yes $(cat token)"'


def build(bench: Bench) -> dg.ExecuteInProcessResult:
    from eval_pipeline.definitions import defs

    return defs.resolve_job_def("build_app_image").execute_in_process(instance=bench.instance, raise_on_error=False)


def made(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node("app_image")
    return {name: value.value for name, value in event.metadata.items()}


def check(result: dg.ExecuteInProcessResult) -> tuple[bool, str, dict[str, Any]]:
    (found,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "image_is_current"]
    return found.passed, found.severity.value, {name: value.value for name, value in found.metadata.items()}


def run_cell(bench: Bench) -> tuple[str, str, str]:
    """Of a fresh experiment of the branch: its cell, what its agent saw of the build, and the commit of the image below it."""
    ran = bench.project.run("seen", "--fresh")
    (cell,) = bench.project.cells(ran["experiment"])
    shown = bench.project.evals("cell", "show", cell["cell"])
    return cell["cell"], shown["answer"].split()[1], shown["attempts"][-1]["evidence"]["image_commit"]


@pytest.fixture
def built(bench: Bench) -> Bench:
    bench.project.manifest(build=["bin/build"], reset=["true"])
    bench.project.commit({"bin/build": BUILD})
    bench.project.case()
    bench.project.experiment("seen")
    return bench


@pytest.mark.long
def test_the_head_is_built_once_and_cells_stand_on_it(built: Bench) -> None:
    head = built.project.agent(AGENT)
    first = build(built)
    assert first.success
    told = made(first)
    assert (told["commit"], told["built"], told["app"]) == (head, True, "tiny")
    assert told["size_bytes"] > 0 and len(told["digest"]) == 64
    passed, _, found = check(first)
    assert passed and (found["image_commit"], found["commits_behind"]) == (head, 0)
    again = made(build(built))
    assert (again["built"], again["image"], again["built_s"]) == (False, told["image"], told["built_s"])
    built.project.agent(AGENT + "\n# later")
    cell, token, below = run_cell(built)
    layers = reachable_root(built.project.state_dir) / "layers"
    assert below == head and token == (layers / told["image"] / "app" / "token").read_text(), "a later commit is a delta over it"
    later = build(built)
    assert later.success and made(later)["image"] != told["image"]
    assert built.staleness(cell) == ("FRESH", []), "a newer image makes no cell out of date"


@pytest.mark.long
def test_a_build_that_fails_leaves_the_last_image_in_use_and_says_why(built: Bench) -> None:
    good = built.project.agent(AGENT + "\n# good")
    assert build(built).success
    built.project.commit({"bin/build": "#!/bin/sh\necho the index is gone >&2; exit 7\n"})
    bad = build(built)
    assert not bad.success and not bad.asset_materializations_for_node("app_image")
    passed, severity, found = check(bad)
    assert (passed, severity, found["image_commit"], found["commits_behind"]) == (False, "WARN", good, 1)
    assert "ended with 7" in found["failure"] and "the index is gone" in found["failure"]
    assert run_cell(built)[2] == good
    # it is kept where everybody can read it later
    from dagster import AssetCheckKey, AssetKey

    stored = built.instance.event_log_storage.get_asset_check_execution_history(
        check_key=AssetCheckKey(AssetKey("app_image"), "image_is_current"), limit=1
    )
    assert stored[0].run_id == bad.run_id and stored[0].event is not None
    assert "the index is gone" in str(stored[0].event.dagster_event)


def test_two_builds_at_once_are_one_after_the_other(built: Bench) -> None:
    script = "#!/bin/sh\nsleep 1\n" + BUILD.removeprefix("#!/bin/sh\n")
    built.project.commit({"bin/build": script})
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: built.project.evals("image", "build"), range(2)))
    assert sorted(one["built"] for one in done) == [False, True] and len({one["key"] for one in done}) == 1


def test_the_schedule_leaves_out_a_tick_while_something_builds(built: Bench) -> None:
    import dagster as dg

    from eval_pipeline.definitions import defs
    from eval_pipeline.runner.app_image import BUILDING

    schedule = defs.resolve_schedule_def("build_app_image_hourly")
    job = defs.resolve_job_def("build_app_image")

    def tick() -> Any:
        from eval_pipeline.defs.resources import EvalsResource

        with dg.build_schedule_context(instance=built.instance, resources={"evals": EvalsResource()}) as context:
            return schedule.evaluate_tick(context)

    assert len(tick().run_requests) == 1 and job.tags["dagster/priority"] == "10"
    before = built.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert before.run_id in str(tick().skip_message) and not tick().run_requests
    built.instance.report_run_canceled(before)
    with _held(built.project.state_dir / "locks" / f"{BUILDING}.lock"):
        assert "by hand" in str(tick().skip_message)
    assert len(tick().run_requests) == 1
    (built.project.worlds / "app.yaml").unlink()
    assert "no app.yaml" in str(tick().skip_message)


class _held:
    """As a build in another process holds it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def __enter__(self) -> None:
        import fcntl

        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def test_what_the_head_depends_on_must_be_known_to_be_old_enough(built: Bench) -> None:
    def looked() -> tuple[bool, dict[str, Any]]:
        (found,) = [one for one in build(built).get_asset_check_evaluations() if one.check_name == "dependency_age"]
        return found.passed, {name: value.value for name, value in found.metadata.items()}

    built.project.agent(AGENT)
    passed, said = looked()
    assert (passed, said["lock_files"]) == (False, "none")
    package = '[[package]]\nname = "a"\nversion = "1"\nsource = {{ registry = "r" }}\nwheels = [{{ url = "u"{time} }}]\n'
    built.project.commit({"uv.lock": package.format(time=', upload-time = "2020-01-01T00:00:00Z"')})
    passed, said = looked()
    assert (passed, said["ok"], said["unknown"]) == (True, 1, 0)
    built.project.commit({"uv.lock": package.format(time="")})
    passed, said = looked()
    assert (passed, said["ok"], said["unknown"]) == (False, 0, 1)
