"""What is the local backend's own: crashes halfway, limits, the filter, the base layer, the probes, the runner's other way."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from support.places import groups_named

from eval_pipeline.errors import BuildError, IsolationUnavailable, SandboxError, SpecError
from eval_pipeline.host import SANDBOX_USER, unprivileged
from eval_pipeline.sandbox.base import Limit, Phase, Resources, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local import disk, launch, limits, preflight, seccomp
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.sandbox.local.places import Places, prepare
from eval_pipeline.sandbox.local.probe import probe

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[2]
WALLS = {
    "own user, no capabilities",
    "no network but the proxy",
    "read-only world and layers",
    "system call filter",
    "user namespace",
}
RUNNER = REPOSITORY / "eval_pipeline" / "sandbox" / "runner.sh"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def places(state_dir: Path) -> Generator[Places]:
    made = prepare(state_dir)
    yield made

    async def end() -> None:
        backend = LocalBackend("a", state_dir)
        for info in await backend.list():
            sandbox = await backend.find(info.name)
            assert sandbox is not None
            await sandbox.terminate()

    asyncio.run(end())
    assert made.scratch == made.builds or not made.scratch.exists()


@pytest.fixture
def backend(places: Places, state_dir: Path) -> LocalBackend:
    return LocalBackend("a", state_dir)


def spec(**fields: object) -> SandboxSpec:
    return SandboxSpec(**{"name": f"e-{secrets.token_hex(12)}", "installation": "a", **fields})  # pyright: ignore[reportArgumentType]


async def run(sandbox: Sandbox, *argv: str) -> tuple[int | None, str, str]:
    command_id = secrets.token_hex(4)
    await sandbox.start(command_id, argv, env={}, workdir="/out")
    async with asyncio.timeout(60):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    stdout, stderr = await sandbox.logs(command_id)
    return state.exit_code, stdout.decode(), stderr.decode()


async def test_a_creation_that_died_after_its_record_is_done_again(backend: LocalBackend, places: Places) -> None:
    wanted = spec(files={"/run/evals/x": b"new"})
    home = places.scratch / wanted.name
    for folder in ("disk/u/etc", "disk/k/work", "run/inbox"):
        (home / folder).mkdir(parents=True)
    (home / "disk" / "u" / "etc" / "stale").touch()
    (home / "disk" / "k" / "work").chmod(0)
    (home / "status").write_text('{ "child-pid": 1')
    (home / "meta.json").write_text(
        json.dumps({"name": wanted.name, "installation": "a", "tags": {}, "disk_mib": 9, "host_id": places.host})
    )
    assert [info.alive for info in await backend.list()] == [False]
    sandbox = await backend.get_or_create(wanted)
    assert await run(sandbox, "sh", "-c", "cat /run/evals/x; ls /etc/stale") == (
        2,
        "new",
        "ls: cannot access '/etc/stale': No such file or directory\n",
    )


async def test_a_start_that_was_never_rung_still_runs(backend: LocalBackend, places: Places) -> None:
    sandbox = await backend.get_or_create(spec())
    # what `start` leaves when its caller dies between accepting and ringing
    (places.scratch / sandbox.name / "run" / "inbox" / "c").write_text("exec setsid -- sh -c 'exit 3'\n")
    async with asyncio.timeout(20):
        while (state := await sandbox.state("c")).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    assert state.exit_code == 3


async def test_what_bwrap_says_is_in_the_error(backend: LocalBackend) -> None:
    with pytest.raises(SandboxError, match="/no/such/world"):
        await backend.get_or_create(spec(world=Path("/no/such/world")))


@pytest.mark.parametrize(
    "path", ["/etc/x", "/run/evals", "/run/evals/../x", "/run/evals/sh", "/run/evals/inbox/c", "/run/evals//x"]
)
async def test_files_have_their_place(backend: LocalBackend, path: str) -> None:
    with pytest.raises(SpecError):
        await backend.get_or_create(spec(files={path: b""}))


async def test_too_many_secrets_are_refused_before_anything_is_made(backend: LocalBackend) -> None:
    with pytest.raises(SpecError, match="60000"):
        await backend.get_or_create(spec(secrets={"A": "x" * 70_000}))
    sandbox = await backend.get_or_create(spec(secrets={"A": "x" * 59_000}))
    await sandbox.start("c", ["sh", "-c", "exit $((${#A} == 59000))"], env={}, workdir="/", with_secrets=True)
    async with asyncio.timeout(20):
        while (state := await sandbox.state("c")).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    assert state.exit_code == 1


async def test_only_a_build_sandbox_becomes_a_layer(backend: LocalBackend) -> None:
    sandbox = await backend.get_or_create(spec())
    with pytest.raises(SandboxError, match="no build sandbox"):
        await backend.commit(sandbox, "k")
    assert backend.layer("k") is None
    assert await sandbox.alive()


async def test_half_a_layer_is_none(backend: LocalBackend, places: Places) -> None:
    (places.layers / "k" / "etc").mkdir(parents=True)
    (places.layers / "k" / "etc" / "half").touch()
    assert backend.layer("k") is None
    builder = await backend.get_or_create(spec(tags={"purpose": "build"}))
    await run(builder, "touch", "/etc/whole")
    ref = await backend.commit(builder, "k")
    assert [path.name for path in (Path(ref) / "etc").iterdir()] == ["whole"]
    record = json.loads(Path(f"{ref}.layer.json").read_text())
    assert (record["key"], record["size_bytes"], len(record["digest"])) == ("k", 0, 64)


async def test_the_orchestrators_descriptors_are_not_inherited(backend: LocalBackend, tmp_path: Path) -> None:
    (tmp_path / "host-only").write_text("x")
    fd = os.open(tmp_path / "host-only", os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        sandbox = await backend.get_or_create(spec())
    finally:
        os.close(fd)
    _, stdout, _ = await run(sandbox, "sh", "-c", "ls -l /proc/self/fd")
    assert "host-only" not in stdout
    assert sorted(line.split()[-3] for line in stdout.splitlines() if "->" in line) == ["0", "1", "2", "3"]


_SOCKETS = """
import socket, errno, ctypes, os
def attempt(family):
    try: socket.socket(family, socket.SOCK_STREAM).close(); return "open"
    except OSError as error: return errno.errorcode[error.errno]
