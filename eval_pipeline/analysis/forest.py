"""One picture of a leaderboard: each arm's score with its interval."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from eval_pipeline.analysis.board import ArmRow

_LABEL_CHARS = 28


def forest_png(rows: Sequence[ArmRow]) -> bytes:
    """Dots are scores, thick lines their 95% CI, thin ones what the score would be if every missing cell were the worst or the best.

    An arm without a score has a line of its own and no dot.
    """
    from matplotlib.figure import Figure  # slow to load

    figure = Figure(figsize=(6.4, 0.7 + 0.32 * len(rows)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for at, row in enumerate(rows):
        if row.bound_low is not None and row.bound_high is not None:
            axes.plot([row.bound_low, row.bound_high], [at, at], color="0.75", linewidth=1)
        if row.ci_low is not None and row.ci_high is not None:
            axes.plot([row.ci_low, row.ci_high], [at, at], color="tab:blue", linewidth=3, solid_capstyle="butt")
        if row.score is not None:
            axes.plot([row.score], [at], "o", color="black", markersize=5)
    # An arm's name is no formula, whatever dollar signs stand in it
    names = [row.arm if len(row.arm) <= _LABEL_CHARS else row.arm[: _LABEL_CHARS - 1] + "…" for row in rows]
    axes.set_yticks(range(len(rows)), names, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("score, 95% CI for new cases")
    axes.grid(axis="x", color="0.9")
    axes.spines[["top", "right", "left"]].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def forest_markdown(rows: Sequence[ArmRow]) -> str:
    return f"![scores with 95% CI](data:image/png;base64,{base64.b64encode(forest_png(rows)).decode()})"
