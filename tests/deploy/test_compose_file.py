"""What Compose makes of the file: who it runs as, what it can write, what is open, and where its secrets come from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.compose_file import DEPLOY, FILLED, REPOSITORY, compose, rendered, write_env

# Compose is started for each
pytestmark = pytest.mark.slow

REQUIRED = ["EVALS_PROJECT", "EVALS_POSTGRES_PASSWORD", "EVALS_ARTIFACTS_URL", "EVALS_COMPUTE_LOGS_BUCKET", "AWS_DEFAULT_REGION"]
SECRET = ["EVALS_POSTGRES_PASSWORD", "AWS_SECRET_ACCESS_KEY", "MODAL_TOKEN_SECRET", "EVALS_WEBHOOK_URL"]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return rendered(tmp_path_factory.mktemp("compose"))["services"]


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_not_filled_in_is_named(tmp_path: Path, name: str) -> None:
    done = compose(write_env(tmp_path / "evals.env", {**FILLED, name: ""}), "config")
    assert done.returncode != 0
    assert name in done.stderr


def test_the_example_names_every_variable_and_holds_no_secret(tmp_path: Path) -> None:
    lines = [line for line in (DEPLOY / "evals.env.example").read_text().splitlines() if line and not line.startswith("#")]
    given = dict(line.split("=", 1) for line in lines)
    assert set(given) == set(FILLED)
    assert {name for name in SECRET if given[name]} == set()
    assert "EVALS_POSTGRES_PASSWORD" in compose(DEPLOY / "evals.env.example", "config").stderr  # the only thing it lacks
    assert rendered(tmp_path, {**given, "EVALS_POSTGRES_PASSWORD": "x"})["services"]


def test_nobody_is_root_and_nothing_but_volumes_is_written(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["user"].split(":")[0] not in ("", "0", "root"), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service and "cap_add" not in service, name
        assert not any("docker.sock" in volume for volume in service.get("volumes", [])), name
    assert services["code"]["volumes"] == ["state:/var/lib/evals:rw", "/srv/project:/project:ro"]


def test_all_are_looked_after(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, service in services.items() if not service.get("healthcheck", {}).get("test")} == set()
    assert {service["restart"] for service in services.values()} == {"unless-stopped"}


def test_only_this_machine_reaches_the_ui_and_nobody_postgres(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "webserver": ["127.0.0.1:3000:3000/tcp"]
    }
    assert list(services["postgres"]["networks"]) == ["data"]
    assert rendered(tmp_path)["networks"]["data"]["internal"] is True


def test_secrets_reach_only_those_who_use_them(services: dict[str, dict[str, Any]]) -> None:
    def holders(secret: str) -> set[str]:
        return {name for name, service in services.items() if any(secret in str(v) for v in service["environment"].values())}

    assert holders("sentinelPassword") == {"postgres", "code", "daemon", "webserver"}
    assert holders("sentinelSecret") == {"code", "daemon", "webserver"}
    assert holders("sentinelTokenSecret") == holders("sentinelHook") == {"code"}
    text = (DEPLOY / "compose.yaml").read_text()
    assert {name for name in SECRET if f"${{{name}" not in text} == set()


def test_the_dockerfile_has_no_fault_that_hadolint_knows() -> None:
    program = shutil.which("hadolint", path=str(REPOSITORY / ".venv/bin")) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is packed for Linux on x86_64 only")
    done = subprocess.run([program, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]]
    let_in = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied
    assert [name for name in copied if not (REPOSITORY / name).exists()] == []
    assert [name for name in copied if name.split("/")[0] not in let_in] == []
