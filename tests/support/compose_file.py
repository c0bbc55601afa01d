"""deploy/compose.yaml, rendered by Compose itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
FILLED = {
    "EVALS_IMAGE": "evals:1",
    "EVALS_PROJECT": "/srv/project",
    "EVALS_POSTGRES_PASSWORD": "sentinelPassword",
    "EVALS_ARTIFACTS_URL": "s3://artifacts/a",
    "EVALS_COMPUTE_LOGS_BUCKET": "logs",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "sentinelKey",
    "AWS_SECRET_ACCESS_KEY": "sentinelSecret",
    "EVALS_SECRETS_AWS_PREFIX": "evals/",
    "MODAL_TOKEN_ID": "sentinelToken",
    "MODAL_TOKEN_SECRET": "sentinelTokenSecret",
    "EVALS_WEBHOOK_URL": "https://hooks.example.invalid/sentinelHook",
}


def compose(env_file: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Nothing but the file fills in: this process' own variables would come first."""
    program = shutil.which("docker-compose")
    assert program is not None, "docker-compose is missing: `make packages` installs it"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("EVALS_", "AWS_", "MODAL_"))}
    return subprocess.run(
        [program, "--env-file", str(env_file), "--file", str(DEPLOY / "compose.yaml"), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def write_env(target: Path, values: Mapping[str, str]) -> Path:
    target.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return target


def rendered(folder: Path, values: Mapping[str, str] = FILLED) -> dict[str, Any]:
    done = compose(write_env(folder / "evals.env", values), "config")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)
