"""The architecture, held by reading the source: who imports whom, how large things are, what only some may touch."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support import source as package_source
from support.source import ROOT

NAME = "eval_pipeline"

FREE = {"errors", "settings", "host"}
RANKS: dict[str, int] = {
    "domain": 0,
    "sandbox": 1,
    "store": 1,
    **dict.fromkeys(["specs", "gateway", "vault", "scoring", "analysis", "environment"], 2),
    "runner": 3,
    "research": 4,
    "defs": 5,
    "definitions": 6,
    "cli": 7,
}
FILE_MAX_LINES, FUNCTION_MAX_LINES = 350, 60
# What is longer, and how long it may be. They only ever get shorter.
LONGER_FILES = {"store/postgres_cluster.py": 406}


@functools.cache
def sources() -> dict[str, list[ast.AST]]:
    """Path below the package -> the nodes of its tree. Migrations are data: Alembic runs them by path."""
    return {path: nodes for path, nodes in package_source.sources().items() if "migrations" not in Path(path).parts}


@functools.cache
def imports(path: str) -> list[tuple[str, int]]:
    """Every module named in an import, wherever it stands, with its line."""
    found: list[tuple[str, int]] = []
    for node in sources()[path]:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.append((node.module or "", node.lineno))
    return found


def package(path: str) -> str:
    return Path(path).parts[0].removesuffix(".py")


def edges() -> dict[tuple[str, str], str]:
    """(importing package, imported package) -> one place where it stands."""
    found: dict[tuple[str, str], str] = {}
    for path in sources():
        for module, line in imports(path):
            if module.startswith(f"{NAME}."):
                found.setdefault((package(path), module.split(".")[1]), f"{path}:{line}")
    return {pair: where for pair, where in found.items() if pair[0] != pair[1] and pair[1] not in FREE}


def test_every_package_has_its_place() -> None:
    assert {package(path) for path in sources()} - FREE - {"__init__"} <= set(RANKS)
    assert {target for _, target in edges()} <= set(RANKS)


def test_imports_point_down() -> None:
    # The launcher executes what definitions.py lists; it imports it late, in its own process.
    known = {("defs", "definitions")}
    up = {where: pair for pair, where in edges().items() if RANKS[pair[0]] < RANKS[pair[1]] and pair not in known}
    assert up == {}
    assert not [pair for pair in edges() if pair[0] in FREE]


def test_no_package_is_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for source, target in edges():
        if (source, target) != ("defs", "definitions"):
            graph.setdefault(source, set()).add(target)
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"packages import each other in a circle: {error.args[1]}") from None
    assert order.index("domain") < order.index("store") < order.index("runner") < order.index("cli")


def users(library: str) -> set[str]:
    return {path for path in sources() for module, _ in imports(path) if module.split(".")[0] == library}


def test_dagster_is_only_where_it_is_driven() -> None:
    assert users("dagster") != set()
    assert {path for path in users("dagster") if not path.startswith("defs/")} == {"definitions.py"}
    assert users("dagster_postgres") | users("dagster_webserver") == set()


def test_the_launcher_and_the_home_import_no_dagster_when_they_are_imported() -> None:
    """The command line imports the one, and each worker process of an engine the other."""
    assert _modules_after(f"import {NAME}.defs.launcher, {NAME}.defs.home").isdisjoint({"dagster"})
    assert _modules_after(f"import {NAME}.defs.launcher").isdisjoint({"dagster", "sqlalchemy", "pydantic"})


@pytest.mark.slow
def test_who_only_looks_at_the_ledger_loads_no_statistics_and_no_migrations() -> None:
    code = f"import {NAME}.cli.experiment_run, {NAME}.cli.experiment_report, {NAME}.analysis.load_tables, {NAME}.store.records"
    assert _modules_after(code).isdisjoint({"alembic", "numpy", "scipy", "pandas"})
    assert _modules_after(f"import {NAME}.runner.readers").isdisjoint({"openpyxl", "numpy", "sqlalchemy"})


@pytest.mark.slow
def test_no_agent_waits_for_the_statistics() -> None:
    """What an engine imports before its first cell."""
    assert _modules_after(f"import {NAME}.defs.experiment_runs").isdisjoint({"numpy", "scipy", "pandas", f"{NAME}.analysis.load"})


def test_modal_and_boto3_are_only_behind_their_ports() -> None:
    assert {path for path in users("modal") if not Path(path).stem.startswith("modal")} == set()
    assert users("boto3") | users("botocore") == {"store/artifacts_s3.py", "vault/sources_aws.py"}


@pytest.mark.slow
def test_judges_libraries_are_only_behind_their_client() -> None:
    used = [users(library) for library in ("pydantic_ai", "openai", "anthropic", "httpx2")]
    assert used == [{"scoring/judge_client.py"}] * 4
    assert _modules_after(f"import {NAME}.scoring.judge_client, {NAME}.runner.judges").isdisjoint(
        {"pydantic_ai", "openai", "aiohttp"}
    )


def test_the_domain_is_pure() -> None:
    allowed = {"pydantic", NAME, *sys.stdlib_module_names} - {
        "os",
        "pathlib",
        "subprocess",
        "socket",
        "io",
        "shutil",
        "random",
        "time",
    }
    for path in sources():
        if path.startswith("domain/"):
            assert {module.split(".")[0] for module, _ in imports(path)} <= allowed, path


def _modules_after(code: str, **environ: str) -> set[str]:
    """The top-level modules that are loaded after running `code` in a process of its own."""
    script = f"import sys\n{code}\nprint(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.strip().splitlines()[-1].split())


READS = [
    ["--help"],
    ["experiment", "--help"],
    ["world", "list", "--json"],
    ["case", "list", "--json"],
    ["dataset", "list", "--json"],
]
LEDGER_READS = [["experiment", "list", "--json"], ["experiment", "plan", "demo", "--json"], ["sandbox", "list", "--json"]]


@pytest.mark.slow
def test_what_reads_imports_neither_dagster_nor_modal(state_dir: Path, database_url: str) -> None:
    code = "\n".join(
        [
            "from eval_pipeline.cli.main import cli",
            *(f"cli.main({args!r}, standalone_mode=False)" for args in READS + LEDGER_READS),
        ]
    )
    worlds = ROOT.parent / "worlds_src"
    loaded = _modules_after(code, EVALS_STATE_DIR=str(state_dir), EVALS_POSTGRES_URL=database_url, EVALS_WORLDS_DIR=str(worlds))
    assert {"sqlalchemy", "click"} <= loaded  # it did read
    assert loaded.isdisjoint({"dagster", "dagster_postgres", "modal", "boto3", "pandas", "alembic_utils"})


def test_the_first_screen_loads_next_to_nothing() -> None:
    code = "from eval_pipeline.cli.main import cli\ncli.main(['--help'], standalone_mode=False)"
    assert _modules_after(code).isdisjoint({"dagster", "sqlalchemy", "pydantic", "yaml", "numpy", "rich"})


# Who may look at the process's environment, and why.
ENVIRONMENT = {
    "settings.py": "reads the settings, once",
    "vault/sources.py": "reads the secrets an app declares",
    "runner/shell.py": "tells a shell which kind of terminal it is at",
    "specs/git.py": "hands git the environment without a hook's repository",
    "scoring/untrusted.py": "hands a reader's process what it imports from",
    "sandbox/modal_calls.py": "gives the Modal SDK what it reads from its environment",
    "gateway/client.py": "hands the gateway's process the few variables it needs",
    "environment/package_index.py": "asks pip and npm in the environment they are set up in",
    "research/proposer.py": "hands a proposer's command what it needs of the environment, and nothing that leads to the ledger",
    "defs/home.py": "hands Dagster's processes the environment with DAGSTER_HOME",
    "defs/launcher.py": "sets DAGSTER_HOME in the engine's own process",
    "defs/resources.py": "reads the settings in Dagster's processes",
}


def test_the_environment_is_read_in_known_places() -> None:
    found = {
        path
        for path, nodes in sources().items()
        for node in nodes
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and any("env" in alias.name for alias in node.names))
    }
    assert found == set(ENVIRONMENT)


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {path: n for path, n in lengths.items() if n > LONGER_FILES.get(path, FILE_MAX_LINES)} == {}
    assert {path for path in LONGER_FILES if lengths[path] <= FILE_MAX_LINES} == set(), "no exception is needed any more"


def test_functions_are_short() -> None:
    long = {
        f"{path}:{node.lineno} {node.name}": length
        for path, nodes in sources().items()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_MAX_LINES
    }
    assert long == {}


UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplemented|\bfor now\b", re.IGNORECASE)


def test_nothing_is_left_for_later() -> None:
    texts = {str(path): path.read_text() for path in ROOT.rglob("*") if path.suffix in (".py", ".sh", ".yaml", ".mako")}
    assert {path: found.group() for path, text in texts.items() if (found := UNFINISHED.search(text))} == {}


def test_exceptions_are_not_swallowed() -> None:
    """`except Exception` says why (BLE001), and nothing passes over one silently unless it names what it passes over."""
    for path, nodes in sources().items():
        for node in nodes:
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                raise AssertionError(f"{path}:{node.lineno}: a bare except")
            if isinstance(node, ast.ExceptHandler) and all(isinstance(child, ast.Pass) for child in node.body):
                assert "Exception" not in ast.unparse(node.type or node).split("."), f"{path}:{node.lineno}"


def _decorated(*names: str) -> set[str]:
    """Functions in defs/ with one of Dagster's decorators."""
    return {
        node.name
        for path, nodes in sources().items()
        if path.startswith("defs/")
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if ast.unparse(decorator).partition("(")[0].removeprefix("dg.") in names
    }


