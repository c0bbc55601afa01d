"""Runs that share a limit. dagster.yaml gives each pool so many places at a time, and no number limits all runs together.

So what has no pool never waits for a place: that is how the scheduled work starts on time while experiments fill their pool.
"""

CELLS_POOL = "cells"
SCORING_POOL = "scoring"
