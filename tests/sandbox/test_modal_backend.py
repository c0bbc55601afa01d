"""The Modal backend where the contract is silent: what it asks of Modal, and what it makes of Modal's faults."""

from __future__ import annotations

import asyncio
import io
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import modal
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.modal_loopback import LoopbackModal, backend

from eval_pipeline.errors import BuildError, SandboxError, SandboxLost, SpecError, StoreError
from eval_pipeline.sandbox import modal_plan as plan
from eval_pipeline.sandbox import modal_worlds
from eval_pipeline.sandbox.base import CommandState, Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local import script
from eval_pipeline.sandbox.modal import ModalBackend
from eval_pipeline.sandbox.modal_sandbox import ModalSandbox
from eval_pipeline.sandbox.modal_scripts import ROOT_ENVIRONMENT, START, decode_tags, encode_tags
from eval_pipeline.settings import ModalSettings, load_settings

pytestmark = pytest.mark.anyio
Make = Callable[..., ModalBackend]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def app() -> str:
    return f"t-{secrets.token_hex(6)}"


@pytest.fixture
def make(modal_server: LoopbackModal, app: str, state_dir: Path) -> Any:
    yield lambda **more: backend("a", app, state_dir, **more)
    modal_server.order()

    async def end() -> None:
        made = backend("a", app, state_dir)
        for info in await made.list():
            if (found := await made.find(info.name)) is not None:
                await found.terminate()

    asyncio.run(end())


def spec(**more: Any) -> SandboxSpec:
    named: dict[str, Any] = {"name": f"e-{secrets.token_hex(12)}", "installation": "a"}
    return SandboxSpec(**named | more)


async def ended(sandbox: Sandbox, command_id: str = "c") -> CommandState:
    async with asyncio.timeout(60):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.02)
    return state


async def run(sandbox: Sandbox, script: str, command_id: str = "c") -> CommandState:
    await sandbox.start(command_id, ["sh", "-c", script], env={}, workdir="/out")
    return await ended(sandbox, command_id)


# ---- what is asked of Modal


@pytest.mark.slow
async def test_the_settings_reach_the_sandbox(modal_server: LoopbackModal, app: str, state_dir: Path) -> None:
    from support.modal_loopback import FileRefs

    settings = ModalSettings(app=app, region="eu-west", runtime="gvisor", max_sandboxes=10)
    made = ModalBackend("a", settings, FileRefs(state_dir / "refs.json"))
    sandbox = await made.get_or_create(
        spec(egress=["api.openai.com:443", plan.MODEL_STAND_IN], tags={"cell": "x/y.z/a b/0"}, lifetime_s=77.9)
    )
    (seen,) = modal_server.sandboxes(app)
    assert (seen["regions"], seen["runtime"], seen["timeout_s"], seen["domains"]) == (
        ["eu-west"],
        "gvisor",
        77,
        ["api.openai.com"],
    )
    assert seen["tags"]["evals-installation"] == "a"
    assert [info.tags for info in await made.list()] == [{"cell": "x/y.z/a b/0"}]
    await sandbox.terminate()


@pytest.mark.slow
async def test_a_world_is_uploaded_once_and_goes_on_where_it_was(
    make: Make, modal_server: LoopbackModal, state_dir: Path
) -> None:
    world = state_dir / "world"
    world.mkdir()
    for number in range(4):
        (world / f"{number}.bin").write_bytes(os.urandom(3000))
    (world / "big.bin").write_bytes(os.urandom(9 << 20))
    before = modal_server.state()["block_puts"]
    modal_server.order({"method": "VolumePutFiles2", "kind": "unavailable", "times": 40})
    with pytest.raises(SandboxError):
        await make().get_or_create(spec(world=world))
    modal_server.order()
    sandbox = await make().get_or_create(spec(world=world))
    assert modal_server.state()["block_puts"] - before == 4 + 2 + 1, "the files' blocks, and the record"
    assert (await run(sandbox, "sha256sum /world/*.bin >sums && cd /world && sha256sum -c /out/sums")).exit_code == 0
    await make().get_or_create(spec(world=world))
    assert modal_server.state()["block_puts"] - before == 7
    (world / "0.bin").write_bytes(b"changed")
    other = await make().get_or_create(spec(world=world))
    assert (await run(other, "grep -q changed /world/0.bin")).exit_code == 0
    assert (await run(sandbox, "grep -q changed /world/0.bin", "again")).exit_code == 1


