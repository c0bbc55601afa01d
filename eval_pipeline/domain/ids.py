"""Names: slugs, case names, cell keys and the names of sandboxes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from sys import intern
from typing import Annotated

from pydantic import AfterValidator

SLUG_PATTERN = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
SLUG_MAX = 64
_TRIAL = re.compile(r"0|[1-9][0-9]{0,9}")


def check_slug(value: str) -> str:
    """Return `value`, or raise ValueError: names end up in paths, partition keys and sandbox tags."""
    if len(value) > SLUG_MAX or not SLUG_PATTERN.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a name: a to z and 0 to 9, joined by single '-' or '_', at most {SLUG_MAX} characters"
        )
    return value


def check_written(path: str) -> str:
    """Return `path`, or raise ValueError: what an agent leaves stands below its files/."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} can't be written by an agent: name a file below its files/, without a leading / and ..")
    return path


Slug = Annotated[str, AfterValidator(check_slug)]


@dataclass(frozen=True, order=True)
class CellKey:
    """One independent run. Written `experiment/world.case/arm/trial`: the Dagster partition key.

    world: "" for one that was imported; `case` is then all of its name, whatever is in it.
    """

    experiment: str
    world: str
    case: str
    arm: str
    trial: int

    def __str__(self) -> str:
        return f"{self.experiment}/{self.case_name}/{self.arm}/{self.trial}"

    @property
    def imported(self) -> bool:
        return not self.world

    @property
    def case_name(self) -> str:
        return self.case if self.imported else f"{self.world}.{self.case}"

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Raise ValueError when `text` is not a cell key."""
        parts = text.split("/")
        world, dot, case = parts[1].partition(".") if len(parts) == 4 else ("", "", "")
        if not dot or not SLUG_PATTERN.fullmatch(parts[0]) or not _TRIAL.fullmatch(parts[3]):
            raise ValueError(f"{text!r} is not a cell key: experiment/world.case/arm/trial")
        # interned: many cells, few names
        experiment, world, case, arm = map(intern, (parts[0], check_slug(world), check_slug(case), check_slug(parts[2])))
        return cls(experiment, world, case, arm, int(parts[3]))


def sandbox_name(installation: str, cell: str, attempt: int) -> str:
    """`e-` and 24 hex digits: the same attempt of the same cell always asks for the same sandbox."""
    identity = f"{installation}\0{cell}\0{attempt}"
    return "e-" + hashlib.sha256(identity.encode()).hexdigest()[:24]
