"""From files through the real ledger to what an attempt is given: rotation, what goes missing, adoption, retention."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.ledgers import Books, keys
from support.locks import MANIFEST, locked_arm
from support.project import Project

from eval_pipeline.domain.app import SecretNames
from eval_pipeline.domain.lock import LockedArm, RunLock
from eval_pipeline.errors import FenceLost, SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.records import Records
from eval_pipeline.store.rows import Claim, OpenAttempt
from eval_pipeline.vault.delivery import Delivered, Secrets, SecretStatus
from eval_pipeline.vault.values import Values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("swept")]

HOUR_S = 3600


class Vault:
    """A project whose app declares secrets, its file of secrets, and the ledger."""

    def __init__(self, folder: Path, books: Books) -> None:
        self.books = books
        self.project = Project(folder / "project", folder)
        self.settings = Settings(state_dir=folder, worlds_dir=self.project.worlds)
        self.records = Records(
            database=books.database, ledger=books.ledger, leases=books.leases, verdicts=books.verdicts, views=books.views
        )
        self.values = Values(folder)

    def declare(self, **names: list[str]) -> None:
        self.project.manifest(secrets=names)
        self.project.agent("answer yes")

    def write(self, **values: str) -> None:
        path = self.settings.secrets_file
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    def secrets(self, environ: Mapping[str, str] | None = None) -> Secrets:
        return Secrets(self.settings, self.records, environ or {})

    def pass_time(self, seconds: float) -> None:
        """As if every sync until now had been so long ago."""
        past = sa.text(
            "update evals.secret_versions set last_seen = last_seen - make_interval(secs => :s), synced_at = synced_at - make_interval(secs => :s)"
        )
        self.books.database.run(lambda c: c.execute(past, {"s": seconds}))

    def evidence(self, attempt: OpenAttempt) -> Any:
        return self.books.attempt_row(attempt).evidence

    def attempt(self, arm: LockedArm) -> tuple[RunLock, Claim, OpenAttempt]:
        run = self.books.experiment(arms=[arm], name=f"x{os.urandom(4).hex()}")
        claim = self.books.claim(run)
        return run, claim, self.books.begin(claim)

    def given(self, arm: LockedArm) -> Delivered:
        _, claim, attempt = self.attempt(arm)
        return self.secrets().deliver(claim, attempt, arm)


@pytest.fixture
def vault(state_dir: Path, database_url: str) -> Generator[Vault]:
    books = Books(database_url)
    yield Vault(state_dir, books)
    books.database.close()


def arm(*agent: str, build: tuple[str, ...] = (), model: str = "real") -> LockedArm:
    names = SecretNames(agent=agent, build=build)
    return locked_arm(manifest=MANIFEST.model_copy(update={"secrets": names}), config={"model": model})


def by_name(statuses: list[SecretStatus]) -> dict[str, SecretStatus]:
    return {f"{one.declared.name}/{one.declared.phase}": one for one in statuses}


def test_a_sync_reads_what_the_branch_declares_and_nothing_else(vault: Vault) -> None:
    vault.declare(agent=["A", "C"], build=["B", "C"])
    vault.write(A="va", B="vb", C="vc", UNDECLARED="vu")
    report = vault.secrets({"D": "vd"}).sync()
    assert (report.missing, report.problem) == ([], None)
    statuses = by_name(report.statuses)
    assert set(statuses) == {"A/agent", "B/build", "C/agent", "C/build"}
    assert all(one.held and one.declared.apps == ("tiny",) for one in statuses.values())
    assert {path.read_text() for path in vault.values.folder.iterdir()} == {"va", "vb", "vc"}
    synced = statuses["A/agent"].synced
    assert synced is not None and synced.source == "file" and 0 <= synced.age_s < 60
    everything = vault.books.database.run(lambda c: str(c.execute(sa.text("select * from evals.secret_versions")).all()))
    assert not any(value in everything for value in ("'va'", "'vb'", "'vc'"))


def test_each_phase_gets_its_own(vault: Vault) -> None:
    vault.declare(agent=["A"], build=["B"])
    vault.write(A="va", B="vb")
    manifest = arm("A", build=("B",)).manifest
    assert vault.secrets().for_build(manifest).values == {"B": "vb"}
    assert vault.secrets().for_agent(manifest).values == {"A": "va"}
    vault.secrets().sync()
    assert vault.secrets().values(["A", "B"], "build").values == {"A": "va", "B": "vb"}  # whoever asks by name decides
    assert "va" not in repr(vault.secrets().for_agent(manifest))


def test_a_rotated_value_reaches_the_next_attempt_and_not_the_one_before(vault: Vault) -> None:
    vault.declare(agent=["A"])
    vault.write(A="old")
    vault.secrets().sync()
    one = arm("A")
    _, claim, attempt = vault.attempt(one)
    first = vault.secrets().deliver(claim, attempt, one)
    vault.write(A="new")
    assert vault.given(one).values == {"A": "old"}  # nobody has synced
    report = vault.secrets().sync()
    rotated = vault.given(one)
    assert (first.values, rotated.values) == ({"A": "old"}, {"A": "new"})
    assert first.versions != rotated.versions == {"A": by_name(report.statuses)["A/agent"].synced.version}  # pyright: ignore[reportOptionalMemberAccess]
    assert vault.secrets().deliver(claim, attempt, one) == first  # whoever adopts it
    assert vault.evidence(attempt) == {"secrets": dict(first.versions)}
    vault.write(A="old")
    vault.secrets().sync()
    assert vault.given(one).versions == first.versions


def test_what_an_attempt_was_given_stays_in_its_evidence(vault: Vault) -> None:
    vault.write(A="va")
    one = arm("A")
    vault.secrets().sync_arms("tiny", [one])
    run, claim, attempt = vault.attempt(one)
    given = vault.secrets().deliver(claim, attempt, one)
    vault.books.finish(claim, attempt, evidence={"isolation": {"level": 1}})
    (key,) = keys(run)
    counted = vault.books.cell(key).counted
    assert counted is not None and counted.evidence == {"isolation": {"level": 1}, "secrets": dict(given.versions)}


def test_a_started_agent_is_given_nothing_more(vault: Vault) -> None:
    vault.write(A="va")
    one = arm("A")
    vault.secrets().sync_arms("tiny", [one])
    run, claim, attempt = vault.attempt(one)
    vault.secrets().deliver(claim, attempt, one)
    vault.books.ledger.agent_started(claim, attempt.id, 60)
    vault.books.expire(claim.engine_id)
    adopted = vault.books.claim(run)
    assert adopted.open_attempt is not None
    assert vault.secrets().deliver(adopted, adopted.open_attempt, one) == Delivered()
    with pytest.raises(FenceLost):
        vault.secrets().deliver(claim, attempt, one)


def test_a_secret_that_goes_missing_stays_at_its_last_version(vault: Vault) -> None:
    vault.declare(agent=["A", "B"])
    vault.write(A="va", B="vb")
    vault.secrets().sync()
    vault.write(B="vb")
    vault.pass_time(3 * HOUR_S)
    report = vault.secrets().sync()
    assert (report.missing, report.problem) == (["A"], None)
    statuses = by_name(report.statuses)
    assert statuses["A/agent"].held and statuses["A/agent"].synced.unseen_s >= 3 * HOUR_S  # pyright: ignore[reportOptionalMemberAccess]
    assert statuses["B/agent"].synced.unseen_s < 60 < 3 * HOUR_S <= statuses["B/agent"].synced.age_s  # pyright: ignore[reportOptionalMemberAccess]
    one = arm("A", "B")
    vault.secrets().require(one)
    vault.secrets().sync_arms("tiny", [one])
    assert vault.given(one).values == {"A": "va", "B": "vb"}


def test_a_file_that_others_can_read_stops_new_secrets_and_not_the_old(vault: Vault) -> None:
    vault.declare(agent=["A", "B"])
    vault.write(A="va")
    vault.secrets().sync()
    vault.write(A="va2", B="canary")
    vault.settings.secrets_file.chmod(0o644)
    report = vault.secrets().sync()
    assert "0644" in str(report.problem) and "canary" not in repr(report) and report.missing == ["A", "B"]
    vault.secrets().sync_arms("tiny", [arm("A")])
    assert vault.given(arm("A")).values == {"A": "va"}
    with pytest.raises(SpecError, match="0644"):
        vault.secrets().sync_arms("tiny", [arm("A"), arm("B")])
    with pytest.raises(SpecError, match="0644"):
        vault.secrets().require(arm("A"))


def test_values_are_kept_for_open_attempts_and_a_grace_and_no_longer(vault: Vault) -> None:
    vault.declare(agent=["A"])
    one = arm("A")

    def kept() -> set[str]:
        vault.secrets().sync()
        return {path.read_text() for path in vault.values.folder.iterdir()}

    vault.write(A="named")
    vault.secrets().sync()
    _, claim, attempt = vault.attempt(one)
    vault.secrets().deliver(claim, attempt, one)
    vault.write(A="between")
    assert kept() == {"named", "between"}
    vault.write(A="now")
    assert kept() == {"named", "between", "now"}  # the grace
    vault.pass_time(2 * HOUR_S)
    assert kept() == {"named", "now"}
    vault.books.finish(claim, attempt)
    vault.books.leases.close_engine(claim.engine_id)
    assert kept() == {"now"}
    vault.declare(agent=["OTHER"])
    assert kept() == {"now"}  # the grace again
    vault.pass_time(2 * HOUR_S)
    assert kept() == set()


def test_a_restart_of_the_machine_takes_the_values_and_the_next_attempt_reads_them_again(vault: Vault) -> None:
    one = arm("A")
    vault.write(A="before")
    vault.secrets().sync_arms("tiny", [one])
    before = vault.given(one)
    shutil.rmtree(vault.values.folder)
    vault.write(A="after")
    _, claim, attempt = vault.attempt(one)
    given = vault.secrets().deliver(claim, attempt, one)
    assert given.values == {"A": "after"} and given.versions != before.versions
    assert vault.evidence(attempt)["secrets"] == given.versions
    shutil.rmtree(vault.values.folder)
    vault.write()
    with pytest.raises(SpecError, match="A could not be had"):
        vault.given(one)
    assert vault.given(arm("A", model="stand-in")) == Delivered()


def test_an_arm_that_lacks_a_secret_of_either_phase_is_refused(vault: Vault) -> None:
    vault.write(A="va")
    for one in (arm("A", "B"), arm("A", build=("B",))):
        for refuses in (vault.secrets().require, lambda one: vault.secrets().sync_arms("tiny", [one])):
            with pytest.raises(
                SpecError, match=f"B could not be had; looked in: the file {vault.settings.secrets_file}, the"
            ) as caught:
                refuses(one)
            assert "B=..." in (caught.value.hint or "") and "stand-in" in (caught.value.hint or "")
        vault.secrets({"B": "from the shell"}).require(one)
    vault.secrets().sync_arms("tiny", [arm("A", "B", model="stand-in")])
    vault.secrets().require(arm("A", "B", model="stand-in"))


def test_what_runs_now_counts_as_declared(vault: Vault) -> None:
    """An arm of another commit than the branch's head, while an engine works on it."""
    vault.declare()
    vault.write(A="va", B="vb")
    assert vault.secrets().sync().statuses == []
    _, claim, attempt = vault.attempt(arm("A", "MISSING", model="stand-in"))
    report = vault.secrets().sync()
    assert [(one.declared.name, one.declared.required) for one in report.statuses] == [("A", False), ("MISSING", False)]
    assert report.missing == []
    vault.books.finish(claim, attempt)
    vault.books.leases.close_engine(claim.engine_id)
    assert vault.secrets().statuses() == []


@pytest.mark.parametrize("name", ["../escape", "A-B", "1A", "", "A.B", "EVALS_POSTGRES_URL", "A" * 129])
def test_names_that_no_app_may_declare(name: str) -> None:
    with pytest.raises(ValueError, match=r"secret|environment variable"):
        SecretNames.model_validate({"agent": [name]}, strict=False)