@pytest.mark.slow
async def test_an_upload_that_breaks_off_goes_on_where_it_was(
    make: Make, modal_server: LoopbackModal, app: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modal_worlds, "_PART", 2)
    world = state_dir / "world"
    (world / "deep").mkdir(parents=True)
    for number in range(6):
        (world / "deep" / f"{number}.bin").write_bytes(os.urandom(3000))
    (world / "deep" / "0.bin").chmod(0o755)
    made, before = make(), modal_server.state()["block_puts"]
    await made.base_layer()
    # asked once for what is missing and once more with it: the third part does not get through
    modal_server.order({"method": "VolumePutFiles2", "kind": "unavailable", "after": 4, "times": 40})
    with pytest.raises(SandboxError):
        await made.get_or_create(spec(world=world))
    modal_server.order()
    sent = modal_server.state()["block_puts"] - before
    assert sent == 4
    calls = modal_server.state()["calls"]["VolumePutFiles2"]
    # one of them arrived with another content of the same size
    volume = await modal.Volume.from_name(f"{app}-worlds", version=2).hydrate.aio()
    (folder,) = [entry.path async for entry in volume.iterdir.aio("/worlds", recursive=False)]
    async with volume.batch_upload.aio(force=True) as batch:
        batch.put_file(io.BytesIO(b"x" * 3000), f"/{folder}/deep/1.bin")
    sandbox = await make().get_or_create(spec(world=world))
    assert modal_server.state()["block_puts"] - before == 4 + 1 + 2 + 1, "the foreign block, the other two files, the record"
    assert modal_server.state()["calls"]["VolumePutFiles2"] - calls == 2 + 2 + 1 + 2, "none for the files that are there"
    await run(sandbox, "cd /world && sha256sum deep/*; stat -c %a deep/0.bin")
    said = (await sandbox.logs("c"))[0].decode().splitlines()
    assert (
        said[:-1] == [f"{sha256((world / name).read_bytes()).hexdigest()}  {name}" for name in _names(world)]
        and said[-1] == "755"
    )


def _names(world: Path) -> list[str]:
    return sorted(str(path.relative_to(world)) for path in world.rglob("*.bin"))


@pytest.mark.slow
async def test_a_world_that_somebody_changed_is_refused(make: Make, app: str, state_dir: Path) -> None:
    world = state_dir / "world"
    world.mkdir()
    (world / "a.txt").write_text("as it left")
    await make().get_or_create(spec(world=world))
    volume = await modal.Volume.from_name(f"{app}-worlds", version=2).hydrate.aio()
    (folder,) = [entry.path async for entry in volume.iterdir.aio("/worlds", recursive=False) if not entry.path.endswith(".json")]
    async with volume.batch_upload.aio(force=True) as batch:
        batch.put_file(io.BytesIO(b"something else"), f"/{folder}/a.txt")
    with pytest.raises(StoreError, match="never changes"):
        await make().get_or_create(spec(world=world))


@pytest.mark.slow
async def test_an_image_that_does_not_build_says_why(make: Make) -> None:
    with pytest.raises(BuildError, match="exactly this"):
        await make().base_layer(dockerfile=b"FROM debian:12\nRUN echo exactly this >&2; exit 3\n")


@pytest.mark.slow
async def test_a_dockerfile_is_what_a_sandbox_stands_on(make: Make) -> None:
    made = make()
    ref = await made.base_layer(dockerfile=b'FROM debian:12\nENV GREETING="from the image"\nRUN echo yes >/opt/file\n')
    assert await made.base_layer(dockerfile=b'FROM debian:12\nENV GREETING="from the image"\nRUN echo yes >/opt/file\n') == ref
    sandbox = await made.get_or_create(spec(layers=[ref]))
    await run(sandbox, "cat /opt/file; echo more >>/opt/file && echo $GREETING; id -u")
    assert (await sandbox.logs("c"))[0] == b"yes\nfrom the image\n1000\n"


@pytest.mark.slow
async def test_a_layer_takes_no_secret_no_file_and_no_process_along(make: Make) -> None:
    made = make()
    builder = await made.get_or_create(
        spec(tags={"purpose": "build"}, files={"/run/evals/case.json": b"{}"}, secrets={"KEY": "s3cr3t"})
    )
    await builder.start(
        "c", ["sh", "-c", "echo x >/tmp/t; echo $KEY >/opt/had; sleep 1000 &"], env={}, workdir="/", with_secrets=True
    )
    await ended(builder)
    ref = await made.commit(builder, "k")
    sandbox = await made.get_or_create(spec(layers=[ref]))
    await run(sandbox, "cat /opt/had; ls /out /tmp /run/evals; env; cat /run/evals/inbox/*")
    said = (await sandbox.logs("c"))[0].decode()
    assert said.count("s3cr3t") == 1, "what the command itself wrote"
    assert "case.json" not in said


