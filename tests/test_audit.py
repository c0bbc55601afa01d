"""`make audit` says what it could find out, whatever stands where the service of known vulnerabilities should be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
AUDIT = Path(__file__).resolve().parents[1] / ".ci" / "audit"
# Speaks as pip-audit does: of each requirement what it was told to know
TOOL = """#!{python}
import json, os, pathlib, sys, time
words = sys.argv[1:]
if os.environ["KNOWS"] == "silence":
    time.sleep(60)
known = json.loads(os.environ["KNOWS"])
names = [line.partition("==") for line in pathlib.Path(words[words.index("--requirement") + 1]).read_text().split()]
found = [{{"name": n, "version": v, "vulns": [{{"id": i, "fix_versions": []}} for i in known.get(n, [])]}} for n, _, v in names]
pathlib.Path(words[words.index("--output") + 1]).write_text(json.dumps({{"dependencies": found}}))
"""


def audit(folder: Path, knows: str) -> tuple[int, str]:
    (folder / ".ci").mkdir()
    shutil.copy(AUDIT, folder / ".ci" / "audit")
    tool = folder / ".audit" / "bin" / "pip-audit"
    tool.parent.mkdir(parents=True)
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
    for name in ("requirements.lock", "requirements-dev.lock"):
        (folder / name).write_text("ours==1.0\n")
    environ = {**os.environ, "KNOWS": knows, "AUDIT_LIMIT_S": "1" if knows == "silence" else "60"}
    done = subprocess.run(
        [sys.executable, str(folder / ".ci" / "audit")], env=environ, capture_output=True, text=True, check=False, timeout=50
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("knows", "code", "says"),
    [
        ("silence", 0, "not reachable"),
        ("{}", 0, "not reachable"),
        ('{"jinja2": ["A"]}', 0, "no known vulnerabilities in 1 packages"),
        ('{"jinja2": ["A"], "ours": ["B"]}', 1, "1 known vulnerabilities in 1 packages"),
    ],
)
def test_the_last_line_is_true(tmp_path: Path, knows: str, code: int, says: str) -> None:
    found, said = audit(tmp_path, knows)
    assert found == code
    assert says in said.splitlines()[-1]
