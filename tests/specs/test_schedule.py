"""When an experiment is due, against Dagster's own reading of cron, and what is refused of a file's `schedule:`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from eval_pipeline.domain.experiment import ScheduleSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.schedule import Seen, check_schedule, due, last_due, next_due

pytestmark = pytest.mark.slow

NIGHTLY = ScheduleSpec(cron="0 2 * * *", timezone="Europe/Berlin")


def written(tmp_path: Path, schedule: object) -> tuple[Library, Path]:
    spec = {"name": "x", "dataset": "all", "app": "tiny", "arms": [{"name": "a", "ref": "main"}], "schedule": schedule}
    path = tmp_path / "experiments" / "x.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return Library(tmp_path), path


@pytest.mark.parametrize("schedule", ["0 2 * * *", {"cron": "*/15 8-18 * * mon-fri", "timezone": "Europe/Berlin"}, "0 0 29 2 *"])
def test_what_may_be_written(tmp_path: Path, schedule: object) -> None:
    library, path = written(tmp_path, schedule)
    found = library.experiment(path)[1].schedule
    assert found == (ScheduleSpec(cron=schedule) if isinstance(schedule, str) else ScheduleSpec.model_validate(schedule))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("0 2 * *", "has not 5 fields"),
        ("0 0 2 * * *", "has not 5 fields"),
        ("@daily", "has not 5 fields"),
        ("61 2 * * *", "Bad minute"),
        ("0 0 30 2 *", "is no time of cron"),
        ({"cron": "0 2 * * *", "timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"cron": "0 2 * * *", "timezone": "../etc"}, "there is no time zone"),
        ({"cron": "0 2 * * *", "timezone": ""}, "there is no time zone"),
        ({"cron": "0 2 * * *", "zone": "UTC"}, "unknown key 'zone'"),
        (5, "schedule"),
    ],
)
def test_what_is_refused_with_its_line(tmp_path: Path, schedule: object, message: str) -> None:
    library, path = written(tmp_path, schedule)
    with pytest.raises(SpecError) as raised:
        library.experiment(path)
    assert message in str(raised.value)
    assert re.match(r".*experiments/x\.yaml:[789]: ", str(raised.value))


@pytest.mark.parametrize("cron", ["0 2 * * *", "*/7 * * * *", "30 23 1 * *", "15 4 * * 0", "0 12 * 1,7 mon-fri"])
@pytest.mark.parametrize("timezone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_due_times_are_those_of_dagster(cron: str, timezone: str) -> None:
    from dagster._utils.schedules import get_latest_completed_cron_tick, get_next_cron_tick

    schedule = ScheduleSpec(cron=cron, timezone=timezone)
    for day in range(0, 360, 23):
        now = datetime(2026, 1, 5, 13, 37, 12, 345, tzinfo=UTC) + timedelta(days=day)
        assert last_due(schedule, now) == get_latest_completed_cron_tick(cron, now, timezone)
        assert next_due(schedule, now) == get_next_cron_tick(cron, now, timezone)


def test_a_time_is_due_from_its_very_moment() -> None:
    at = datetime(2026, 6, 2, 0, 0, tzinfo=UTC)
    assert last_due(NIGHTLY, at) == at
    assert last_due(NIGHTLY, at - timedelta(microseconds=1)) == at - timedelta(days=1)
    assert last_due(NIGHTLY, at + timedelta(microseconds=999_999)) == at


def test_an_hour_that_summer_time_takes_away_or_gives_twice_is_due_once_a_day() -> None:
    half_past = ScheduleSpec(cron="30 2 * * *", timezone="Europe/Berlin")
    for start in (datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 10, 23, tzinfo=UTC)):
        times = {last_due(half_past, start + timedelta(minutes=10 * n)) for n in range(6 * 24 * 5)}
        days = [time.astimezone().date() for time in sorted(times)]
        assert len(days) == len(set(days))


def test_each_due_time_is_dealt_with_once_and_missed_ones_become_one() -> None:
    day = datetime(2026, 6, 1, 12, tzinfo=UTC)
    seen, at = due(NIGHTLY, None, day)
    assert at is None  # what was due before the file was there is not
    assert due(NIGHTLY, seen, day + timedelta(hours=11))[1] is None
    seen, at = due(NIGHTLY, seen, day + timedelta(hours=13))
    assert at == datetime(2026, 6, 2, tzinfo=UTC)
    assert due(NIGHTLY, seen, day + timedelta(hours=14)) == (seen, None)
    _, at = due(NIGHTLY, seen, day + timedelta(days=9))
    assert at == datetime(2026, 6, 10, tzinfo=UTC)


def test_another_schedule_begins_with_its_next_time() -> None:
    seen = Seen(cron="0 2 * * *", timezone="UTC", until="2026-06-01T02:00:00+00:00")
    now = datetime(2026, 6, 2, 12, tzinfo=UTC)
    assert due(NIGHTLY, seen, now)[1] is None


def test_the_operations_page_shows_what_may_be_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (block,) = re.findall(r"```yml\n(schedule:.*?)```", page, re.DOTALL)
    check_schedule(ScheduleSpec.model_validate(yaml.safe_load(block)["schedule"]), "docs")