# ---- faults


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow", "late"])
async def test_a_create_that_is_cancelled_is_found_again(kind: str, make: Make, modal_server: LoopbackModal, app: str) -> None:
    made, wanted = make(), spec()
    await made.base_layer()
    modal_server.order({"method": "SandboxCreateV2", "kind": kind, "delay_s": 1.0})
    task = asyncio.create_task(made.get_or_create(wanted))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await made.aclose()
    (seen,) = modal_server.sandboxes(app)
    assert seen["tags"]["evals-name"] == wanted.name
    await make().get_or_create(wanted)
    assert len(modal_server.sandboxes(app)) == 1


@pytest.mark.slow
async def test_a_create_whose_answer_is_lost_is_found_again(make: Make, modal_server: LoopbackModal, app: str) -> None:
    made = make()
    await made.base_layer()
    modal_server.order({"method": "SandboxCreateV2", "kind": "lost_answer", "times": 4})
    sandbox = await made.get_or_create(spec())
    assert [one["name"] for one in modal_server.sandboxes(app)] == [sandbox.name]
    assert modal_server.state()["faults"][0]["happened"] == 4, "more than the client itself repeats"


@pytest.mark.slow
@pytest.mark.parametrize("came", [0, 30])
async def test_a_command_whose_script_was_cut_short_never_ran(came: int, make: Make) -> None:
    sandbox = await make().get_or_create(spec())
    assert isinstance(sandbox, ModalSandbox)
    content = script.command_script(["sh", "-c", "echo ran >>/out/marks"], {}, "/out", with_secrets=False)
    talk = await sandbox.machine.talk(["sh", "-c", START, "c", str(len(content))], env=ROOT_ENVIRONMENT)
    if came:
        await talk.say(content[:came])
    await talk.end()
    assert [chunk async for chunk in talk.heard()] == []
    assert (await sandbox.state("c")).phase is Phase.ABSENT
    assert (await run(sandbox, "echo ran >>/out/marks")).exit_code == 0
    assert await sandbox.read("/out/marks", 100) == b"ran\n"


@pytest.mark.slow
async def test_a_rate_limit_slows_creates_down(make: Make, modal_server: LoopbackModal, app: str) -> None:
    taken: list[float] = []

    async def throttle() -> None:
        taken.append(asyncio.get_running_loop().time())

    made = make(throttle=throttle)
    await made.base_layer()
    modal_server.order({"method": "SandboxCreateV2", "kind": "exhausted", "times": 2})
    await made.get_or_create(spec())
    assert len(taken) == 3
    assert taken[1] - taken[0] >= 0.5
    assert taken[2] - taken[1] >= 1.0
    assert len(modal_server.sandboxes(app)) == 1


CYCLE = ("SandboxCreateV2", "TaskExecStart", "TaskSnapshotFilesystem", "SandboxTerminateV2")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lost_answer", "unavailable"])
@pytest.mark.parametrize("method", CYCLE)
async def test_nothing_happens_twice(
    method: str, kind: str, make: Make, modal_server: LoopbackModal, app: str, tmp_path: Path
) -> None:
    made = make()
    await made.base_layer()
    modal_server.order({"method": method, "kind": kind, "times": 2})
    sandbox = await made.get_or_create(spec(tags={"purpose": "build"}))
    assert (await run(sandbox, "echo x >>/opt/runs")).exit_code == 0
    assert (await sandbox.collect(tmp_path / "b.tar")).n_files == 2
    ref = await made.commit(sandbox, "k")
    assert modal_server.state()["faults"][0]["happened"] == 2
    user = await make().get_or_create(spec(layers=[ref]))
    await run(user, "cat /opt/runs")
    assert (await user.logs("c"))[0] == b"x\n"
    await user.terminate()
    assert [one["name"] for one in modal_server.sandboxes(app) if one["alive"]] == []


