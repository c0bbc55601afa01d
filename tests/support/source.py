"""The package's own source as syntax trees: read and walked once for all who look at it."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

import eval_pipeline

ROOT = Path(eval_pipeline.__file__).parent


@functools.cache
def sources() -> dict[str, list[ast.AST]]:
    """Path below the package -> every node of its tree, the module first."""
    gc.collect()
    gc.disable()  # it would look again and again at what all stays: two thirds of the time
    try:
        return {str(path.relative_to(ROOT)): list(ast.walk(ast.parse(path.read_text()))) for path in sorted(ROOT.rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()


def dotted(node: ast.expr) -> str:
    """The name that is called, as far as it is one: `sa.text`, `.execute` of what another call returned."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{dotted(node.value)}.{node.attr}"
        case _:
            return ""
