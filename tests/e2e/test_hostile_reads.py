"""Agents that end, damage or outrun whoever reads what they leave. Each costs its own attempt, one, on either backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.places import short_dir
from support.project import Project

pytestmark = pytest.mark.long

# All but itself, as fast as it can. `wakes`: by a timer of the kernel's, whatever stops it
KILLER = r"""
import ctypes, os, signal, struct, sys, time
if "wakes" in sys.argv:
    signal.signal(signal.SIGCONT, lambda *_: None)  # one that is ignored wakes nobody
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = ctypes.create_string_buffer(struct.pack("Pii", 0, signal.SIGCONT, 0) + bytes(64))
    assert libc.timer_create(ctypes.c_int(1), event, ctypes.byref(timer)) == 0
    every = struct.pack("llll", 0, 300_000_000, 0, 300_000_000)
    assert libc.timer_settime(timer, ctypes.c_int(0), ctypes.c_char_p(every), None) == 0
time.sleep(0.5)
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        continue
"""
USAGE = """echo '{"type":"usage","model":"m","input_uncached":1}'"""
SWAPS = "while :; do mkfifo t && mv -f t transcript.jsonl; ln -s /dev/zero t && mv -f t transcript.jsonl; echo x >t; mv -f t transcript.jsonl; done"

# name: (script, outcome)
ATTACKS: dict[str, tuple[str, str]] = {
    "fifo": ("mkfifo transcript.jsonl; sleep 2; answer yes", "ok"),
    "link": ("ln -s /dev/zero transcript.jsonl; sleep 2; answer yes", "ok"),
    "directory": ("mkdir -p transcript.jsonl/x; sleep 2; answer yes", "ok"),
    "closed": (f"{USAGE} >transcript.jsonl; chmod 000 transcript.jsonl; sleep 2; answer yes", "ok"),
    "shut": ('answer yes; chmod 000 "$EVALS_OUTPUT"; sleep 2', "ok"),
    "shrinks": (
        f"for i in 1 2 3 4 5 6 7 8; do {USAGE} >>transcript.jsonl; sleep 0.2; : >transcript.jsonl; done; answer yes",
        "ok",
    ),
    "grows": (
        "answer yes; (while :; do head -c 1000000 /dev/zero | tr '\\0' x; sleep 0.1; done >transcript.jsonl) & sleep 2",
        "ok",
    ),
    "swaps": (f"({SWAPS}) 2>/dev/null & sleep 3; answer yes", "ok"),
    "kills": ("exec /usr/bin/python3 /app/killer.py", "agent_timeout"),
    "kills-on": ("answer yes; setsid /usr/bin/python3 /app/killer.py & sleep 0.4", "ok"),
    "wakes-on": ("answer yes; setsid /usr/bin/python3 /app/killer.py wakes & sleep 0.4", "ok"),
    "moves": ('cd /; mv "$EVALS_OUTPUT" /tmp/o; ln -s /proc "$EVALS_OUTPUT"; sleep 2; exit 3', "agent_error"),
    "calm": (f"for i in 1 2 3; do {USAGE} >>transcript.jsonl; sleep 0.3; done; answer yes", "ok"),
}


@pytest.mark.parametrize("backend", ["local", "modal"])
def test_who_reads_is_ended_and_deceived_in_vain(backend: str, shared_state: Path, request: pytest.FixtureRequest) -> None:
    environ: dict[str, str] = {}
    if backend == "modal":
        request.getfixturevalue("modal_server")
        environ = {"EVALS_MODAL_APP": "hostile", "EVALS_MODAL_CREATES_PER_S": "50"}
    with short_dir() as root:
        project = Project(root, shared_state, environ)
        cases = "".join(f"{name}) {script} ;;\n" for name, (script, _) in ATTACKS.items())
        project.commit({"killer.py": KILLER})
        project.agent(f"cd \"$EVALS_OUTPUT\"\ncase $(grep -o 'Answer [a-z-]*' \"$EVALS_CASE\" | cut -d' ' -f2) in\n{cases}esac\n")
        project.manifest(resources={"cpu": 1.0, "memory_mib": 256, "disk_mib": 256})
        project.commit({})
        for name, (_, outcome) in ATTACKS.items():
            project.case(name, limits={"wall_s": 6.0 if outcome == "agent_timeout" else 60.0, "turns": 1000})
        project.experiment("reads", backend=backend)
        ran = project.run("reads", check=False, timeout_s=600)
        cells = project.cells(ran["data"]["experiment"])
        found = {cell["cell"].split("/")[1].partition(".")[2]: cell for cell in cells}
        tried = {name: [(one["outcome"], one["error"]) for one in cell["attempts"]] for name, cell in found.items()}
        assert {name: cell["outcome"] for name, cell in found.items()} == {n: o for n, (_, o) in ATTACKS.items()}, tried
        assert {name: len(attempts) for name, attempts in tried.items()} == dict.fromkeys(ATTACKS, 1), tried
        assert project.evals("sandbox", "list", "--backend", backend) == []
