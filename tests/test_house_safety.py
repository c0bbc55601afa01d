"""What no code here may do, held by reading the source: load objects from data, build SQL or commands from text, trust YAML."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from support.source import dotted, sources

OBJECTS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "xmlrpc", "jsonpickle"}
# Of PyYAML: what makes plain values only, or none
YAML = {
    "SafeLoader",
    "SafeDumper",
    "CSafeLoader",
    "safe_load",
    "safe_dump",
    "compose",
    "parse",
    "Node",
    "MappingNode",
    "ScalarNode",
}
YAML |= {
    "SequenceNode",
    "YAMLError",
    "MarkedYAMLError",
    "AliasEvent",
    "dump",
    "nodes",
    "events",
    "error",
    "constructor",
    "reader",
}
# `exec` of a check that a case's author wrote; it runs inside a sandbox of its own
CODE = {"scoring/check_driver.py"}
SQL = {"execute", "exec_driver_sql", "executemany", "literal_column", "copy_expert"}
# SQL that is put together from constants, where reading one line does not show it
CHOSEN_SQL = {"store/artifact_refs.py": 1}


def loads_objects(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if name.split(".")[0] in OBJECTS)


def runs_text(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ("eval", "exec", "os.system", "os.popen", "subprocess.getoutput"):
                yield name
            if name.startswith("subprocess.") and any(word.arg == "shell" for word in node.keywords):
                yield f"{name}(shell=...)"


def trusts_yaml(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "yaml"
            and node.attr not in YAML
        ):
            yield f"yaml.{node.attr}"
        if isinstance(node, ast.Call) and dotted(node.func) in ("yaml.compose", "yaml.parse"):
            given = [*node.args[1:], *(word.value for word in node.keywords)]
            if not any("SafeLoader" in ast.unparse(one) or ast.unparse(one) == "_Loader" for one in given):
                yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module == "yaml":
            yield ast.unparse(node)


def builds_sql(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Calls that take SQL as text, with text that is put together from what is known only when it runs."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = dotted(node.func)
        takes_sql = name in ("sa.text", "sqlalchemy.text", "text") or name.split(".")[-1] in SQL
        if takes_sql and _put_together(node.args[0]):
            yield ast.unparse(node)[:100]


def _put_together(node: ast.expr) -> bool:
    """From more than constants, which have names in capitals."""
    match node:
        case ast.JoinedStr():
            return any(not _constant(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
        case ast.BinOp(op=ast.Mod() | ast.Add()):
            return _put_together(node.left) or _put_together(node.right) or not (_constant(node.left) and _constant(node.right))
        case ast.Call(func=ast.Attribute(attr="format")):
            return not all(map(_constant, [*node.args, *(word.value for word in node.keywords)]))
        case _:
            return False


def _constant(node: ast.expr) -> bool:
    named = isinstance(node, ast.Name) and node.id == node.id.upper()
    formatted = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"
    return (
        named
        or isinstance(node, ast.Constant)
        or ((formatted or isinstance(node, ast.BinOp | ast.JoinedStr)) and not _put_together(node))
    )


def test_no_objects_are_loaded_from_data() -> None:
    assert {path: found for path, nodes in sources().items() if (found := list(loads_objects(nodes)))} == {}


def test_no_text_is_run_as_code_or_by_a_shell() -> None:
    assert {path for path, nodes in sources().items() if list(runs_text(nodes))} == CODE


def test_yaml_makes_plain_values() -> None:
    assert {path: found for path, nodes in sources().items() if (found := list(trusts_yaml(nodes)))} == {}


def test_sql_takes_what_it_is_about_as_parameters() -> None:
    assert {path: len(found) for path, nodes in sources().items() if (found := list(builds_sql(nodes)))} == CHOSEN_SQL


@pytest.mark.parametrize(
    ("look", "code"),
    [
        (loads_objects, "import pickle"),
        (loads_objects, "from marshal import loads"),
        (runs_text, "subprocess.run(x, shell=True)"),
        (runs_text, "eval(x)"),
        (trusts_yaml, "yaml.load(x)"),
        (trusts_yaml, "yaml.compose(x)"),
        (trusts_yaml, "from yaml import load"),
        (builds_sql, "sa.text(f'select {x}')"),
        (builds_sql, "c.execute('select ' + x)"),
        (builds_sql, "sa.text(_HEAD + 'where a = ' + str(x))"),
        (builds_sql, "c.execute('select %s' % x)"),
        (builds_sql, "c.execute('select {}'.format(x))"),
    ],
)
def test_these_looks_see(look: Callable[[Sequence[ast.AST]], Iterable[object]], code: str) -> None:
    assert list(look(list(ast.walk(ast.parse(code))))) != []
