"""The report's plots as SVG that takes its colours from the page.

Matplotlib draws with stand-in colours; each becomes a variable of the page's style sheet, so one picture serves light, dark and print.
Nothing in it is styled inline, which the page's Content-Security-Policy forbids, and every text stays text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_PX = 540
FONT_PX = 12.0
LABEL_CHARS = 28  # longer names are cut in pictures; the tables have them whole
N_COLOURS = 8
MARKERS = "os^DvPXp"
_CHAR_PX = 7.2  # of the fallback font, the widest there is

_INK, _MUTED, _LINE, _PAPER, _GAIN, _LOSS = (f"#0000{n:02x}" for n in range(1, 7))
_VARIABLES = {
    _INK: "--ink",
    _MUTED: "--muted",
    _LINE: "--line",
    _PAPER: "--paper",
    _GAIN: "--gain",
    _LOSS: "--loss",
    **{f"#0001{n:02x}": f"--arm-{n}" for n in range(N_COLOURS)},
}
_PRESENTATION = {"fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-dashoffset"}
_PRESENTATION |= {"stroke-linecap", "stroke-linejoin", "text-anchor", "opacity", "clip-path", "stroke-miterlimit"}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """low, high: None draws no whisker. faint_*: what is possible when missing values are filled with the worst and the best."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    arm: int
    faint_low: float | None = None
    faint_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """x of 0 stands in a column of its own: a logarithm has no place for it. on_front None: not known."""

    label: str
    x: float
    x_low: float | None
    x_high: float | None
    y: float
    y_low: float | None
    y_high: float | None
    arm: int
    on_front: bool


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Share that ended within `times`; censored: when the others were stopped."""

    label: str
    times: Sequence[float]
    shares: Sequence[float]
    censored: Sequence[tuple[float, float]]
    end: float
    arm: int


def short(label: str) -> str:
    return label if len(label) <= LABEL_CHARS else f"{label[: LABEL_CHARS - 1]}…"


def _colour(arm: int) -> str:
    return f"#0001{arm % N_COLOURS:02x}"


def intervals(rows: Sequence[Interval], *, title: str, axis: str, limits: tuple[float, float], zero: bool = False) -> Markup:
    """One row a line: the value, its interval, and both in numbers at the right. zero: a line that says "no difference"."""
    left = 16 + _CHAR_PX * max(len(row.label) for row in rows)
    right = 12 + _CHAR_PX * max(len(row.text) for row in rows)
    figure, axes = _figure(height=30 * len(rows) + 52, left=left, right=right, top=6, bottom=46)
    for y, row in enumerate(rows):
        colour = _colour(row.arm)
        if row.faint_low is not None and row.faint_high is not None:
            axes.plot([row.faint_low, row.faint_high], [y, y], color=_LINE, linewidth=9, solid_capstyle="butt")
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
        if row.value is not None:
            axes.plot([row.value], [y], marker=MARKERS[row.arm % len(MARKERS)], color=colour, markersize=8)
        axes.annotate(
            row.text, (1, y), (10, 0), ("axes fraction", "data"), "offset points", va="center", color=_INK, size=FONT_PX
        )
    if zero:
        axes.axvline(0, color=_MUTED, linewidth=1)
    axes.set(xlim=limits, ylim=(len(rows) - 0.4, -0.6), xlabel=axis)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="y", length=0, labelcolor=_INK)
    axes.grid(axis="x", color=_LINE, linewidth=1)
    return _svg(figure, title)


def scatter(points: Sequence[Point], *, title: str, x_axis: str, y_axis: str, y_limits: tuple[float, float], log: bool) -> Markup:
    """With the front as a line from arm to arm; arms off it are hollow."""
    zeros = [point for point in points if log and point.x <= 0]
    others = [point for point in points if point not in zeros]
    strip = 64 if zeros else 0
    figure, axes = _figure(height=340, left=52 + strip, right=16, top=10, bottom=46)
    if zeros:
        margin = figure.add_axes((52 / WIDTH_PX, 46 / 340, 48 / WIDTH_PX, 284 / 340))
        _style(margin)
        margin.set(xlim=(-1, 1), ylim=y_limits, ylabel=y_axis)
        margin.set_xticks([0], ["0"])
        margin.grid(axis="y", color=_LINE, linewidth=1)
        axes.tick_params(axis="y", labelleft=False)
        for point in zeros:
            _point(margin, point, 0.0)
            margin.annotate(point.label, (0, point.y), (0, 12), textcoords="offset points", ha="center", color=_INK, size=FONT_PX)
    else:
        axes.set_ylabel(y_axis)
    axes.set(xscale="log" if log else "linear", xlabel=x_axis, ylim=y_limits)
    axes.grid(color=_LINE, linewidth=1)
    if others:
        _x_range(axes, [point.x for point in others], log=log)
    front = sorted((point for point in others if point.on_front), key=lambda point: point.x)
    axes.plot(
        [point.x for point in front], [point.y for point in front], color=_MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1
    )
    for point in others:
        _point(axes, point, point.x)
    _labels(axes, others)
    return _svg(figure, title)


def _x_range(axes: Axes, values: Sequence[float], *, log: bool) -> None:
    low, high = min(values), max(values)
    if not log:
        axes.set_xlim(0, high * 1.25 or 1)
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    pad = max((high / low) ** 0.25, 1.6)
    axes.set_xlim(low / pad, high * pad)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10f}".rstrip("0").rstrip(".")))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _point(axes: Axes, point: Point, x: float) -> None:
    colour = _colour(point.arm)
    if point.y_low is not None and point.y_high is not None:
        axes.plot([x, x], [point.y_low, point.y_high], color=colour, linewidth=1.5, alpha=0.45, zorder=2)
    if point.x_low is not None and point.x_high is not None and x > 0:
        axes.plot([point.x_low, point.x_high], [point.y, point.y], color=colour, linewidth=1.5, alpha=0.45, zorder=2)
    face = colour if point.on_front else _PAPER
    marker = MARKERS[point.arm % len(MARKERS)]
    axes.plot([x], [point.y], marker=marker, color=colour, markerfacecolor=face, markersize=9, markeredgewidth=2, zorder=3)


def _labels(axes: Axes, points: Sequence[Point]) -> None:
    """Each beside its marker where no marker, no other label and no edge is in the way; one without such a place is left to the legend."""
    places = [axes.transData.transform((point.x, point.y)) for point in points]
    frame = axes.get_window_extent()
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    for point, (x, y) in zip(points, places, strict=True):
        width = _CHAR_PX * len(point.label)
        for dx, dy in ((12, 10), (12, -20), (-12 - width, 10), (-12 - width, -20), (-width / 2, 16), (-width / 2, -26)):
            box = (x + dx, y + dy, x + dx + width, y + dy + 12)
            inside = frame.x0 <= box[0] and box[2] <= frame.x1 and frame.y0 <= box[1] and box[3] <= frame.y1
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(
                    point.label, (point.x, point.y), (dx, dy), textcoords="offset points", color=_INK, va="bottom", size=FONT_PX
                )
                break


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def pairs(rows: Sequence[tuple[str, float, float]], *, title: str, axis: str, limits: tuple[float, float], arm: int) -> Markup:
    """A line a case from the first value (hollow) to the second (filled)."""
    left = 16 + _CHAR_PX * max(len(label) for label, _, _ in rows)
    figure, axes = _figure(height=21 * len(rows) + 56, left=min(left, 260), right=18, top=6, bottom=46)
    for y, (_, before, after) in enumerate(rows):
        change = _GAIN if after > before else _LOSS
        axes.plot([before, after], [y, y], color=change, linewidth=3, solid_capstyle="butt", alpha=0.55, zorder=1)
        axes.plot([before], [y], marker="o", color=_MUTED, markerfacecolor=_PAPER, markersize=8, markeredgewidth=1.5, zorder=2)
        axes.plot([after], [y], marker=MARKERS[arm % len(MARKERS)], color=_colour(arm), markersize=6.5, zorder=3)
    slack = 0.03 * (limits[1] - limits[0])
    axes.set(xlim=(limits[0] - slack, limits[1] + slack), ylim=(len(rows) - 0.4, -0.6), xlabel=axis)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    axes.tick_params(axis="y", length=0, labelcolor=_INK, labelsize=11)
    axes.grid(axis="x", color=_LINE, linewidth=1)
    return _svg(figure, title)


def curves(lines: Sequence[Curve], *, title: str, x_axis: str, y_axis: str) -> Markup:
    """Steps; a tick on a curve is a cell that was stopped there."""
    figure, axes = _figure(height=320, left=52, right=16, top=10, bottom=46)
    styles = ["-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2))]
    for line in lines:
        times, shares = [0.0, *line.times, line.end], [0.0, *line.shares, line.shares[-1] if line.shares else 0.0]
        style = styles[line.arm % len(styles)]
        axes.step(times, shares, where="post", color=_colour(line.arm), linewidth=2, linestyle=style)
        for time, share in line.censored:
            axes.plot([time], [share], marker="|", color=_colour(line.arm), markersize=10, markeredgewidth=1.5)
    axes.set(xlim=(0, max(line.end for line in lines) * 1.04 or 1), ylim=(0, 1.03), xlabel=x_axis, ylabel=y_axis)
    axes.grid(color=_LINE, linewidth=1)
    return _svg(figure, title)


def swatch(arm: int) -> Markup:
    """An arm's mark as legends and tables show it; hidden from screen readers, for its name stands beside it."""
    figure, axes = _figure(height=16, left=0, right=0, top=0, bottom=0, width=16)
    axes.set_axis_off()
    axes.plot([0.5], [0.5], marker=MARKERS[arm % len(MARKERS)], color=_colour(arm), markersize=9)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return _svg(figure, None)


