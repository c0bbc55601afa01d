"""When an experiment is due: `schedule:` in its file, five fields of cron in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from eval_pipeline.domain.experiment import ScheduleSpec
from eval_pipeline.errors import SpecError


def check_schedule(schedule: ScheduleSpec, where: str) -> None:
    """Raises SpecError for what is no cron expression, what is never due, and for an unknown time zone."""
    if len(schedule.cron.split()) != 5:  # the library would take a sixth for seconds
        fields = "minute, hour, day of the month, month, day of the week"
        raise SpecError(f"schedule: {schedule.cron!r} has not 5 fields", where=where, hint=f'write {fields}: "0 2 * * *"')
    try:
        ZoneInfo(schedule.timezone)
    except (OSError, ValueError):  # ZoneInfoNotFoundError is a KeyError by its letter, and an OSError for a folder
        raise _no_zone(schedule, where) from None
    except KeyError:
        raise _no_zone(schedule, where) from None
    try:
        next_due(schedule, datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, StopIteration) as error:
        said = str(error) or "it is never due"
        raise SpecError(
            f"schedule: {schedule.cron!r} is no time of cron: {said}", where=where, hint='for example "0 2 * * 1-5"'
        ) from None


def _no_zone(schedule: ScheduleSpec, where: str) -> SpecError:
    hint = "write UTC, or a name such as Europe/Berlin"
    return SpecError(f"schedule: there is no time zone {schedule.timezone!r}", where=where, hint=hint)


def next_due(schedule: ScheduleSpec, now: datetime) -> datetime:
    """After `now`, in UTC."""
    return next(CronSim(schedule.cron, now.astimezone(ZoneInfo(schedule.timezone)))).astimezone(UTC)


def last_due(schedule: ScheduleSpec, now: datetime) -> datetime:
    """At or before `now`, in UTC."""
    after = now.astimezone(ZoneInfo(schedule.timezone)) + timedelta(microseconds=1)  # it looks strictly before a time
    return next(CronSim(schedule.cron, after, reverse=True)).astimezone(UTC)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a file's schedule: as it was written, and up to when its due times are dealt with."""

    cron: str
    timezone: str
    until: str


def due(schedule: ScheduleSpec, seen: Seen | None, now: datetime) -> tuple[Seen, datetime | None]:
    """What to keep, and the due time to start now. Of several missed ones that is the last; a schedule that is new, or has another text than
    before, begins with its next."""
    fresh = Seen(cron=schedule.cron, timezone=schedule.timezone, until=now.astimezone(UTC).isoformat())
    if seen is None or (seen.cron, seen.timezone) != (schedule.cron, schedule.timezone):
        return fresh, None
    last = last_due(schedule, now)
    if last <= datetime.fromisoformat(seen.until):
        return seen, None
    return Seen(cron=schedule.cron, timezone=schedule.timezone, until=last.isoformat()), last
