"""What stands in a case's place and can't be read as one: which selections it could belong to."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Any, cast

from eval_pipeline.domain.case import Case, CaseSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.yaml_file import YamlFile

_WILD = re.compile(r"[*?\[]")
TAG = "tag:"


@dataclass(frozen=True, kw_only=True)
class UnreadableCase:
    """A case, or all cases of a world that can't be read. case_id, tags: None: they can't be known."""

    world: str
    case_id: str | None = None
    tags: frozenset[str] | None = None
    error: SpecError

    @classmethod
    def of(cls, world: str, file: YamlFile | None, error: SpecError) -> UnreadableCase:
        """file: None when it is no YAML either."""
        data: Any = None if file is None else file.data
        if not isinstance(data, dict):
            return cls(world=world, error=error)
        said = cast(dict[str, Any], data)
        case_id = said.get("id")
        return cls(world=world, case_id=case_id if isinstance(case_id, str) else None, tags=_tags(said), error=error)

    def may_be(self, pattern: str) -> bool:
        """Whether it may be what a dataset's pattern means, once it is corrected."""
        if pattern.startswith(TAG):
            return self.tags is None or pattern.removeprefix(TAG) in self.tags
        if self.case_id is not None:
            return fnmatch.fnmatchcase(f"{self.world}.{self.case_id}", pattern)
        fixed, begins = _WILD.split(pattern, maxsplit=1)[0], f"{self.world}."
        return fixed.startswith(begins) or (fixed != pattern and begins.startswith(fixed))


def _tags(said: dict[str, Any]) -> frozenset[str] | None:
    tags: Any = said.get("tags", [])
    misspelt = "tags" not in said and not said.keys() <= CaseSpec.model_fields.keys()
    if misspelt or not isinstance(tags, list):
        return None
    return frozenset(map(str, cast(list[Any], tags)))


def selects(pattern: str, case: Case) -> bool:
    if pattern.startswith(TAG):
        return pattern.removeprefix(TAG) in case.spec.tags
    return fnmatch.fnmatchcase(case.name, pattern)
