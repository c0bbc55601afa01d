"""What makes two sandboxes equal, and what a cap on the cost of warm ones means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.locks import MANIFEST

from eval_pipeline.domain.app import Resources, SecretNames, ServicesSpec
from eval_pipeline.domain.experiment import WarmSpec
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.warm import spec_digest
from eval_pipeline.runner.warm_pool import allowed_by


def standing_on(*layers: str) -> Prepared:
    return Prepared(key=layers[-1], layers=layers, world_dir=Path("/w"), state=None, image_commit=None)


def test_a_cell_and_a_warm_sandbox_are_equal_only_in_everything() -> None:
    changes: list[dict[str, Any]] = [
        {"resources": Resources(memory_mib=2048)},
        {"egress": ("api.example.com:443",)},
        {"services": ServicesSpec(up=("bin/up",))},
        {"secrets": SecretNames(agent=("KEY",))},
        {"agent": ("bin/other",)},
    ]
    digests = [spec_digest(standing_on("base", "p"), "world-1", MANIFEST, {"KEY": "v1"})]
    digests += [
        spec_digest(standing_on("base", "p"), "world-1", MANIFEST.model_copy(update=change), {"KEY": "v1"}) for change in changes
    ]
    digests += [
        spec_digest(standing_on("base", "q"), "world-1", MANIFEST, {"KEY": "v1"}),
        spec_digest(standing_on("other", "p"), "world-1", MANIFEST, {"KEY": "v1"}),
        spec_digest(standing_on("base", "p"), "world-2", MANIFEST, {"KEY": "v1"}),
        spec_digest(standing_on("base", "p"), "world-1", MANIFEST, {"KEY": "v2"}),
        spec_digest(standing_on("base", "p"), "world-1", MANIFEST, {}),
    ]
    assert len(set(digests)) == len(digests) == 11
    assert spec_digest(standing_on("base", "p"), "world-1", MANIFEST, {"KEY": "v1"}) == digests[0]


def test_a_cap_needs_a_price() -> None:
    two = Resources(cpu=2, memory_mib=4096)
    assert allowed_by(WarmSpec(count=9), "modal", two) is None
    assert allowed_by(WarmSpec(count=9, max_cost_usd_per_hour=0.0), "local", two) is None, "a local one costs nothing"
    # 2 x 0.1419 + 4 x 0.024 = 0.3798 dollars an hour, half as much again in a broad region
    assert allowed_by(WarmSpec(count=9, max_cost_usd_per_hour=1.0), "modal", two) == 2
    assert allowed_by(WarmSpec(count=9, max_cost_usd_per_hour=0.379), "modal", two) == 0
    assert allowed_by(WarmSpec(count=9, max_cost_usd_per_hour=1.0), "modal", two, region="us") == 1
    with pytest.raises(SpecError, match="is not known"):
        allowed_by(WarmSpec(count=9, max_cost_usd_per_hour=100.0), "elsewhere", two)
