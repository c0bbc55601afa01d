"""Secrets from the environment of the engine: only the names an app declares are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from eval_pipeline.errors import SpecError

STAND_IN = "stand-in"


def read_secrets(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of `names` that are set and not empty."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in names if env.get(name)}


def require_secrets(
    arm: str, names: Iterable[str], config: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> None:
    """Raise SpecError when an arm with a real model lacks a declared secret: nothing is spent on a run that can't work."""
    missing = sorted(set(names) - set(read_secrets(names, environ)))
    if missing and config.get("model") != STAND_IN:
        raise SpecError(
            f"arm {arm!r} uses the model {config.get('model')!r}, but {', '.join(missing)} is not set in the environment",
            hint=f"export {missing[0]}=..., or set `model: {STAND_IN}` for a run without a key",
        )
