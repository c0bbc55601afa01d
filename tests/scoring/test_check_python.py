"""Checks that are programs of one's own, each run for real in a sandbox: what they see, what they can't do, how they may end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.locks import criterion
from support.places import short_dir

from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.domain.usage import Usage
from eval_pipeline.scoring import check_python
from eval_pipeline.scoring.check_base import Bench, CheckResult, Undecided
from eval_pipeline.scoring.checks import Evidence, compares_states, run_check, validate_check
from eval_pipeline.scoring.verdicts import answer_questions, questions

pytestmark = pytest.mark.slow

FILE = "checks/mine.py"


@pytest.fixture(scope="module")
def bench() -> Generator[Bench]:
    with short_dir() as root:
        world = root / "world"
        (world / "documents").mkdir(parents=True)
        (world / "documents" / "lease.txt").write_text("The notice period is 60 days.")
        world.chmod(0o755)
        (world / "documents").chmod(0o755)
        (world / "documents" / "lease.txt").chmod(0o644)
        yield Bench(state_dir=root / "state", world_dir=world)


def written(source: str, **options: Any) -> dict[str, Any]:
    return {"python": check_python.loaded(FILE, textwrap.dedent(source), options)}


def evidence(bench: Bench | None, answer: str | None = "yes", **more: Any) -> Evidence:
    return Evidence(answer=answer, bench=bench, **more)


def run(bench: Bench, source: str, *, per_occurrence: bool = False, **more: Any) -> CheckResult:
    return run_check(written(source), evidence(bench, **more), per_occurrence=per_occurrence)


def undecided(bench: Bench, source: str, *, per_occurrence: bool = False) -> str:
    with pytest.raises(Undecided) as caught:
        run(bench, source, per_occurrence=per_occurrence)
    return str(caught.value)


def test_it_sees_what_it_names(bench: Bench) -> None:
    """One program, since each costs a sandbox: it asserts what it was given, and fails as a program when that is wrong."""
    source = """
        import json, pathlib
        def check(answer, files, texts, world, world_diff, usage, *, options):
            assert answer == "said é", answer
            assert sorted(files) == ["a b.bin", "d/memo.txt"], list(files)
            assert files["a b.bin"] == bytes(range(256)) and "none" not in files and len(files) == 2
            assert dict(texts) == {"d/memo.txt": "Mémo"}, dict(texts)
            assert (world / "documents/lease.txt").read_text().endswith("60 days.")
            assert world_diff is None
            assert [(one["model"], one["output"]) for one in usage] == [("m", 7)]
            print("what it prints", "\\x00", json.dumps([False, "is no answer"]))
            return answer.startswith("said"), f"within {options['days']} days"
        """
    given = evidence(
        bench,
        answer="said é",
        files={"a b.bin": bytes(range(256)), "d/memo.txt": "Mémo".encode()},
        usage=[Usage(model="m", output=7)],
    )
    result = run_check(written(source, days=60), given)
    assert (result.verdict, result.reason) == (1.0, f"{FILE}: within 60 days")


def test_it_may_say_no_and_count(bench: Bench) -> None:
    assert run(bench, "def check(answer): return 'no' in answer").verdict == 0.0
    counting = "def check(answer): return answer.count('yes'), 'times yes'"
    assert run(bench, counting, per_occurrence=True, answer="yes, yes and yes").verdict == 3.0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def check(answer): raise KeyError('lease')", "KeyError"),
        ("import numpy\ndef check(answer): return True", "No module named"),
        ("import os\ndef check(answer): os._exit(0)", "without an answer"),
        ("import os, signal\ndef check(answer): os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("def check(answer): return 'yes'", "not True or False"),
        ("def check(answer): return 1", "not True or False"),
        ("def check(answer): return None", "not True or False"),
        ("def check(answer): return True, 7", "not True or False"),
        ("def check(answer): return object()", "not JSON serializable"),
        ("def check(answer): return bytearray(4 << 30)", "MemoryError"),
        ("def check(answer):\n    while True: print('x' * 100000)", "failed with code"),
    ],
)
def test_one_that_breaks_gives_no_verdict(bench: Bench, source: str, said: str) -> None:
    reason = undecided(bench, source)
    assert said in reason and FILE in reason


def test_a_count_must_be_one(bench: Bench) -> None:
    for value in ("True", "-1", "1.5"):
        assert "a count of 0 or more" in undecided(bench, f"def check(answer): return {value}", per_occurrence=True)


@pytest.mark.slow
def test_one_that_hangs_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_python, "WALL_S", 3.0)
    assert "ran for more than 3 s" in undecided(bench, "import time\ndef check(answer): time.sleep(600)")
    monkeypatch.setattr(check_python, "_LIMITS", check_python._LIMITS | {"RLIMIT_CPU": 1})
    monkeypatch.setattr(check_python, "WALL_S", 60.0)
    assert "processor time" in undecided(bench, "def check(answer):\n    while True: pass")


def test_it_has_no_network_and_nothing_of_the_host(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", "hunter2")
    source = """
        import os, socket
        from pathlib import Path
        def check(answer, world, options):
            with open("/proc/net/route") as routes:
                assert len(routes.readlines()) <= 1, "a way out"
            try:
                socket.create_connection(("192.0.2.1", 80), 2)
                raise AssertionError("a way out")
            except OSError as error:
                assert error.errno == 101, error
            assert "A_SECRET_OF_THE_HOST" not in os.environ, "the environment"
            assert os.getuid() != 0, "root"
            for place in options["hidden"]:
                assert not Path(place).exists(), place
            numbers = [name for name in os.listdir("/proc") if name.isdecimal()]
            assert len(numbers) <= 3, numbers
            for place in ("/world/x", "/run/evals/x", "/x", "/usr/x", "/dev/x", "/opt/x"):
                try:
                    Path(place).write_text("x")
                except OSError:
                    continue
                raise AssertionError(place)
            return True
        """
    hidden = [str(bench.state_dir), str(bench.world_dir), __file__, "/etc/shadow"]
    assert run_check(written(source, hidden=hidden), evidence(bench)).verdict == 1.0


def test_it_can_be_composed(bench: Bench) -> None:
    """What it can't say decides nothing where the others do, and leaves open what hangs on it."""
    crash, met = written("def check(answer): 1 / 0"), {"contains": "yes"}
    assert run_check({"any": [crash, met]}, evidence(bench)).verdict == 1.0
    both = run_check({"all": [written("def check(answer): return True, 'as it should'"), met]}, evidence(bench))
    assert both.verdict == 1.0 and "as it should" in both.reason
    assert run_check({"not": written("def check(answer): return False")}, evidence(bench)).verdict == 1.0
    for check in ({"all": [crash, met]}, {"not": crash}, {"any": [crash, {"contains": "no"}]}):
        with pytest.raises(Undecided, match="ZeroDivisionError"):
            run_check(check, evidence(bench))


