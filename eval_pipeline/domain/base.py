from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """What a person wrote, or what is locked from it: frozen, strictly typed, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
