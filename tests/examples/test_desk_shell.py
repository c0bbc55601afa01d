"""What a shell command of the model can reach: the same attempts are made inside and, to see that they are real, outside."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from desk_runs import Cell, Endpoint, Machine, calling, said, tool_results

pytestmark = pytest.mark.slow

DATA = "/srv/matter_desk"
PRIVILEGED = "documents/17-privileged-memo-rostock.md"

# Each attempt says "done" or the name of the error. Those that break something come last.
ATTEMPTS = r"""
import ctypes, json, os, resource, signal, socket, sys
DATA = "/srv/matter_desk"
libc = ctypes.CDLL(None, use_errno=True)
def read(path): return lambda: open(path, "rb").read(1)
def call(number, *arguments):
    def made():
        if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), "refused")
    return made
def dial(*address, kind=socket.AF_INET):
    def made():
        with socket.socket(kind) as s: s.connect(*address)
    return made
def link(make, source, name):
    def made():
        make(source, name)
        open(name, "rb").read(1)
    return made
def service():
    return int(open(DATA + "/postgres/postmaster.pid").readline()) if len(sys.argv) < 2 else int(sys.argv[1])
pid = service()
tries = {
    "database": read(DATA + "/postgres/PG_VERSION"),
    "blobs": lambda: os.listdir(DATA + "/blobs"),
    "session": read(DATA + "/run/session"),
    "key": read(DATA + "/run/key"),
    "world": lambda: os.listdir("/world"),
    "other user's document": read("/world/documents/17-privileged-memo-rostock.md"),
    "output": lambda: os.listdir("/out"),
    "case": read("/out/case.json"),
    "application": lambda: os.listdir("/app"),
    "runner": lambda: os.listdir("/run/evals"),
    "temporary": lambda: os.listdir("/tmp"),
    "shared memory": lambda: os.listdir("/dev/shm"),
    "own environ": read("/proc/self/environ"),
    "service's environ": read(f"/proc/{pid}/environ"),
    "service's memory": read(f"/proc/{pid}/maps"),
    "document service": dial(("127.0.0.1", 8400)),
    "proxy": dial(("127.0.0.1", 3128)),
    "database socket": dial(DATA + "/run/.s.PGSQL.5432", kind=socket.AF_UNIX),
    "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "signal": lambda: os.kill(pid, 0),
    "trace": call(101, 16, pid, 0, 0),
    "limits of a service": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE),
    "priority of a service": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "shared memory by key": call(29, 0x1234, 4096, 0o1600),
    "symbolic link": link(os.symlink, DATA + "/postgres/PG_VERSION", "s-link"),
    "hard link": link(os.link, DATA + "/postgres/PG_VERSION", "h-link"),
    "move out": lambda: (open("moved", "w").close(), os.rename("moved", DATA + "/moved")),
    "rights": lambda: os.chmod(DATA + "/blobs", 0o700),
    "write": lambda: open(DATA + "/new", "w"),
}
said = {}
for name, attempt in tries.items():
    try:
        attempt()
        said[name] = "done"
    except Exception as error:
        said[name] = type(error).__name__
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def shared(machine: Machine, harbour: Path) -> Generator[tuple[Cell, Endpoint]]:
    endpoint = Endpoint()
    with machine.desk(harbour, endpoint=endpoint, secrets={"MODEL_API_KEY": "k-secret"}) as cell:
        yield cell, endpoint


def shell(shared: tuple[Cell, Endpoint], *commands: str) -> list[dict[str, Any]]:
    cell, endpoint = shared
    endpoint.script += [calling("run_shell", command=command) for command in commands] + [said("done")]
    run = cell.agent("?", limits={"wall_s": 60.0, "cost_usd": None, "turns": 30})
    assert run.result["status"] == "ok", run.result
    return tool_results(run)


def attempts(pid: str = "") -> str:
    return f"python3 - {pid} <<'EOF'\n{ATTEMPTS}\nEOF"


def postmaster(cell: Cell) -> str:
    return next(str(pid) for pid, line in cell.processes().items() if "bin/postgres -D" in line)


def test_the_attempts_are_real(machine: Machine, harbour: Path, endpoint: Endpoint) -> None:
    with machine.desk(harbour, endpoint=endpoint) as cell:
        cell.run("touch", "/out/case.json")
        done = cell.run("/bin/sh", "-c", "mkdir /srv/w && cd /srv/w && " + attempts())
    assert done.exit_code == 0, done.err
    assert {name for name, said in json.loads(done.out).items() if said != "done"} == set()


def test_nothing_beyond_the_workspace_can_be_reached(shared: tuple[Cell, Endpoint]) -> None:
    cell, _ = shared
    (answer,) = shell(shared, attempts(postmaster(cell)))
    assert answer["exit_code"] == 0, answer
    said = json.loads(answer["output"])
    assert len(said) > 25
    assert {name for name, what in said.items() if what == "done"} == set()
    assert {what for what in said.values()} <= {"PermissionError", "OSError"}
    assert cell.http("GET", "/documents")[0] == 200


