"""Commands that propose: what they are told, what they can't see, and what becomes of nonsense, crashes and silence."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.places import short_dir

from eval_pipeline.research.goal import ProposerSpec
from eval_pipeline.research.proposer import ask
from eval_pipeline.research.walls import command_within, hidden
from eval_pipeline.sandbox.local import preflight
from eval_pipeline.settings import Settings

pytestmark = pytest.mark.slow

GIVEN = {"research": "r-1", "step": 3, "journal": [{"kind": "answered", "accepted": False}]}


def told(script: str, *, timeout_s: float = 20.0, env: tuple[str, ...] = ()) -> Any:
    command = (sys.executable, "-c", script)
    return ask(command, ProposerSpec(command=command, timeout_s=timeout_s, env=env), GIVEN)


def test_it_reads_what_is_known_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALS_POSTGRES_URL", "postgresql://secret")
    monkeypatch.setenv("EVALS_STATE_DIR", "/somewhere")
    monkeypatch.setenv("MY_KEY", "k")
    monkeypatch.setenv("OTHER_KEY", "o")
    script = "import json, os, sys; print(json.dumps({'config': {'given': json.load(sys.stdin), 'env': dict(os.environ)}}))"
    answer = told(script, env=("MY_KEY",))
    assert answer["config"]["given"] == GIVEN
    env = answer["config"]["env"]
    assert {name for name in env if name.startswith("EVALS_")} == {"EVALS_RESEARCH", "EVALS_RESEARCH_STEP"}
    assert (env["EVALS_RESEARCH_STEP"], env["MY_KEY"], "OTHER_KEY" in env) == ("3", "k", False)


@pytest.mark.parametrize(
    "script, reason",
    [
        ("print('I think top_k should be 5')", "is no JSON"),
        ("print('[1, 2]')", "is no JSON object"),
        ('print(\'{"config": {"x": NaN}}\')', "NaN is no number"),
        ("print('[' * 100000)", "is no JSON"),
        ('print(\'{"note": "\\\\u0000"}\')', "holds a NUL"),
        ("print('x' * 2000000)", "more than 1048576 bytes"),
        ("pass", "is no JSON"),
        ("import sys; sys.exit('out of tokens')", "ended with 1: out of tokens"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "is no JSON"),
    ],
)
def test_what_is_no_answer_is_said_in_words(script: str, reason: str) -> None:
    found = told(script)
    assert isinstance(found, str) and reason in found, found


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"import subprocess, time; p = subprocess.Popen(['sleep', '100']); open({str(mark)!r}, 'w').write(str(p.pid)); time.sleep(100)"
    found = told(script, timeout_s=3.0)
    assert isinstance(found, str) and "had not answered after 3 s" in found
    _gone(int(mark.read_text()))


def _gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} lives")


def test_a_command_that_does_not_exist() -> None:
    found = ask(("/no/such/program",), ProposerSpec(command=("/no/such/program",)), GIVEN)
    assert isinstance(found, str) and "can't be started" in found


@pytest.fixture
def place() -> Generator[Path]:
    if preflight.why_not() is not None:
        pytest.skip("nothing can be hidden here")
    with short_dir() as folder:
        yield folder


def test_the_walls_hide_what_would_show_the_holdout(place: Path) -> None:
    """The same command without walls finds all of it, so that what it looks for is there."""
    settings = Settings(state_dir=place / "state", worlds_dir=place / "worlds_src")
    socket = place / "socket"
    for path in (
        settings.state_dir / "artifacts" / "a",
        settings.worlds_dir / "worlds" / "h" / "cases" / "c.yaml",
        socket / ".s",
    ):
        path.parent.mkdir(parents=True)
        path.write_text("the-holdout")
    dev = settings.worlds_dir / "worlds" / "d" / "cases" / "c.yaml"
    dev.parent.mkdir(parents=True)
    dev.write_text("of-dev")
    script = (
        f"import json, os, pathlib, subprocess; root = pathlib.Path({str(place)!r}); "
        "found = sorted(str(p.relative_to(root)) for p in root.rglob('*') if p.is_file() and p.read_bytes() in (b'the-holdout', b'of-dev')); "
        f"others = [p for p in os.listdir('/proc') if p.isdigit() and p == {str(os.getpid())!r}]; "
        "undone = [subprocess.run(['umount', str(root / name)], capture_output=True).returncode for name in ('state', 'socket')] if len(found) < 4 else []; "
        f"again = (root / 'state' / 'artifacts').exists(); (root / 'mine').write_text('x'); "
        "print(json.dumps({'config': {'found': found, 'others': others, 'undone': undone, 'again': again}}))"
    )
    url = f"postgresql+psycopg2://u@/evals?host={socket}"
    kept = hidden(settings, url, ["h"])
    command = (sys.executable, "-c", script)
    rule = ProposerSpec(command=command, timeout_s=60)
    free, walled = (ask(one, rule, GIVEN) for one in (command, command_within(command, settings, kept)))
    dev_case, h_case = "worlds_src/worlds/d/cases/c.yaml", "worlds_src/worlds/h/cases/c.yaml"
    assert isinstance(free, dict) and isinstance(walled, dict), (free, walled)
    assert free["config"]["found"] == sorted(["socket/.s", "state/artifacts/a", dev_case, h_case])
    assert free["config"]["others"] != []
    assert walled["config"]["found"] == [dev_case]
    assert walled["config"]["others"] == []
    assert all(code != 0 for code in walled["config"]["undone"]) and walled["config"]["again"] is False
    assert (place / "mine").read_text() == "x"  # its user's other files are its own


def test_within_walls_nothing_outlives_a_command(place: Path) -> None:
    settings = Settings(state_dir=place / "state", worlds_dir=place / "worlds_src")
    mark = place / "beats"
    script = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        f"        open({str(mark)!r}, 'a').write('.'); time.sleep(0.05)\n"
        f"while not os.path.exists({str(mark)!r}): time.sleep(0.01)\n"
        'print(\'{"stop": "enough"}\')'
    )
    command = (sys.executable, "-c", script)
    within = command_within(command, settings, hidden(settings, "postgresql+psycopg2://u@/evals", []))
    assert ask(within, ProposerSpec(command=command, timeout_s=60), GIVEN) == {"stop": "enough"}
    time.sleep(0.3)
    before = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == before > 0


def test_the_answer_is_what_was_printed() -> None:
    answer = {"config": {"k": 3, "x": 1.5, "deep": [None, True]}, "note": "é", "cost_usd": 0.02}
    assert told(f"print({json.dumps(answer)!r})") == answer
