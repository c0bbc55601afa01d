"""Secrets from their sources to versions, and from versions to the sandboxes of the phase that declares them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.experiment import SecretRules
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.errors import SpecError
from eval_pipeline.host import host_identity
from eval_pipeline.settings import Settings
from eval_pipeline.specs.library import Library
from eval_pipeline.store.records import Records
from eval_pipeline.store.rows import Claim, OpenAttempt
from eval_pipeline.store.secret_versions import Phase, SecretVersion, SecretVersions, Seen
from eval_pipeline.vault.declared import STAND_IN, Declared, declared_by, declared_now, is_real, pairs_of
from eval_pipeline.vault.held import HeldRedactor
from eval_pipeline.vault.redaction import Redactor
from eval_pipeline.vault.sources import SecretSource, read_secrets, read_what_can_be, sources_of
from eval_pipeline.vault.values import Values

log = logging.getLogger(__name__)

GRACE_S = 3600.0
"""How long a value that is no longer in use is kept: for whoever has read its version and not its value yet."""


@dataclass(frozen=True)
class Delivered:
    """What a phase gets: name -> value, and name -> version. A declared name that could not be had is in neither."""

    values: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class SecretStatus:
    """synced: the version in use, None when there is none. held: its value can be delivered here. too_short: to be redacted.

    max_age_days: of its value; None: it may stay.
    """

    declared: Declared
    synced: SecretVersion | None
    held: bool
    too_short: bool = False
    max_age_days: float | None = None

    @property
    def too_old(self) -> bool:
        """Its rotation is due. What was never had has no age."""
        return self.max_age_days is not None and self.synced is not None and self.synced.value_age_s > self.max_age_days * 86400


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """missing: required names that no source holds now. problem: why a source could not be read, None when all could."""

    looked_in: str
    statuses: list[SecretStatus]
    missing: list[str]
    problem: SpecError | None


@dataclass(frozen=True, kw_only=True)
class Look:
    """At the sources, with nothing written. missing: declared names that none of them holds."""

    n_found: int
    missing: list[str]
    looked_in: str


class Secrets:
    """environ: in place of this process's own environment. Thread-safe; its methods wait for files and for the ledger."""

    def __init__(self, settings: Settings, records: Records, environ: Mapping[str, str] | None = None) -> None:
        self.library = Library(settings.worlds_dir)
        self._records = records
        self._sources: Sequence[SecretSource] = sources_of(settings, environ)
        self._values = Values(settings.state_dir)
        self._redactor = HeldRedactor(self._values)
        self._versions = SecretVersions(records.database, host_identity(settings.state_dir).place)

    # ---- sources to versions

    def sync(self) -> SyncReport:
        """Read every declared name, and remove values that nothing needs any more. What can't be had stays at its last version."""
        declared = declared_now(self.library, self._records)
        found, problem = set[str](), None
        try:
            found, problem = self._sync(declared)
        except SpecError as error:
            problem = error
        self._forget(declared)
        missing = sorted({one.name for one in declared if one.required} - found)
        return SyncReport(looked_in=self._looked_in(), statuses=self._statuses(declared), missing=missing, problem=problem)

    def sync_arms(self, app: str, arms: Iterable[LockedArm]) -> None:
        """Before cells run. Raises SpecError when an arm with a real model lacks a secret; a last good version is good enough."""
        arms = list(arms)
        declared = declared_by(app, arms)
        problem = None
        try:
            if declared:
                _, problem = self._sync(declared)
        except SpecError as error:
            problem = error
        for arm in arms:
            if is_real(arm) and (missing := self._not_held(arm.manifest)):
                raise problem or self._lacking(arm, missing)
        if problem is not None:
            log.warning("secrets stay at their last version: %s", problem)

    def _sync(self, declared: Iterable[Declared]) -> tuple[set[str], SpecError | None]:
        """Returns the names that were found, and why others could not be asked for. Raises SpecError when none could."""
        pairs: list[tuple[str, Phase]] = [(one.name, one.phase) for one in declared]
        with self._values.exclusive():
            found, problem = read_what_can_be(self._sources, {name for name, _ in pairs})
            versions = {name: self._values.put(name, one.value) for name, one in found.items()}
            self._versions.seen(
                Seen(name=name, phase=phase, version=versions[name], source=found[name].source, changed_at=found[name].changed_at)
                for name, phase in pairs
                if name in versions
            )
        return set(found), problem

    def _forget(self, declared: Iterable[Declared]) -> None:
        wanted = {(one.name, one.phase) for one in declared}
        with self._values.exclusive():
            in_use = {(one.name, one.version) for one in self._versions.in_use() if (one.name, one.phase) in wanted}
            self._values.keep_only(in_use | self._versions.seen_within(GRACE_S) | self._versions.named_by_open_attempts())

    # ---- what there is

    def look(self) -> Look:
        """Raises SpecError when a source can't be read, be it in part."""
        names = {one.name for one in declared_now(self.library, self._records)}
        found = read_secrets(self._sources, names)
        return Look(n_found=len(found), missing=sorted(names - set(found)), looked_in=self._looked_in())

    def statuses(self) -> list[SecretStatus]:
        """Of every declared name, without reading a source."""
        return self._statuses(declared_now(self.library, self._records))

    def _statuses(self, declared: Iterable[Declared]) -> list[SecretStatus]:
        in_use = {(one.name, one.phase): one for one in self._versions.in_use()}
        synced = [(one, in_use.get((one.name, one.phase))) for one in declared]
        too_short = self._redactor().too_short
        app = self.library.the_app()
        rules = SecretRules() if app is None else app.secrets
        return [
            SecretStatus(
                declared=one,
                synced=it,
                held=it is not None and self._held(it),
                too_short=one.name in too_short,
                max_age_days=rules.max_age_of(one.name),
            )
            for one, it in synced
        ]

    def _held(self, version: SecretVersion) -> bool:
        return self._values.get(version.name, version.version) is not None

    def _not_held(self, manifest: AppManifest) -> list[str]:
        had = {(one.name, one.phase) for one in self._versions.in_use() if self._held(one)}
        return sorted({name for name, _ in pairs_of(manifest) - had})

    def require(self, arm: LockedArm) -> None:
        """Raise SpecError when an arm with a real model can't have a declared secret. Writes nothing: for before anything is spent."""
        names = {*arm.manifest.secrets.build, *arm.manifest.secrets.agent}
        if not names or not is_real(arm):
            return
        left = names - set(read_secrets(self._sources, names))
        if missing := sorted(left.intersection(self._not_held(arm.manifest))):
            raise self._lacking(arm, missing)

    def _looked_in(self) -> str:
        return ", ".join(source.where for source in self._sources)

    def _lacking(self, arm: LockedArm, missing: Sequence[str]) -> SpecError:
        file = self._sources[0].where.removesuffix(" (there is none)")
        return SpecError(
            f"arm {arm.name!r} uses the model {arm.config.get('model')!r}, but {', '.join(missing)} could not be had;"
            f" looked in: {self._looked_in()}",
            hint=f"write {missing[0]}=... into {file} (mode 0600), or export it,"
            f" or set `model: {STAND_IN}` for a run without a key",
        )

    # ---- versions to what must not be written

    def redactor(self, attempt_id: int | None = None) -> Redactor:
        """Of every value that is kept here: those in use, and those that an open attempt was given.

        attempt_id: whose output it is for. Raises SpecError when a secret that it was given can't be had: its value may be in there.
        """
        given = {} if attempt_id is None else self._versions.given(attempt_id)
        if given and (unheld := given.keys() - self._held_names()):
            self.values(unheld, "agent")
            if lost := unheld - self._held_names():
                hint = f"this place needs them to redact what was written with them; looked in: {self._looked_in()}"
                raise SpecError(f"{', '.join(sorted(lost))} could not be had", hint=hint)
        return self._redactor()

    def _held_names(self) -> set[str]:
        return {name.rpartition(".")[0] for name in self._values.names()}

    def token(self, purpose: str) -> str:
        return self._values.token(purpose)

    # ---- versions to sandboxes

    def for_build(self, manifest: AppManifest) -> Delivered:
        """For the commands `build` and `reset`; nothing else of a build may see them."""
        return self.values(manifest.secrets.build, "build")

    def for_agent(self, manifest: AppManifest) -> Delivered:
        """For the services and the agent of a sandbox that no attempt owns yet; one that has an attempt goes through `deliver`."""
        return self.values(manifest.secrets.agent, "agent")

    def values(self, names: Collection[str], phase: Phase) -> Delivered:
        """The versions in use of `names`, as far as there are any."""
        if not names:
            return Delivered()
        versions = self._in_use(names, phase)
        if len(versions) < len(set(names)) or len(self._load(versions).values) < len(versions):
            self._sync(Declared(name=name, phase=phase, apps=(), required=True) for name in names)
            versions = self._in_use(names, phase)
        return self._load(versions)

    def deliver(self, claim: Claim, attempt: OpenAttempt, arm: LockedArm) -> Delivered:
        """What the attempt's sandbox gets; its evidence notes the versions. One that is adopted keeps what it was given.

        Raises FenceLost, and SpecError when an arm with a real model would lack a secret: its failure would count.
        """
        names = arm.manifest.secrets.agent
        if not names or attempt.agent_started_at is not None:
            return Delivered()
        given = self._versions.give(claim, attempt.id, names)
        delivered = self._load(given)
        if len(delivered.values) < len(given):  # what was kept in memory went with a restart of the machine
            there = self.values(names, "agent").versions
            delivered = self._load(self._versions.give(claim, attempt.id, there, again=True))
        if is_real(arm) and (missing := sorted(set(names) - set(delivered.values))):
            raise self._lacking(arm, missing)
        return delivered

    def _in_use(self, names: Collection[str], phase: Phase) -> dict[str, str]:
        return {one.name: one.version for one in self._versions.in_use() if one.phase == phase and one.name in names}

    def _load(self, versions: Mapping[str, str]) -> Delivered:
        """Those of the versions whose value is kept here."""
        values = {name: value for name, version in versions.items() if (value := self._values.get(name, version)) is not None}
        return Delivered(values, {name: versions[name] for name in values})