print(*(attempt(f) for f in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 40, 16, 17)))
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args): return errno.errorcode.get(ctypes.get_errno(), "ok") if getattr(libc, name)(*args) else "ok"
print(call("unshare", 0x10000000), call("mount", b"x", b"/tmp", b"tmpfs", 0, None), call("setns", 0, 0))
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
def child(flags):
    pid = libc.syscall(clone, flags | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    return errno.errorcode[ctypes.get_errno()] if pid < 0 else os.waitpid(pid, 0)[1]
print(child(0x10000000), child(0))
"""


async def test_the_filter_holds(backend: LocalBackend) -> None:
    sandbox = await backend.get_or_create(spec())
    _, stdout, stderr = await run(sandbox, "/usr/bin/python3", "-c", _SOCKETS)
    lines = stdout.splitlines()
    assert lines == ["open open open EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT", "EPERM EPERM EPERM", "EPERM 0"], stderr


def test_the_filter_knows_its_machines() -> None:
    assert len(seccomp.program("x86_64")) == len(seccomp.program("aarch64")) + 16
    with pytest.raises(IsolationUnavailable, match="riscv64"):
        seccomp.program("riscv64")
    assert all(seccomp.supported(machine) for machine in preflight.MACHINES)


@pytest.mark.skipif("memory" not in limits.find_groups().parents, reason="no control groups can be made here")
async def test_control_groups_limit_and_go(backend: LocalBackend, places: Places) -> None:
    sandbox = await backend.get_or_create(spec(resources=Resources(cpu=0.5, memory_mib=64, disk_mib=64)))
    found = groups_named(f"evals-{places.tag}-{sandbox.name}")
    assert len(found) == len(backend.controllers)
    code, _, _ = await run(sandbox, "/usr/bin/python3", "-c", "x = bytearray(400 << 20)")
    assert code == 137
    (pids,) = [path for path in found if (path / "pids.max").exists()]
    assert (pids / "pids.max").read_text() == "4096\n"
    assert len((pids / "cgroup.procs").read_text().split()) == 1, "PID 1 and so every later command"
    # an orchestrator that lives in another group finds and removes these all the same
    ending = "import asyncio, sys; from pathlib import Path; from eval_pipeline.sandbox.local.backend import LocalBackend\n"
    ending += (
        "async def end():\n  await (await LocalBackend('a', Path(sys.argv[1])).find(sys.argv[2])).terminate()\nasyncio.run(end())"
    )
    elsewhere = limits.find_groups().parents["memory"] / f"evals-test-{secrets.token_hex(6)}"
    elsewhere.mkdir()
    try:
        moving = f'echo $$ >{elsewhere}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", moving, "sh", sys.executable, "-c", ending, str(places.builds.parent), sandbox.name]
        subprocess.run(command, cwd=REPOSITORY, check=True)
    finally:
        elsewhere.rmdir()
    assert not any(path.exists() for path in found)


def test_limits_in_both_languages() -> None:
    resources = Resources(cpu=1.5, memory_mib=100, disk_mib=50)
    assert limits.settings(2, resources, files_in_memory=False) == {
        "pids": {"pids.max": "4096"},
        "memory": {"memory.max": str(100 << 20), "memory.swap.max": "0"},
        "cpu": {"cpu.max": "150000 100000"},
    }
    assert limits.settings(1, resources, files_in_memory=True)["memory"] == {"memory.limit_in_bytes": str(150 << 20)}
    assert limits.ulimits(limits.Groups(0, {}), resources) == b"ulimit -c 0; ulimit -f 102400; ulimit -d 102400\n"


async def test_what_can_not_be_capped_is_measured(backend: LocalBackend) -> None:
    """A build sandbox writes to the layers' file system, which has no size of its own."""
    sandbox = await backend.get_or_create(spec(tags={"purpose": "build"}, resources=Resources(disk_mib=16)))
    script = "for i in 1 2 3; do head -c 8000000 /dev/zero >/etc/$i; done; echo full; exec sleep 1000"
    await sandbox.start("c", ["sh", "-c", script], env={}, workdir="/")
    async with asyncio.timeout(60):
        while (state := await sandbox.state("c")).phase is Phase.RUNNING:
            await asyncio.sleep(0.05)
    assert (state.phase, await sandbox.limits_hit()) == (Phase.LOST, [Limit.DISK])
    assert (await sandbox.logs("c"))[0] == b"full\n"
    assert not await sandbox.alive()


def mounted_at(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4] == str(path)]


