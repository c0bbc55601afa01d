"""An agent in a real sandbox asks a provider on loopback through the host's gateway: what it costs, and that it never has the key."""

from __future__ import annotations

import io
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from backports.zstd import tarfile
from support.places import short_dir
from support.project import Project
from support.providers import Provider

from eval_pipeline.vault.values import Values

pytestmark = pytest.mark.slow

KEY = f"canary-model-{secrets.token_hex(8)}"
# The pattern is written so that the script that holds it does not match.
AGENT = """
mkdir -p $EVALS_OUTPUT/files
cat > /tmp/ask.py <<'END'
import json, os, sys, urllib.error, urllib.request
answers = []
for number in range(int(sys.argv[1])):
    body = json.dumps({"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}], "stream": number == 0}).encode()
    headers = {"Authorization": "Bearer " + os.environ["THE_MODEL_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
            answers.append([reply.status, reply.read().decode()])
    except urllib.error.HTTPError as error:
        answers.append([error.code, error.read().decode()])
open(os.environ["EVALS_OUTPUT"] + "/files/answers", "w").write(json.dumps(answers))
print(json.dumps({"type": "usage", "model": "gpt-x", "output": 1}), file=open(os.environ["EVALS_OUTPUT"] + "/transcript.jsonl", "w"))
sys.exit(answers[-1][0] != 200)
END
case "$(cat $EVALS_CASE)" in *twice*) calls=2;; *) calls=9;; esac
python3 /tmp/ask.py $calls; code=$?
found=$(env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n')
memory=$(grep -laE "cana""ry-model" /proc/[0-9]*/mem 2>/dev/null)
files=$(grep -rlaE "cana""ry-model" /run /tmp /etc /out /var /home /app /world 2>/dev/null)
echo "env $(echo "$found" | grep -cE "cana""ry-model") memory ${memory:-none} files ${files:-none} token $(echo "$found" | grep -qE "eva""ls-e-" && echo found)" > $EVALS_OUTPUT/files/saw
env | grep -E "KEY|BASE_URL" | sort > $EVALS_OUTPUT/files/env
test $code = 0 && answer yes
exit $code
"""
PRICE = {
    "provider": "p",
    "model": "gpt-x",
    "effective_from": "2020-01-01",
    "input_uncached": "1000",
    "cache_read": "100",
    "cache_write_5m": "0",
    "cache_write_1h": "0",
    "output": "2000",
    "source": "test",
}


@pytest.fixture(scope="module")
def asked(shared_state: Path) -> Generator[tuple[Project, Provider]]:
    with short_dir() as root, Provider() as provider:
        project = Project(root, shared_state, {"EVALS_OPENAI_BASE_URL": f"{provider.url}/v1", "THE_MODEL_KEY": KEY})
        project.manifest(secrets={"agent": ["THE_MODEL_KEY"]}, models={"gateway": True, "openai": "THE_MODEL_KEY"})
        project.write("prices.yaml", [PRICE])
        project.agent(AGENT)
        yield project, provider
        shutil.rmtree(Values(shared_state).folder)


def run(project: Project, name: str, prompt: str, **limits: Any) -> dict[str, Any]:
    """The only cell of an experiment of its own."""
    for old in (project.worlds / "worlds/w/cases").glob("*.yaml"):
        old.unlink()
    project.case(name, prompt=prompt, limits={"wall_s": 60, **limits})
    arms = [{"name": "a", "ref": "main", "config": {"model": "gpt-x"}}]
    project.experiment(name, arms=arms)
    experiment = project.run(name, check=False)["data"]["experiment"]
    return project.evals("cell", "show", f"{experiment}/w.{name}/a/0")


def files(project: Project, cell: dict[str, Any], *names: str) -> list[str]:
    with short_dir() as folder:
        project.evals("cell", "files", cell["cell"], "--into", str(folder))
        return [(folder / name).read_text() for name in names]


@pytest.mark.long
def test_usage_is_measured_whatever_the_agent_says_and_the_key_is_never_inside(asked: tuple[Project, Provider]) -> None:
    project, provider = asked
    cell = run(project, "good", "ask twice")
    assert cell["outcome"] == "ok"
    (usage,) = cell["usage"]
    assert (usage["model"], usage["input_uncached"], usage["cache_read"], usage["output"], usage["calls"]) == (
        "gpt-x",
        1200,
        800,
        100,
        2,
    )
    assert (cell["usage_source"], float(cell["cost_usd"])) == ("measured", pytest.approx(1.2 + 0.08 + 0.2))
    saw, env, answers = files(project, cell, "saw", "env", "answers")
    assert saw == "env 0 memory none files none token found\n"  # the token shows that the search finds
    token = dict(line.split("=", 1) for line in env.splitlines())["THE_MODEL_KEY"]
    assert token.startswith("evals-e-") and "OPENAI_BASE_URL=http://model-gateway/openai\n" in env
    assert {seen.headers["authorization"] for seen in provider.seen} == {f"Bearer {KEY}"}
    assert KEY not in answers
    kept = Values(project.state_dir).folder
    holding = [path for path in tree(project.state_dir) if holds(path, KEY.encode())]
    assert [path for path in holding if kept not in path.parents] == []
    assert [path for path in tree(project.state_dir) if holds(path, token.encode()) and "artifacts" not in path.parts] == []


def test_the_cells_budget_ends_it(asked: tuple[Project, Provider]) -> None:
    project, provider = asked
    before = len(provider.seen)
    cell = run(project, "dear", "ask often", cost_usd=1.0)
    assert (cell["outcome"], cell["usage_source"]) == ("budget_exceeded", "measured")
    assert len(provider.seen) - before == 2
    assert float(cell["cost_usd"]) == pytest.approx(1.48)


@pytest.mark.long
def test_a_provider_that_fails_for_good_is_no_fault_of_the_agent(asked: tuple[Project, Provider]) -> None:
    project, provider = asked
    provider.script += [(503, {"retry-after": "0"})] * (2 * 4)
    cell = run(project, "lucky", "ask twice")
    first, second = cell["attempts"]
    assert (first["outcome"], first["error_class"]) == ("infra_failure", "provider")
    assert "the provider openai answered 503 (tries: 4)" in first["error"]
    assert (second["outcome"], cell["outcome"]) == ("ok", "ok")


def tree(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def holds(path: Path, text: bytes) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    if data[:4] == b"\x28\xb5\x2f\xfd":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return any(text in (archive.extractfile(one) or io.BytesIO()).read() for one in archive if one.isfile())
    return text in data