def test_a_verdict_that_could_not_be_had_is_a_failed_judgement(bench: Bench) -> None:
    rubric = Rubric(criteria=(criterion("mine", check=written("def check(answer): 1 / 0")), criterion("yes")))
    mine, yes = answer_questions(questions(rubric, "w", "b"), evidence(bench))
    assert (mine.verdict, mine.status, yes.verdict, yes.status) == (None, "failed", 1.0, "ok")
    assert "ZeroDivisionError" in mine.reason


def test_without_a_sandbox_it_is_not_run() -> None:
    with pytest.raises(Undecided, match="no sandbox"):
        run_check(written("def check(answer): return True"), evidence(None))


def test_another_content_is_another_question() -> None:
    """And the state before counts only for one that compares with it."""

    def asked(source: str, before: str | None = None) -> str:
        rubric = Rubric(criteria=(criterion("mine", check=written(source)),))
        return questions(rubric, "w", "b", before)[0].request_digest

    plain, comparing = "def check(answer): return True", "def check(world_diff): return True"
    assert asked(plain) != asked(plain + "  # changed")
    assert (asked(plain) == asked(plain, "s"), asked(comparing) == asked(comparing, "s")) == (True, False)
    assert compares_states({"all": [{"not": written(comparing)}]}) and not compares_states(written(plain))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def check(answer:\n", ":1: "),
        ("\n\ndef check(answer): return (\n", "never closed"),
        ("def chek(answer): return True", "has no function `check`"),
        ("check = lambda answer: True", "has no function `check`"),
        ("async def check(answer): return True", "has no function `check`"),
        ("import os\n\ndef check(answr): return True", ":3: `check` can't be given 'answr'"),
        ("def check(*answer): return True", "no *args"),
        ("def check(**given): return True", "no *args"),
        ("x = '\0'\ndef check(answer): return True", "can't be read as Python|null bytes"),
    ],
)
def test_what_is_no_check_is_found_unrun(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=FILE) as caught:
        validate_check({"python": check_python.loaded(FILE, source, {})})
    assert any(part in str(caught.value) for part in said.split("|")), str(caught.value)


def test_the_usage_check() -> None:
    used = replace(
        evidence(None), usage=[Usage(model="m", input_uncached=90, cache_read=10, output=5, calls=2), Usage(model="n")]
    )
    assert run_check({"usage": {"calls": 3, "input_tokens": 100}}, used).verdict == 1.0
    over = run_check({"usage": {"calls": 3, "output_tokens": 4}}, used)
    assert (over.verdict, over.reason) == (0.0, "too much: output_tokens 5 of 4")
    with pytest.raises(Undecided, match="no usage was recorded"):
        run_check({"usage": {"calls": 3}}, evidence(None))
    for wrong in ({}, 3, {"call": 3}, {"calls": -1}):
        with pytest.raises(ValueError, match="usage"):
            validate_check({"usage": wrong})


def test_the_sandbox_leaves_nothing_behind(bench: Bench) -> None:
    run(bench, "def check(answer): return True")
    forgotten = bench.state_dir / "once" / "forgotten"
    forgotten.mkdir()
    os.utime(forgotten, (1e9, 1e9))
    run(bench, "def check(answer): return True")
    assert [*Path(bench.state_dir, "once").iterdir()] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a place without user namespaces")
def test_where_nothing_can_be_isolated_it_is_not_run_either(bench: Bench) -> None:
    script = f"""
from pathlib import Path
from eval_pipeline.scoring.check_base import Bench, Evidence, Undecided
from eval_pipeline.scoring.checks import run_check
bench = Bench(state_dir=Path({str(bench.state_dir)!r}), world_dir=None)
check = {{"python": {{"file": "mine.py", "source": "def check(answer): return True", "with": {{}}}}}}
try:
    print(run_check(check, Evidence(answer="yes", bench=bench)))
except Undecided as why:
    print("undecided", why)
"""
    place = Path(__file__).parents[1] / "support" / "no_user_namespaces.py"
    done = subprocess.run(
        [sys.executable, str(place), sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith("undecided mine.py failed with code 1: 'bwrap:"), done
