"""Rounds in a row. A seed gives a round the same faults in the same order each time; what they hit is the machine's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from chaos.chaos_faults import FAULTS
from chaos.chaos_round import Round
from chaos.chaos_stage import Stage
from chaos.chaos_toll import Toll, toll_of

FULL_SET = 5  # rounds in which every fault occurs once


def kinds_of(seed: int) -> list[str]:
    kinds = sorted(FAULTS)
    random.Random(seed // FULL_SET).shuffle(kinds)
    return kinds[seed % FULL_SET :: FULL_SET]


def play(stage: Stage, seeds: Iterable[int], logs: Path, tell: Callable[[str], None] = print, story: bool = False) -> Toll:
    total = Toll()
    for seed in seeds:
        kinds = kinds_of(seed)
        round = Round(stage, seed, kinds, logs)
        tell(f"chaos seed={seed} backend={stage.backend} {' '.join(kinds)}")
        round.play(FAULTS)
        toll = toll_of(round)
        if toll.why:
            tell(f"seed {seed} on {stage.backend} failed; again: python -m tests.chaos --backend {stage.backend} {seed}")
            tell("  " + "\n  ".join([*toll.why, *round.said]))
            tell(round.log.read_text()[-6000:])
        elif story:
            tell("  " + "\n  ".join(round.said))
        total.add(toll)
        tell(f"  {toll.cells} cells, {len(round.actors)} engines, {time.time() - round.began:.1f} s")
    return total
