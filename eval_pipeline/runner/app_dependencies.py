"""How old the packages are that the app's lock files name at a commit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_app
from eval_pipeline.vault.publish_times import PublishTimes
from eval_pipeline.vault.supply_chain import Age, Aged, Package, ages, is_lock, read_lock, with_times


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """commit: None for a working tree. unread: lock file -> why it can't be read."""

    ref: str
    commit: str | None
    min_age_days: float
    locks: list[str]
    unread: dict[str, str]
    packages: list[Aged]

    def count(self, age: Age) -> int:
        return sum(one.age is age for one in self.packages)

    @property
    def fine(self) -> bool:
        """Every package of every lock file is known to be old enough. Without any lock file nothing is known."""
        return bool(self.locks) and not self.unread and self.count(Age.OK) == len(self.packages)


def app_dependencies(settings: Settings, library: Library, ref: str | None = None) -> Dependencies:
    """At `ref`; None: the branch of app.yaml. Raises SpecError for a ref that isn't there."""
    app = library.only_app()
    repo = library.app_repo(app)
    arm = lock_app(repo, app.path, ref or app.branch)
    packages: list[Package] = []
    unread: dict[str, str] = {}
    locks = {path: entry for path, entry in git.entries(repo, arm.tree).items() if is_lock(path) and entry.mode != "120000"}
    for path, entry in sorted(locks.items()):
        try:
            packages += read_lock(path, git.blob(repo, entry.blob))
        except SpecError as error:
            unread[path] = str(error)
    supply = settings.supply_chain
    times, unknown = PublishTimes(supply.indexes, settings.state_dir / "publish-times.json").find(packages)
    aged = ages(with_times(packages, times, unknown), datetime.now(UTC), supply.min_age_days)
    return Dependencies(
        ref=arm.ref, commit=arm.commit, min_age_days=supply.min_age_days, locks=sorted(locks), unread=unread, packages=aged
    )
