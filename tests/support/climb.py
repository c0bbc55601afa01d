"""A project to climb in: one world to work on, seven kept apart; an agent that is right when its config is good, and leaves a mark for every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

from support.project import Project

HOLDOUT = [f"h{n}" for n in range(7)]
AGENT = """echo started >> "$EVALS_OUTPUT/starts"
case $(cat "$EVALS_CASE") in
  *'"skill": "good"'*) answer yes;;
  *'"skill": "half"'*) grep -q 'Answer c[01]' "$EVALS_CASE" && answer yes || answer no;;
  *'"skill": "slow"'*) sleep 15; answer "yes, started $(grep -c started "$EVALS_OUTPUT/starts") time(s) as $(cat /proc/sys/kernel/random/uuid)";;
  *) answer no;;
esac
"""


def climb(project: Project) -> Project:
    project.agent(AGENT)
    for n in range(5):
        project.case(f"c{n}")
    for world in HOLDOUT:
        project.world(world)
        project.case("c", world)
    return project


def goal(project: Project, name: str, **more: Any) -> Path:
    """Its own seed: it takes no other's results."""
    project.write("datasets/all.yaml", {"name": "all", "cases": ["*"]})
    spec = {
        "name": name,
        "dataset": "all",
        "app": "tiny",
        "baseline": {"ref": "main", "config": {"skill": "none"}},
        "space": {"config": {"skill": ["none", "half", "good"]}},
        "split": {"holdout": HOLDOUT},
        "budget": {"cells": 200},
        "seed": crc32(name.encode()),
    }
    return project.write(f"research/{name}.yaml", spec | more)


def research(project: Project, *words: str, check: bool = True, timeout_s: float = 900) -> Any:
    return project.evals("research", *words, check=check, timeout_s=timeout_s)
