"""Names made from free text."""

from __future__ import annotations

import re
import unicodedata

from eval_pipeline.domain.ids import SLUG_MAX

_FILLER = re.compile(
    "an?|and|any|are|as|at|be|by|did|do|does|for|from|had|has|have|how|if|in|into|is|its?|of|on|or|response|should|stated?|states"
    "|that|the|their|there|this|to|was|were|when|which|whose|with"
)


def slug_words(text: str) -> list[str]:
    """Lower-case ASCII words and numbers; letters without an ASCII form are left out."""
    plain = unicodedata.normalize("NFKD", re.sub("['\u2018\u2019]", "", text)).encode("ascii", "ignore").decode()
    return re.findall(r"[a-z0-9]+", plain.lower())


def slug(text: str) -> str:
    """The words joined by `-`, cut between words to 64 characters; "" when there are none."""
    whole = "-".join(slug_words(text))
    if len(whole) <= SLUG_MAX:
        return whole
    return whole[: SLUG_MAX + 1].rpartition("-")[0] or whole[:SLUG_MAX]


def telling_words(text: str, count: int = 5) -> list[str]:
    """The first words that tell one criterion from another."""
    return [word for word in slug_words(text) if not _FILLER.fullmatch(word)][:count]