def test_it_works_with_the_documents_that_its_user_may_read(shared: tuple[Cell, Endpoint]) -> None:
    readable, counted, table = shell(
        shared,
        "ls documents blobs",
        "grep -l 'Ostsee Energie' documents/*.md | wc -l && cut -c1-5 documents/00-* | head -1 > files/first.txt",
        "python3 -c \"import csv; csv.writer(open('files/t.csv', 'w')).writerow([1, 2])\" && cat files/*",
    )
    assert "08-fuel-supply-agreement.md" in readable["output"] and "portwise-software-agreement.pdf" in readable["output"]
    assert Path(PRIVILEGED).name not in readable["output"]
    assert int(counted["output"]) > 1
    assert (table["exit_code"], table["delivered"]) == (0, ["first.txt", "t.csv"])
    out = shared[0].out()
    assert out["files/t.csv"].strip() == b"1,2"


def test_its_environment_holds_nothing_of_ours(shared: tuple[Cell, Endpoint]) -> None:
    (answer,) = shell(shared, "env")
    names = {line.partition("=")[0] for line in answer["output"].splitlines()}
    assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "OLDPWD", "_", "SHLVL"}
    assert "k-secret" not in answer["output"]


def test_a_link_is_not_delivered_and_the_folder_can_not_be_replaced(shared: tuple[Cell, Endpoint]) -> None:
    links, fifo, replaced = shell(
        shared,
        f"ln -s {DATA}/postgres/PG_VERSION files/version; ln -s {DATA}/postgres files/db; echo ok > files/real",
        "mkfifo files/pipe",
        f"rm -rf files && ln -s {DATA}/run files",
    )
    assert (links["delivered"], links["not_delivered"]) == (["real"], ["version"])
    assert "pipe" in fifo["not_delivered"]
    assert "delivered" not in replaced
    assert not {name for name in shared[0].out() if "key" in name or "PG_" in name or "version" in name}


def test_a_new_version_is_written_past_what_stands_in_its_way(shared: tuple[Cell, Endpoint]) -> None:
    cell, endpoint = shared
    path = "documents/22-works-agreement-shifts.docx"
    endpoint.script += [
        calling("run_shell", command=f"rm -rf documents && ln -s {DATA}/run documents"),
        calling("edit_docx", path=path, action="append", find="", text="One more paragraph."),
        calling("run_shell", command=f"ls -l documents && python3 -c \"import zipfile; zipfile.ZipFile('{path}').testzip()\""),
        said("done"),
    ]
    _, edited, seen = tool_results(cell.agent("?"))
    assert edited == {"path": path, "version": 2}
    assert seen["exit_code"] == 0 and Path(path).name in seen["output"]
    assert cell.run("test", "-e", f"{DATA}/run/{Path(path).name}").exit_code == 1


def test_what_a_command_leaves_running_ends_with_it(shared: tuple[Cell, Endpoint]) -> None:
    cell, _ = shared
    before = set(cell.processes())
    (answer,) = shell(
        shared, 'setsid sleep 987 & (sleep 987 &) & python3 -c "import os; os.fork() or os.setsid()\nwhile 1: pass" & exit 3'
    )
    assert answer["exit_code"] == 3
    assert set(cell.processes()) == before


def test_its_time_and_its_memory_end(shared: tuple[Cell, Endpoint]) -> None:
    cell, _ = shared
    launcher = ["python3", "-m", "matter_desk.shell", "/tmp"]
    assert cell.run(*launcher, "0.3", "trap '' TERM; sleep 986").exit_code == 124
    assert "sleep 986" not in str(cell.processes())
    hungry = cell.run(*launcher, "20", "python3 -c \"b'x' * (900 << 20)\"")
    assert hungry.exit_code == 1 and "MemoryError" in hungry.err
    assert cell.run(*launcher, "20", "kill -9 $$").exit_code == 137
    assert cell.http("GET", "/documents")[0] == 200


def test_long_output_is_cut(shared: tuple[Cell, Endpoint]) -> None:
    (answer,) = shell(shared, "seq 100000; echo the end")
    assert answer["output"].endswith("the end\n") and "are left out" in answer["output"]
    assert len(answer["output"]) < 20_000


WITHOUT_LANDLOCK = """
import ctypes, errno, os, struct
from matter_desk import seccomp as s
code = [s._op(s._LOAD, s._NUMBER), s._op(s._EQUAL, 444, 0, 1), s._op(s._RETURN, s._ERROR | errno.ENOSYS), s._op(s._RETURN, s._ALLOW)]
code = b"".join(code)
buffer = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))) == 0
os.execv("bin/agent", ["bin/agent"])
"""


def test_a_kernel_without_landlock_offers_no_shell_and_says_why(machine: Machine, harbour: Path) -> None:
    offered: list[set[str]] = []
    notes: list[list[str]] = []
    for command in (("bin/agent",), ("python3", "-c", WITHOUT_LANDLOCK)):
        endpoint = Endpoint(script=[calling("run_shell", command="echo hello"), said("done")])
        with machine.desk(harbour, endpoint=endpoint) as cell:
            run = cell.agent("?", command=command)
        offered.append({tool["function"]["name"] for tool in endpoint.asked[0][1]["tools"]})
        notes.append([event["note"] for event in run.of("note")])
    assert offered[0] - offered[1] == {"run_shell"} and offered[1] < offered[0]
    assert notes[0] == [] and "no Landlock" in notes[1][0]
    assert "there is no tool" in tool_results(run)[0]["error"]
