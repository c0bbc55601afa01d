from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Spec(BaseModel):
    """What a person wrote, or what is locked from it: frozen, strictly typed, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """What was worked out of the old fields and kept (a digest) is not taken along."""
        copied = super().model_copy(update=update, deep=deep)
        state = vars(copied)
        for name in state.keys() - type(self).model_fields.keys():
            del state[name]
        return copied


class Grown(Spec):
    """A field of `_LATER` is left out of what is stored and hashed while it has its default: old identities stay."""

    _LATER: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        unused = [name for name in self._LATER if getattr(self, name) == type(self).model_fields[name].get_default()]
        return {name: value for name, value in data.items() if name not in unused}
