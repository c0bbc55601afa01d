"""The whole loop where nothing has an effect: how often is a candidate accepted all the same? One JSON line.

`python bench/research_null.py --seeds 20`; with `--effect 0.1` one of three styles is truly so much better, to see what is found then
and how far dev (the champion's last dev difference) and the holdout (what would be published) are from the truth. A seed is a research of its own, driven by the product's loop, search and tests; only the
cells are simulated: worlds that differ, cases that differ within them, trials that differ, and every config the same. A fifth of the
candidates also loses cells, which must never help them. dev_gain_mean: of the best dev difference in each research, which is what
would have been reported without a holdout. false_accepts counts researches with at least one accepted candidate.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eval_pipeline.research.decide import gain
from eval_pipeline.research.goal import DecideRule, Metric, Range, Space, StopRule
from eval_pipeline.research.journal import Half, Row, State
from eval_pipeline.research.loop import Ground, Hands, Proposal, advance
from eval_pipeline.research.space import search

SPACE = Space(config={"k": Range(min=1, max=9), "style": ("brief", "careful", "long"), "t": Range(min=0.0, max=1.0)})
BASELINE: dict[str, Any] = {"k": 4, "style": "brief", "t": 0.5}


@dataclass(kw_only=True)
class Simulated:
    """effect: by how much the style `careful` is truly better."""

    seed: int
    effect: float = 0.0
    worlds: int = 12
    cases: int = 3
    trials: int = 2
    candidates: int = 12
    dev_alpha: float = 0.2
    lost: float = 0.02
    rows: list[Row] = field(default_factory=list[Row])

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, 1])
        count = 2 * self.worlds
        self._world = {f"w{w}.c{c}": f"w{w}" for w in range(count) for c in range(self.cases)}
        level = self._rng.normal(0.0, 0.1, count)
        self._level = {case: 0.55 + level[int(w[1:])] + self._rng.normal(0.0, 0.15) for case, w in self._world.items()}

    @property
    def ground(self) -> Ground:
        rule = DecideRule(dev_alpha=self.dev_alpha)
        return Ground(metric=Metric(), rule=rule, world=self._world, span={"score": (0.0, 1.0)})

    def run(self) -> State:
        state = State()
        state.apply(self._append("started", 0, {"arm": {"config": BASELINE}}))
        rule = StopRule(patience=None, candidates=self.candidates)
        hands = Hands(append=self._append, measure=self._measure, propose=self._propose)
        advance(state, self.ground, rule, hands)
        return state

    def _append(self, kind: str, step: int, data: dict[str, Any]) -> Row:
        row = Row(ordinal=len(self.rows), kind=kind, step=step, data=data)
        self.rows.append(row)
        return row

    def _propose(self, state: State, step: int) -> Proposal:
        tried = [one.arm["config"] for one in state.steps]
        config = search("local", SPACE, state.incumbent.arm["config"], tried, self.seed, step)
        return Proposal(arm=None if config is None else {"config": config})

    def _measure(self, state: State, step: int, half: Half) -> dict[str, Any]:
        of_dev = {case for case, world in self._world.items() if int(world[1:]) < self.worlds}
        chosen = [case for case in self._world if (case in of_dev) == (half == "dev")]
        better = self.effect * (state.steps[step].arm["config"]["style"] == "careful")
        lost = self.lost if step % 5 == 0 else 0.0
        return {"columns": {"score": {case: [self._cell(case, better, lost) for _ in range(self.trials)] for case in chosen}}}

    def _cell(self, case: str, better: float, lost: float) -> float | None:
        value = float(np.clip(self._level[case] + better + self._rng.normal(0.0, 0.2), 0.0, 1.0))
        return None if self._rng.random() < lost else value

    def best_dev_gain(self) -> float:
        gains = [row.data["effect"] for row in self.rows if row.kind == "decided"]
        return max((gain for gain in gains if gain is not None), default=0.0)


def null(seeds: int, first: int = 0) -> dict[str, Any]:
    accepts, gains = 0, []
    for seed in range(first, first + seeds):
        one = Simulated(seed=seed)
        accepts += one.run().n_accepted > 0
        gains.append(one.best_dev_gain())
    return {"seeds": seeds, "false_accepts": accepts, "dev_gain_mean": round(float(np.mean(gains)), 4)}


def real(seeds: int, first: int, effect: float) -> dict[str, Any]:
    """dev_gain_mean, holdout_gain_mean: of the researches that accepted somebody, champion against the original baseline."""
    dev, holdout, n_right = [], [], 0
    for seed in range(first, first + seeds):
        one = Simulated(seed=seed, effect=effect)
        state = one.run()
        base, champion = state.steps[0], state.incumbent
        if champion.number and base.dev and base.holdout and champion.dev and champion.holdout:
            n_right += champion.arm["config"]["style"] == "careful"
            for gains, a, b in ((dev, base.dev, champion.dev), (holdout, base.holdout, champion.holdout)):
                gains.append(gain(one.ground.metric, a, b, one.ground.world, one.ground.span).effect)
    means = {"dev_gain_mean": dev, "holdout_gain_mean": holdout}
    return {"seeds": seeds, "effect": effect, "accepts": len(dev), "true_accepts": n_right} | {
        name: round(float(np.mean(gains)), 4) if gains else None for name, gains in means.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--effect", type=float, default=0.0)
    given = parser.parse_args()
    print(json.dumps(real(given.seeds, given.first, given.effect) if given.effect else null(given.seeds, given.first)))
