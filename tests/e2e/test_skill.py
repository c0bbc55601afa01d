"""The skill is true: every command in it runs, in its order, on a small project."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from support.project import Project

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_every_command_of_the_skill_works_in_order(project: Project) -> None:
    made = project.evals("skill", "install", str(project.root / "skills"))
    again = project.evals("skill", "install", str(project.root / "skills"))
    assert (made["written"], again["written"]) == (True, False)
    text = Path(made["file"]).read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["name"] == "evals" and 50 < len(head["description"]) < 1024
    Path(made["file"]).write_text("mine")
    assert project.evals("skill", "install", str(project.root / "skills"), check=False)["exit_code"] == 2

    project.agent(
        "echo '{\"type\": \"message\"}' > $EVALS_OUTPUT/transcript.jsonl; grep -q '\"top_k\": 4' $EVALS_CASE && answer '60 days' || answer no"
    )
    project.world("v")
    project.case("c", world="v", limits={"cost_usd": 0.5})
    files = dict(re.findall(r"```yaml\n# worlds_src/(\S+)\n(.*?)```", text, re.DOTALL))
    assert {path.split("/")[0] for path in files} == {"datasets", "experiments", "research"}
    for path, content in files.items():
        project.write(path, content)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    assert len(blocks) == 5
    found = {" ".join(words[:2]): project.evals(*[word for word in words if word != "--json"]) for words in commands}
    assert found["case try"]["score"] == 1.0
    assert found["cell show"]["criteria"][0]["verdict"] == 0
    assert len(found["cell transcript"]["events"]) == 1