def test_trying_whether_disks_can_be_capped_mounts_nothing_here(places: Places) -> None:
    """It could not be taken back by who is killed in the midst of it."""
    seen: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.extend(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {places.builds}/" in line)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        answers = {disk.can_cap(places) for _ in range(40)}
    finally:
        over.set()
        looker.join()
    assert (len(answers), seen, list(places.builds.iterdir())) == (1, [], [])


@pytest.mark.slow
async def test_beside_many_others_a_sandbox_starts_without_their_mounts(backend: LocalBackend, places: Places) -> None:
    if "disk" not in backend.limits:
        pytest.skip("no file system can be mounted here")
    before = mounted_at(places.scratch.parent)
    made = [await backend.get_or_create(spec(resources=Resources(disk_mib=16))) for _ in range(40)]
    for sandbox in (made[0], made[-1]):
        await sandbox.write("/out/a", b"seen")
        assert (await run(sandbox, "sh", "-c", "cat a; echo written >b"))[1] == "seen"
        assert await sandbox.read("/out/b", 99) == b"written\n"
        await run(sandbox, "sh", "-c", "head -c 99000000 /dev/zero >c")
        assert await sandbox.limits_hit() == [Limit.DISK]
    inmate = launch.inmate(places.scratch / made[-1].name)
    assert inmate is not None
    outer = Path(f"/proc/{inmate.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert Path(f"/proc/{outer}/mountinfo").read_text().count(f" {places.scratch}/") == 1
    assert Path("/proc/self/mountinfo").read_text().count(f" {places.scratch}/") == 40
    assert mounted_at(places.scratch.parent) == before


@pytest.mark.skipif("cpu" not in limits.find_groups().parents, reason="no control groups can be made here")
async def test_the_processor_is_shared_out(backend: LocalBackend, places: Places) -> None:
    sandbox = await backend.get_or_create(spec(resources=Resources(cpu=0.1)))
    await run(sandbox, "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
    found = [path / "cpu.stat" for path in groups_named(f"evals-{places.tag}-{sandbox.name}") if (path / "cpu.stat").exists()]
    counters = dict(line.split() for path in found for line in path.read_text().splitlines())
    assert int(counters["nr_throttled"]) > 0


def test_version_2_groups_are_written_below_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    groups = limits.find_v2(tmp_path)
    assert (groups.version, set(groups.parents.values())) == (2, {tmp_path / "evals"})
    assert [(tmp_path / name / "cgroup.subtree_control").read_text() for name in (".", "evals")] == ["+pids +memory +cpu"] * 2
    (tmp_path / "evals" / "e-1").mkdir()
    (tmp_path / "evals" / "e-1" / "memory.swap.max").write_text("max\n")  # the kernel makes it where swap is counted
    limits.make(groups, "e-1", Resources(cpu=2, memory_mib=64, disk_mib=36), True, tmp_path / "record")
    limits.join(tmp_path / "record", 4321)
    written = {path.name: path.read_text() for path in (tmp_path / "evals" / "e-1").iterdir()}
    assert written == {
        "pids.max": "4096",
        "memory.max": str(100 << 20),
        "memory.swap.max": "0",
        "cpu.max": "200000 100000",
        "cgroup.procs": "4321",
    }
    assert limits.recorded(tmp_path / "record") == [str(tmp_path / "evals" / "e-1")]
    limits.make(groups, "e-2", Resources(), False, tmp_path / "record")
    assert not (tmp_path / "evals" / "e-2" / "memory.swap.max").exists()


def test_a_kernel_that_forbids_version_2_groups_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "evals").touch()
    assert limits.find_v2(tmp_path) == limits.Groups(2, {})


@pytest.mark.parametrize(
    ("files", "hit"),
    [
        ({"memory.events": "low 0\nmax 9\noom 2\noom_kill 1\n", "pids.events": "max 0\n"}, [Limit.MEMORY]),
        ({"memory.events": "low 0\nmax 9\noom 0\noom_kill 1\n"}, []),  # the host's memory ended, or an outer group's
        ({"memory.events": "max 9\noom 0\noom_kill 0\n", "pids.events": "max 7\n"}, [Limit.PIDS]),
        ({"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "memory.failcnt": "8\n"}, [Limit.MEMORY]),
        ({"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "memory.failcnt": "0\n"}, []),
        ({}, []),
    ],
)
def test_what_groups_tell_of_their_limits(tmp_path: Path, files: dict[str, str], hit: list[Limit]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert limits.hit([tmp_path, tmp_path / "gone"]) == hit


async def test_the_probe_reports(backend: LocalBackend, state_dir: Path) -> None:
    world = state_dir / "world"
    world.mkdir(mode=0o755)
    report = await probe(backend, world)
    held = {each.name for each in report.guarantees if each.enforced}
    assert {"no network but the proxy", "user namespace"} <= held
    assert held & {"memory", "pids", "cpu", "disk"} == backend.limits == held - report.missing.keys() - WALLS
    assert report.level == ("full" if len(backend.limits) == 4 else "degraded")
    assert await backend.list() == []


@pytest.mark.slow
async def test_the_base_layer_brings_python_and_wheels(backend: LocalBackend, places: Places) -> None:
    wheel = REPOSITORY / "requirements.lock"
    lines = wheel.read_text().split("\nclick==", 1)[1]
    click = "click==" + lines.split("\n\n")[0].split("\n    # via")[0].strip().rstrip("\\")
    requirements = "\n".join(line for line in click.splitlines() if not line.strip().startswith("#")).encode() + b"\n"
    first, second = await asyncio.gather(
        backend.base_layer(requirements=requirements), backend.base_layer(requirements=requirements)
    )
    assert first == second
    sandbox = await backend.get_or_create(spec(layers=[first]))
    look = "import sys, ssl, sqlite3, click, ctypes; print(sys.version, click.__file__, sys.prefix, sep='|')"
    code, stdout, stderr = await run(sandbox, "python3", "-c", look)
    assert code == 0, stderr
    version, module, prefix = stdout.strip().split("|")
    assert version == sys.version
    assert (module, prefix) == (f"/opt/venv/lib/python3.{sys.version_info.minor}/site-packages/click/__init__.py", "/opt/venv")
    _, stdout, _ = await run(
        sandbox, "sh", "-c", "find /opt -user evals | wc -l; find /opt ! -user evals | wc -l; find /opt -name '*.pyc' | wc -l"
    )
    owned, foreign, compiled = map(int, stdout.split())
    assert (owned > 20, foreign, compiled > 10) == (True, 0, True)
    with pytest.raises(BuildError, match="hash"):
        await backend.base_layer(requirements=b"click\n")
    assert [path.name for path in places.layers.glob("*.partial")] == []


def test_preflight_needs_nothing_but_python() -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    script = REPOSITORY / "eval_pipeline" / "sandbox" / "local" / "preflight.py"
    done = subprocess.run([python, "-I", "-S", str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "sandboxes can be isolated here\n")


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root to forbid namespaces")
def test_preflight_names_the_switch() -> None:
    """In a user namespace of its own, where no further one may be made."""
    script = REPOSITORY / "eval_pipeline" / "sandbox" / "local" / "preflight.py"
    inner = f"echo 0 >/proc/sys/user/max_user_namespaces && exec /usr/bin/python3 -I -S {script}"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inner], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "user.max_user_namespaces=15000" in done.stderr


def test_the_runner_serves_one_command_without_pid_1(tmp_path: Path) -> None:
    """As a platform with an exec of its own would call it, twice for the same id."""
    for folder in ("inbox", "logs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "inbox" / "c").write_text("exec setsid -- sh -c 'echo once; exit 6'\n")
    for _ in range(2):
        done = subprocess.run(
            ["sh", "-c", RUNNER.read_text(), "runner", "c"],
            env={"PATH": "/usr/bin:/bin", "EVALS_RUN_DIR": str(tmp_path)},
            check=False,
        )
        assert done.returncode == 0
    assert (tmp_path / "logs" / "c.stdout").read_text() == "once\n"
    started, group, exited = (tmp_path / "logs" / "c.journal").read_text().splitlines()
    assert started.startswith("c started ")
    assert group.startswith("c pid ")
    assert exited.startswith("c exited ") and exited.endswith(" 6")
    assert len(RUNNER.read_text().splitlines()) <= 80


def test_sandboxes_never_run_as_root() -> None:
    assert unprivileged(SANDBOX_USER).uid != 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a small file system")
async def test_no_room_for_the_output_is_our_own_error(backend: LocalBackend, tmp_path: Path) -> None:
    sandbox = await backend.get_or_create(spec())
    await run(sandbox, "sh", "-c", "head -c 3000000 /dev/urandom >noise")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(SandboxError, match="No space left on device"):
            await sandbox.collect(tmp_path / "b.tar")
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


FORGOTTEN = """
import asyncio, shutil, sys
from pathlib import Path
from eval_pipeline.sandbox.base import SandboxSpec
from eval_pipeline.sandbox.local import launch
from eval_pipeline.sandbox.local.backend import LocalBackend

async def main():
    backend = LocalBackend("a", Path(sys.argv[1]))
    sandbox = await backend.get_or_create(SandboxSpec(name="e-forgotten", installation="a", lifetime_s=4))
    await sandbox.start("c", ["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done"], env={}, workdir="/tmp")
    print(launch.inmate(sandbox.home).pid)

asyncio.run(main())
"""


# Its engine is gone before it could be told that the sandbox is ready
GONE_AT_ONCE = """
import asyncio, os, sys
from pathlib import Path
from eval_pipeline.sandbox.base import SandboxSpec
from eval_pipeline.sandbox.local import launch
from eval_pipeline.sandbox.local.backend import LocalBackend

launch._await_ready = lambda home, ready: os._exit(9)
asyncio.run(LocalBackend("a", Path(sys.argv[1])).get_or_create(SandboxSpec(name="e-early", installation="a")))
"""


async def test_one_whose_engine_is_gone_before_it_is_ready_is_adopted_and_hands_its_commands_nothing(
    backend: LocalBackend, state_dir: Path
) -> None:
    died = subprocess.run([sys.executable, "-c", GONE_AT_ONCE, str(state_dir)], cwd=REPOSITORY, check=False)
    assert died.returncode == 9
    found = await backend.find("e-early")
    assert found is not None
    async with asyncio.timeout(30):
        while not launch.was_ready(backend._home("e-early") or Path("/")):
            await asyncio.sleep(0.01)
    sandbox = await backend.get_or_create(SandboxSpec(name="e-early", installation="a"))
    code, seen, _ = await run(sandbox, "/bin/ls", "/proc/self/fd")
    assert (code, seen.split()) == (0, ["0", "1", "2", "3"]), "3 is the listing's own"


async def test_one_that_everybody_forgot_ends_although_its_directories_are_gone(places: Places, state_dir: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, str(state_dir)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    inmate = Path(f"/proc/{int(made.stdout)}")
    assert _lives(inmate)
    home = next(path for path in (places.scratch / "e-forgotten", places.builds / "e-forgotten") if path.exists())
    for path in home.iterdir():
        if not path.is_dir():
            path.unlink()
    async with asyncio.timeout(30):
        while _lives(inmate):
            await asyncio.sleep(0.1)
    await asyncio.to_thread(disk.unmount, home / "disk")
    shutil.rmtree(home)
    if places.scratch_is_memory:
        places.scratch.rmdir()


def _lives(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
