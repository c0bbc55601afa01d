"""The report's pages from their templates. Whatever is put into one is escaped; no page holds a script or asks for anything."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eval_pipeline.analysis.board import ArmRow
from eval_pipeline.analysis.cell_cost import source_in_words
from eval_pipeline.domain.world_diff import printable

_TEMPLATES = Path(__file__).with_name("templates")
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}
MISSING = Markup('<span class="na" title="could not be had">–</span>')


def page(template: str, **values: Any) -> bytes:
    return _environment().get_template(template).render(**values).encode()


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=clean,
    )
    css = (_TEMPLATES / "report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    environment.globals.update(
        css=Markup(css),
        na=MISSING,
        csp=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        product_version=version("eval-pipeline"),
        made_at=lambda: datetime.now(UTC),
    )
    environment.filters.update(_FILTERS)
    return environment


def clean(value: Any) -> Any:
    """Text of any origin as text that a page can hold: control characters and what is not Unicode appear as escapes."""
    if value is None:
        return MISSING
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value.translate(_CONTROLS))


def number(value: float | Decimal | None, digits: int = 3) -> str | Markup:
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str | Markup:
    return MISSING if value is None else f"{value:+.{digits}f}".replace("-", "−")


def usd(value: float | Decimal | None) -> str | Markup:
    """With so many digits that something is left of it: 0.0018, 12.35."""
    if value is None:
        return MISSING
    number = float(value)
    return f"{number:.2f}" if number == 0 or abs(number) >= 1 else f"{number:.{4 if abs(number) >= 0.001 else 6}f}"


def span(low: float | None, high: float | None, digits: int = 3) -> str | Markup:
    return MISSING if low is None or high is None else f"{number(low, digits)} to {number(high, digits)}"


def percent(value: float | None) -> str | Markup:
    return MISSING if value is None else f"{value:.0%}"


def rank(arm: ArmRow) -> str | Markup:
    if arm.rank_best is None or arm.rank_worst is None:
        return MISSING
    return str(arm.rank_best) if arm.rank_best == arm.rank_worst else f"{arm.rank_best}–{arm.rank_worst}"


def p_value(value: float | None) -> str | Markup:
    return MISSING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def moment(value: datetime | None) -> str | Markup:
    if value is None:
        return MISSING
    at = value.astimezone(UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(timespec="seconds"), f"{at:%Y-%m-%d %H:%M}")


def size(n_bytes: int) -> str:
    for unit, factor in (("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} bytes"


def counted(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


_FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "signed": signed,
    "usd": usd,
    "cost_source": source_in_words,
    "percent": percent,
    "rank": rank,
    "p_value": p_value,
    "moment": moment,
    "size": size,
    "counted": counted,
}