def _figure(
    *, height: float, left: float, right: float, top: float, bottom: float, width: float = WIDTH_PX
) -> tuple[Figure, Axes]:
    """Margins in px; one px is a point at 72 dpi."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    axes = figure.add_axes(
        (left / width, bottom / height, max(width - left - right, width / 6) / width, (height - top - bottom) / height)
    )
    _style(axes)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
    axes.tick_params(colors=_MUTED, labelsize=FONT_PX, length=0, which="both", pad=6)
    axes.xaxis.label.set(color=_MUTED, size=FONT_PX)
    axes.yaxis.label.set(color=_MUTED, size=FONT_PX)
    axes.set_axisbelow(True)


def _svg(figure: Figure, title: str | None) -> Markup:
    from matplotlib import rc_context

    figure.patch.set_visible(False)
    sink = io.BytesIO()
    salt = f"{title}{figure.get_size_inches()}"
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.size": FONT_PX, "path.simplify": True}):
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_the_page(sink.getvalue(), title)


def _for_the_page(svg: bytes, title: str | None) -> Markup:
    root = ElementTree.fromstring(svg)
    used = set(re.findall(rb'(?:url\(#|xlink:href="#)([^)"]+)', svg))
    for parent in list(root.iter()):
        for child in [one for one in parent if _name(one.tag) in ("metadata", "style")]:
            parent.remove(child)
    for node in root.iter():
        node.tag = _name(node.tag)
        if node.get("id", "").encode() not in used:
            node.attrib.pop("id", None)
        attributes = {_name(key): value for key, value in node.attrib.items() if _name(key) != "style"}
        attributes |= _presentation(node.get("style", ""))
        node.attrib.clear()
        node.attrib.update({key: _themed(value) for key, value in attributes.items()})
    box = root.get("viewBox", "")
    root.attrib.clear()
    width, height = (math.ceil(float(number)) for number in box.split()[2:])
    named = {"role": "img", "aria-label": title} if title else {"aria-hidden": "true", "class": "swatch"}
    root.attrib.update({"viewBox": box, "width": str(width), "height": str(height), "focusable": "false", **named})
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _name(qualified: str) -> str:
    return qualified.rpartition("}")[2]


def _presentation(style: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name in _PRESENTATION:
            found[name] = value
        elif name in ("font", "font-size") and (size := re.search(r"([\d.]+)px", value)):
            found["font-size"] = size[1]
    return found


def _themed(value: Any) -> str:
    return f"var({_VARIABLES[value]})" if value in _VARIABLES else value
