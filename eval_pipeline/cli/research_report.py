"""A research for people: its rows as they are written, where it stands, and its report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import harmless, table

if TYPE_CHECKING:
    from eval_pipeline.research.journal import Row


def line_of(row: Row) -> str | None:
    """One line a row; nothing of the holdout but its answer."""
    data = row.data
    match row.kind:
        case "proposed":
            return f"step {row.step}: proposed {_short(data['arm'].get('config'))}"
        case "refused":
            return harmless(f"step {row.step}: refused: {data['why']}")
        case "measured":
            return f"step {row.step}: measured on {data['half']}, {data['n_valid']} of {data['n_cells']} cells valid"
        case "decided":
            told = effect(data)
            return f"step {row.step}: on dev {told}: {'worth a question to the holdout' if data['better'] else data['why']}"
        case "asked":
            return f"step {row.step}: question {data['query']} to the holdout, at alpha {data['alpha']:.4f}"
        case "answered":
            return f"step {row.step}: {'accepted' if data['accepted'] else 'rejected by the holdout'}"
        case "stopped":
            return harmless(f"stopped: {data['why']}")
        case _:
            return None


def effect(data: dict[str, Any]) -> str:
    """`+0.120 [+0.010, +0.230] p 0.031`, or a ratio `x0.80 [...]`."""
    if data.get("effect") is None:
        return "no effect could be had"
    sign = (lambda value: f"{value:+.3f}") if data["kind"] == "difference" else (lambda value: f"x{value:.3f}")
    interval = "" if data["ci_lower"] is None else f" [{sign(data['ci_lower'])}, {sign(data['ci_upper'])}]"
    return f"{sign(data['effect'])}{interval}" + ("" if data["p"] is None else f" p {data['p']:.3g}")


def _short(config: Any) -> str:
    return json.dumps(config, ensure_ascii=False)


def show_status(data: dict[str, Any]) -> None:
    click.echo(f"{data['research']}: {data['state']}" + (f": {harmless(data['stop_reason'])}" if data["stop_reason"] else ""))
    click.echo(
        f"{data['n_candidates']} candidates, {data['n_refused']} proposals refused, {data['n_queries']} questions to the holdout, "
        f"{data['n_accepted']} accepted; {data['n_dev']} cases on dev, {data['n_holdout']} kept apart"
    )
    spent, budget = data["spent"], data["budget"]
    parts = [
        _of(f"{spent['cost_usd']:.4f} USD", budget["cost_usd"]),
        _of(f"{spent['cells']} cells", budget["cells"]),
        _of(f"{spent['worked_s']:.0f} s", budget["wall_s"]),
    ]
    click.echo(f"spent: {', '.join(parts)}")
    click.echo(f"champion: step {data['champion']['step']} {_short(data['champion']['config'])}")
    for line in data["notes"]:
        click.echo(f"note: {line}")


def _of(spent: str, bound: Any) -> str:
    return spent if bound is None else f"{spent} of {float(bound):g}"


def show(data: dict[str, Any]) -> None:
    show_status(data)
    rows = [
        [
            one["step"],
            _changes(data, one),
            "-" if one["dev"] is None else effect(one["dev"]),
            _holdout(one["holdout"]),
            one["verdict"] if one["refused"] is None else f"refused: {one['refused']}",
        ]
        for one in data["trajectory"]
    ]
    click.echo("")
    table(["step", "changed", "dev (selected on dev)", "holdout", "verdict"], rows, cut="verdict")
    gain = data["published_gain"]
    click.echo(f"\npublished gain: {'' if gain.get('effect') is None else effect(gain) + ': '}{gain['claim']}")


def _changes(data: dict[str, Any], one: dict[str, Any]) -> str:
    """Against the baseline."""
    base, config = data["trajectory"][0]["config"] or {}, one["config"] or {}
    changed = {key: value for key, value in config.items() if base.get(key) != value}
    commit = one["commit"] if one["commit"] != data["trajectory"][0]["commit"] else None
    return ", ".join([*(f"{key}={value}" for key, value in changed.items()), *([commit[:12]] if commit else [])]) or "-"


def _holdout(one: dict[str, Any] | None) -> str:
    if one is None:
        return "-"
    return effect(one) if "effect" in one else f"question {one['query']}, alpha {one['alpha']:.4f}"
