"""Secrets on Modal: what the server holds after each sync, what a command in a sandbox was given, and where that came from."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.modal_loopback import LoopbackModal
from support.project import Project

from eval_pipeline.errors import SpecError
from eval_pipeline.runner.backends import place_of
from eval_pipeline.runner.modal_secrets import Written, owner_key, sync_to_modal, synced_secret
from eval_pipeline.sandbox.base import Phase, SandboxSpec
from eval_pipeline.sandbox.modal import ModalBackend
from eval_pipeline.settings import ModalSettings, Settings
from eval_pipeline.store.layer_refs import LedgerRefs
from eval_pipeline.store.layers import LayerRows
from eval_pipeline.store.modal_secrets import ModalSecretRows
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.vault.delivery import Secrets
from eval_pipeline.vault.values import Values

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Keeper:
    """An installation with an app on Modal that declares secrets."""

    project: Project
    settings: Settings
    records: Records
    server: LoopbackModal

    def write(self, text: str) -> None:
        path = self.settings.secrets_file
        path.touch(mode=0o600)
        path.write_text(text)

    def declare(self, **phases: list[str]) -> None:
        self.project.manifest(secrets=phases)
        self.project.commit({"bin/agent": "#!/bin/sh\n"})

    async def sync(self) -> dict[str, str]:
        vault = Secrets(self.settings, self.records, {})
        vault.sync()
        done: list[Written] = await sync_to_modal(self.settings, self.records, vault)
        return {one.name.removeprefix(f"{self.settings.modal.app}-tiny-"): one.done for one in done}

    def held(self, phase: str) -> dict[str, str] | None:
        return self.server.state()["secrets"].get(f"{self.settings.modal.app}-tiny-{phase}")

    def values(self, phase: str) -> dict[str, str] | None:
        held = self.held(phase)
        return None if held is None else {key: value for key, value in held.items() if not key.startswith("EVALS_")}

    async def seen_by_a_command(self, names: list[str], *, values: dict[str, str] | None = None) -> str:
        """In a fresh sandbox that is given the versions in use. values: in place of those that would be sent one by one."""
        given = Secrets(self.settings, self.records, {}).values(names, "agent")
        synced = synced_secret(self.settings, self.records, "agent", given.versions)
        rows = LayerRows(self.records.database, "modal", place_of(self.settings, "modal"))
        backend = ModalBackend("i", self.settings.modal, LedgerRefs(rows))
        sent = given.values if values is None else values
        sandbox = await backend.get_or_create(
            SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="i", secrets=sent, synced=synced)
        )
        try:
            await sandbox.start("c", ["sh", "-c", "echo $A/$B/$C"], env={}, workdir="/", with_secrets=True)
            await sandbox.start("d", ["sh", "-c", "echo $A/$B/$C"], env={}, workdir="/")
            for command in ("c", "d"):
                while (await sandbox.state(command)).phase is Phase.RUNNING:
                    pass
            assert (await sandbox.logs("d"))[0] == b"//\n", "a command without secrets sees none"
            return (await sandbox.logs("c"))[0].decode().strip()
        finally:
            await sandbox.terminate()


@pytest.fixture
def keeper(modal_server: LoopbackModal, settings: Settings, state_dir: Path) -> Generator[Keeper]:
    project = Project(state_dir / "p", state_dir)
    project.write("app.yaml", {"name": "tiny", "repo": "app", "path": ".", "backends": ["modal"]})
    modal = ModalSettings(app=f"t-{secrets.token_hex(6)}", max_sandboxes=20)
    mine = replace(settings, worlds_dir=project.worlds, modal=modal)
    with open_records(mine) as records:
        made = Keeper(project, mine, records, modal_server)
        made.declare(agent=["A", "B"], build=["C"])
        made.write("A=a1\nB=b1\nC=c1\n")
        yield made
    shutil.rmtree(Values(state_dir).folder)
    modal_server.order()


async def test_changes_and_removals_take_effect(keeper: Keeper) -> None:
    assert await keeper.sync() == {"agent": "written", "build": "written"}
    assert (keeper.values("agent"), keeper.values("build")) == ({"A": "a1", "B": "b1"}, {"C": "c1"})
    assert await keeper.sync() == {"agent": "kept", "build": "kept"}
    rows = ModalSecretRows(keeper.records.database, place_of(keeper.settings, "modal"))
    before = {row.phase: row for row in rows.all()}
    keeper.write("A=value-2\nB=b1\nC=c1\n")
    assert await keeper.sync() == {"agent": "written", "build": "kept"}
    assert keeper.values("agent") == {"A": "value-2", "B": "b1"}
    after = {row.phase: row for row in rows.all()}
    assert after["agent"].version != before["agent"].version and after["build"].version == before["build"].version
    assert (
        after["agent"].versions["B"] == before["agent"].versions["B"] and after["agent"].written_at != before["agent"].written_at
    )
    keeper.declare(agent=["A"])
    assert await keeper.sync() == {"agent": "written", "build": "removed"}
    assert (keeper.values("agent"), keeper.held("build")) == ({"A": "value-2"}, None)
    assert "value-2" not in str(rows.all())
    keeper.project.write("app.yaml", {"name": "tiny", "repo": "app", "path": "."})
    assert await keeper.sync() == {"agent": "removed"}
    assert keeper.held("agent") is None and rows.all() == []


async def test_a_command_is_given_the_named_one_while_it_is_of_its_version(keeper: Keeper) -> None:
    await keeper.sync()
    wrong = {"A": "sent", "B": "one by one"}
    assert await keeper.seen_by_a_command(["A", "B"], values=wrong) == "a1/b1/", "from the Secret, and no other phase's"
    assert await keeper.seen_by_a_command(["A"]) == "a1//", "a Secret with more names than were declared is not for it"
    name = f"{keeper.settings.modal.app}-tiny-agent"
    import modal

    await modal.Secret.objects.delete.aio(name)
    assert await keeper.seen_by_a_command(["A", "B"], values=wrong) == "sent/one by one/", "it has gone since"
    await modal.Secret.objects.create.aio(name, {"A": "not", "B": "ours"})
    assert await keeper.seen_by_a_command(["A", "B"], values=wrong) == "sent/one by one/", "it is another's"


async def test_two_installations_never_overwrite_one_another(keeper: Keeper) -> None:
    import modal

    name = f"{keeper.settings.modal.app}-tiny-agent"
    await modal.Secret.objects.create.aio(name, {"A": "theirs", owner_key("another"): "1"})
    with pytest.raises(SpecError, match="not written by this installation") as refused:
        await keeper.sync()
    assert refused.value.hint is not None and "EVALS_MODAL_APP" in refused.value.hint
    assert keeper.values("agent") == {"A": "theirs"}
    assert await keeper.seen_by_a_command(["A", "B"]) == "a1/b1/"


@pytest.mark.parametrize("method", ["SecretGetOrCreate", "SecretDelete"])
async def test_an_answer_that_is_lost_leaves_nothing_half_done(method: str, keeper: Keeper) -> None:
    await keeper.sync()
    keeper.write("A=a2\nB=b2\nC=c2\n")
    keeper.server.order({"method": method, "kind": "lost_answer", "times": 2})
    assert set((await keeper.sync()).values()) <= {"written", "kept"}
    keeper.server.order()
    assert await keeper.sync() == {"agent": "kept", "build": "kept"}
    assert (keeper.values("agent"), keeper.values("build")) == ({"A": "a2", "B": "b2"}, {"C": "c2"})
