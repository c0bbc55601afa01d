from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run_vectors

HERE = Path(__file__).parent
OWN = HERE / "vectors.json"
COMPARE = HERE / "vectors_compare.json"
REFERENCE = HERE.parents[2] / "shared" / "reference" / "statistics_vectors.json"


def run(*arguments: str | Path) -> tuple[int, list[str]]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run_vectors.main([str(argument) for argument in arguments])
    return code, printed.getvalue().splitlines()


def changed(tmp_path: Path, **changes: object) -> Path:
    """The first own vector of an arm's mean, with other fields."""
    vector = next(v for v in json.loads(OWN.read_text())["vectors"] if v["function"] == "arm_mean")
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({"vectors": [{**vector, **changes}]}))
    return path


def expected() -> dict[str, object]:
    return next(v["expected"] for v in json.loads(OWN.read_text())["vectors"] if v["function"] == "arm_mean")


def test_own_vectors_pass() -> None:
    done = subprocess.run(
        [sys.executable, HERE / "run_vectors.py", OWN, "--sections", "1,2,5"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, [all_passed(OWN)], "")


def test_own_vectors_of_comparisons_pass() -> None:
    assert run(COMPARE, "--sections", "3,4,5,6,7") == (0, [all_passed(COMPARE)])


def all_passed(file: Path) -> str:
    return f"vectors passed={len(json.loads(file.read_text())['vectors'])} failed=0 unsupported=0"


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference vectors lie beside the repository only where it is developed")
def test_reference_vectors_pass() -> None:
    code, lines = run(REFERENCE, "--sections", "1,2,3,4,5,6,7")
    assert code == 0, lines
    assert lines[-1].endswith("failed=0 unsupported=0")


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "file"), [("make_vectors.py", OWN), ("make_vectors_compare.py", COMPARE)])
def test_own_vectors_are_what_their_maker_makes(maker: str, file: Path) -> None:
    made = subprocess.run([sys.executable, HERE / maker], capture_output=True, text=True, check=True).stdout
    assert_same(json.loads(made)["vectors"], json.loads(file.read_text())["vectors"], "vectors")


def assert_same(one: Any, other: Any, where: str) -> None:
    """Floats as near as two kinds of processor bring them: linear algebra adds up in another order on each."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_same(value, other[name], f"{where}.{name}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), where
        for n, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{n}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12), where
    else:
        assert one == other, where


def test_a_wrong_number_is_printed_and_fails(tmp_path: Path) -> None:
    code, lines = run(changed(tmp_path, expected={**expected(), "mean": 0.123}))
    assert code == 1
    assert lines[0].startswith("arm_mean_0  mean  expected 0.123  got 0.")
    assert lines[-1] == "vectors passed=0 failed=1 unsupported=0"


@pytest.mark.parametrize(
    ("path", "value"), [("se", None), ("flags", ["few_clusters", "zero_variance"]), ("n_cases", "6"), ("no_such_key", None)]
)
def test_every_kind_of_difference_fails(tmp_path: Path, path: str, value: object) -> None:
    code, lines = run(changed(tmp_path, expected={**expected(), path: value}))
    assert code == 1
    assert lines[0].startswith(f"arm_mean_0  {path}  expected ")


def test_null_is_not_zero(tmp_path: Path) -> None:
    cells = [["a", 0, None], ["b", 0, None]]
    given = {"cells": cells, "world": None, "score_range": [0, 1], "alpha": 0.05}
    assert run(changed(tmp_path, input=given, expected={"mean": None, "se": None, "flags": ["no_data"]}))[0] == 0
    assert run(changed(tmp_path, input=given, expected={"mean": 0.0}))[0] == 1


def test_a_function_without_support_fails_only_within_chosen_sections(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    own = json.loads(OWN.read_text())["vectors"][0]
    path.write_text(json.dumps({"vectors": [own, {**own, "id": "other", "function": "horoscope"}]}))
    assert run(path) == (0, ["vectors passed=1 failed=0 unsupported=1"])
    code, lines = run(path, "--sections", "1")
    assert (code, lines[-1]) == (1, "vectors passed=1 failed=0 unsupported=1")
    assert lines[0] == "other: horoscope is not supported, which within --sections is a failure"


def test_a_run_over_nothing_is_no_success(tmp_path: Path) -> None:
    code, lines = run(changed(tmp_path), "--sections", "9")
    assert (code, lines) == (1, ["vectors passed=0 failed=0 unsupported=0"])


def test_list_names_the_functions_of_the_own_vectors() -> None:
    code, lines = run("--list")
    assert code == 0
    assert {v["function"] for file in (OWN, COMPARE) for v in json.loads(file.read_text())["vectors"]} <= set(lines)
    assert lines == sorted(lines)