def _listed(kind: str) -> set[str]:
    (call,) = [
        node for node in sources()["definitions.py"] if isinstance(node, ast.Call) and ast.unparse(node.func) == "dg.Definitions"
    ]
    (found,) = [keyword.value for keyword in call.keywords if keyword.arg == kind] or [ast.List(elts=[])]
    assert isinstance(found, ast.List), f"{kind} must be an explicit list"
    return {ast.unparse(element) for element in found.elts}


@pytest.mark.parametrize(
    "kind, decorators",
    [
        ("assets", ["asset", "multi_asset", "graph_asset"]),
        ("asset_checks", ["asset_check", "multi_asset_check"]),
        ("sensors", ["sensor", "run_status_sensor", "run_failure_sensor", "asset_sensor", "multi_asset_sensor"]),
        ("schedules", ["schedule"]),
    ],
)
def test_the_definitions_list_exactly_what_there_is(kind: str, decorators: list[str]) -> None:
    assert _listed(kind) == _decorated(*decorators)
    assert kind != "assets" or _listed(kind) != set()


@pytest.mark.slow
def test_the_code_location_loads_and_says_the_same(state_dir: Path) -> None:
    """What Dagster makes of it, in a process of its own."""
    code = (
        "import json, sys; from eval_pipeline.definitions import defs; g = defs.resolve_asset_graph(); "
        "print(json.dumps(sorted(k.to_user_string() for k in g.get_all_asset_keys())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "DAGSTER_HOME": str(state_dir)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sorted(_listed("assets"))


def test_the_distribution_takes_what_is_no_python_along() -> None:
    """Files that the code reads are package data."""
    suffixes = {path.suffix for path in ROOT.rglob("*") if path.is_file() and "__pycache__" not in path.parts} - {".py", ".pyc"}
    assert suffixes <= {".sh", ".mako", ".yaml", ".bpf", ".md", ".html", ".css"}