@pytest.mark.slow
async def test_a_stutter_is_no_loss_and_a_lost_worker_is(make: Make, modal_server: LoopbackModal) -> None:
    sandbox = await make().get_or_create(spec())
    await sandbox.start("c", ["sleep", "1000"], env={}, workdir="/")
    modal_server.order({"method": "TaskExecStart", "kind": "unavailable", "times": 15})
    assert (await sandbox.state("c")).phase is Phase.RUNNING
    modal_server.order()
    modal_server.lose(sandbox.name)
    assert await sandbox.state("c") == CommandState(Phase.LOST)
    with pytest.raises(SandboxLost):
        await sandbox.start("d", ["true"], env={}, workdir="/")
    await sandbox.terminate()


@pytest.mark.slow
async def test_a_build_begins_anew_where_a_machine_was_lost(make: Make, modal_server: LoopbackModal) -> None:
    made, wanted = make(), spec(tags={"purpose": "build"})
    await made.get_or_create(wanted)
    modal_server.lose(wanted.name)
    fresh = await made.get_or_create(wanted)
    assert (await run(fresh, "true")).exit_code == 0


@pytest.mark.slow
async def test_an_expired_snapshot_is_built_again(make: Make, modal_server: LoopbackModal) -> None:
    made = make()
    builder = await made.get_or_create(spec(tags={"purpose": "build"}))
    ref = await made.commit(builder, "k")
    assert made.layer("k") == ref
    modal_server.expire(ref)
    with pytest.raises(SandboxError) as caught:
        await made.get_or_create(spec(layers=[ref]))
    assert caught.value.retryable
    assert made.layer("k") is None


@pytest.mark.slow
async def test_many_cells_through_many_faults(make: Make, modal_server: LoopbackModal, app: str) -> None:
    made = make()
    await made.base_layer()
    kinds = ("unavailable", "lost_answer", "throttled", "exhausted")
    modal_server.order(*({"method": "SandboxCreateV2", "kind": kind, "times": None, "rate": 0.05} for kind in kinds))

    async def one(number: int) -> int | None:
        sandbox = await made.get_or_create(spec())
        state = await run(sandbox, f"exit {number % 7}")
        await sandbox.terminate()
        return state.exit_code

    codes = await asyncio.gather(*map(one, range(24)))
    assert codes == [number % 7 for number in range(24)]
    assert [seen["name"] for seen in modal_server.sandboxes(app) if seen["alive"]] == []


# ---- without Modal


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,20}", fullmatch=True), st.text(max_size=300), max_size=4))
def test_tags_hold_anything(tags: dict[str, str]) -> None:
    encoded = encode_tags(tags)
    assert decode_tags(encoded) == tags
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,63}", part) for pair in encoded.items() for part in pair)


@pytest.mark.parametrize(
    ("endpoints", "complaint"),
    [
        (["10.0.0.1:443"], "no IP address"),
        (["api.example.com:8443"], "port 443 only"),
        ([f"h{number}.example.com:443" for number in range(101)], "takes 100"),
    ],
)
def test_egress_that_modal_can_not_hold_is_refused(endpoints: list[str], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        plan.domains(endpoints)


def test_egress_that_modal_can_hold() -> None:
    assert plan.domains([]) is None
    assert plan.domains([plan.MODEL_STAND_IN]) is None
    assert plan.domains([f"h{number}.example.com:443" for number in range(100)]) is not None
    with pytest.raises(SpecError, match="private"):
        plan.domains(["index.example.com:443"], ["index.example.com:443"])


def test_a_sandbox_lives_a_day_at_most() -> None:
    assert plan.check_lifetime("it", 86400) == 86400
    with pytest.raises(SpecError, match="24 hours"):
        plan.check_lifetime("it", 86401)


def test_too_few_descriptors_are_a_clear_refusal() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from eval_pipeline.sandbox.modal_calls import reserve_descriptors\n"
        "from eval_pipeline.errors import SpecError\n"
        "try: reserve_descriptors(500)\nexcept SpecError as error: print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ulimit -n 500" in done.stdout


def test_settings_are_read_and_checked() -> None:
    assert load_settings({}).modal == ModalSettings()
    assert load_settings({"EVALS_MODAL_RUNTIME": "gvisor", "EVALS_MODAL_APP": "x"}).modal == ModalSettings(
        app="x", runtime="gvisor"
    )
    for name, value in (("RUNTIME", "docker"), ("MAX_SANDBOXES", "-1"), ("CREATES_PER_S", "nan")):
        with pytest.raises(SpecError, match=name):
            load_settings({f"EVALS_MODAL_{name}": value})
