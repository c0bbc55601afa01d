"""Every instance that deploy/ describes, by the classes that will read it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._cli.api import grpc_command
from dagster._config import process_config
from dagster_aws.ecs import EcsRunLauncher
from dagster_aws.s3.compute_log_manager import S3ComputeLogManager
from dagster_k8s import K8sRunLauncher
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
from kubernetes import client
from support.compose_file import DEPLOY, REPOSITORY

# Imports Dagster's libraries for AWS and Kubernetes
pytestmark = pytest.mark.slow

SAME = ["concurrency", "run_retries", "run_monitoring", "nux", "telemetry"]


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return read(DEPLOY / "values.yaml")


def snake(mapping: dict[str, Any]) -> dict[str, Any]:
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): value for name, value in mapping.items()}


def as_the_chart_writes_it(values: dict[str, Any]) -> dict[str, Any]:
    """The instance's dagster.yaml; its run launcher apart, which needs a cluster to be made."""
    postgres = values["postgresql"]
    database = {
        "username": postgres["postgresqlUsername"],
        "password": {"env": "DAGSTER_PG_PASSWORD"},
        "hostname": postgres["postgresqlHost"],
        "db_name": postgres["postgresqlDatabase"],
        "port": postgres["service"]["port"],
        "params": postgres["postgresqlParams"],
    }
    logs = values["computeLogManager"]
    assert logs["type"] == S3ComputeLogManager.__name__
    return {
        "storage": {"postgres": {"postgres_db": database}},
        "compute_logs": {
            "module": "dagster_aws.s3.compute_log_manager",
            "class": logs["type"],
            "config": snake(logs["config"]["s3ComputeLogManager"]),
        },
        "telemetry": values["telemetry"],
        **values["additionalInstanceConfig"],
    }


_LOAD = """
import dagster as dg
with dg.DagsterInstance.get() as instance:
    for part in (instance.compute_log_manager, instance.run_coordinator, instance.event_log_storage):
        print(type(part).__name__)
    print(instance.run_retries_max_retries, instance.run_retries_enabled, instance.run_monitoring_enabled)
"""


def loaded(home: Path, instance: dict[str, Any], **env: str) -> list[str]:
    (home / "dagster.yaml").write_text(yaml.safe_dump(instance))
    fixed = {"EVALS_COMPUTE_LOGS_BUCKET": "logs", "AWS_DEFAULT_REGION": "eu-central-1", "EVALS_STATE_DIR": str(home / "state")}
    done = subprocess.run(
        [sys.executable, "-c", _LOAD],
        env={**os.environ, "DAGSTER_HOME": str(home), **fixed, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_dagster_takes_both_instances(tmp_path: Path, empty_database_url: str, values: dict[str, Any]) -> None:
    of_the_chart = as_the_chart_writes_it(values)
    assert of_the_chart["storage"]["postgres"]["postgres_db"]["params"] == {"sslmode": "require"}
    of_the_chart["storage"] = {"postgres": {"postgres_url": {"env": "EVALS_POSTGRES_URL"}}}  # that of values.yaml is not here
    for instance in (read(DEPLOY / "dagster.yaml"), of_the_chart):
        said = loaded(tmp_path, instance, EVALS_POSTGRES_URL=empty_database_url)
        assert said == ["S3ComputeLogManager", "QueuedRunCoordinator", "PostgresEventLogStorage", "2", "True", "True"]


def test_the_code_server_takes_the_arguments_of_the_chart(values: dict[str, Any]) -> None:
    (code,) = values["dagster-user-deployments"]["deployments"]
    given = grpc_command.make_context("grpc", ["--host", "0.0.0.0", "--port", str(code["port"]), *code["dagsterApiGrpcArgs"]])
    assert given.params["module_name"] == "eval_pipeline.definitions"


def test_a_deployment_runs_by_the_same_rules_as_one_machine(values: dict[str, Any]) -> None:
    local = read(REPOSITORY / "dagster.yaml")
    for other in (read(DEPLOY / "dagster.yaml"), as_the_chart_writes_it(values)):
        assert {part: other[part] for part in SAME} == {part: local[part] for part in SAME}


def test_the_launchers_take_what_they_are_given(values: dict[str, Any]) -> None:
    launcher = values["runLauncher"]
    assert launcher["type"] == K8sRunLauncher.__name__
    config = snake(launcher["config"]["k8sRunLauncher"])
    config["run_k8s_config"] = snake(config["run_k8s_config"])
    fixed = {
        "service_account_name": values["global"]["serviceAccountName"],
        "instance_config_map": "evals-instance",
        "dagster_home": "/opt/dagster/dagster_home",
        "postgres_password_secret": values["global"]["postgresqlSecretName"],
    }
    done = process_config(K8sRunLauncher.config_type(), {**config, **fixed})
    assert done.success, done.errors
    ecs = yaml.safe_load(re.findall(r"```yaml\n(run_launcher:.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)[0])
    assert ecs["run_launcher"]["class"] == EcsRunLauncher.__name__
    done = process_config(EcsRunLauncher.config_type(), ecs["run_launcher"]["config"])
    assert done.success, done.errors


def test_runs_take_over_what_the_code_server_has(values: dict[str, Any]) -> None:
    """As the launcher reads it from the code server: project, state, secrets, and who it runs as."""
    (code,) = values["dagster-user-deployments"]["deployments"]
    assert code["includeConfigInLaunchedRuns"] == {"enabled": True}
    context = K8sContainerContext.create_from_config(
        {
            "k8s": {
                "env": code["env"],
                "env_secrets": [secret["name"] for secret in code["envSecrets"]],
                "volumes": code["volumes"],
                "volume_mounts": code["volumeMounts"],
                "security_context": code["securityContext"],
                "run_k8s_config": {"pod_spec_config": {"security_context": code["podSecurityContext"]}},
            }
        }
    )
    container, pod = context.run_k8s_config.container_config, context.run_k8s_config.pod_spec_config
    assert container["security_context"]["read_only_root_filesystem"] is True
    assert {mount["mount_path"] for mount in container["volume_mounts"]} == {"/tmp", "/var/lib/evals", "/project"}
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volume_mounts"]}
    assert pod["security_context"]["run_as_non_root"] is True


@pytest.mark.parametrize("part", ["dagsterWebserver", "dagsterDaemon", "code"])
def test_kubernetes_knows_every_field(values: dict[str, Any], part: str) -> None:
    given = values[part] if part in values else values["dagster-user-deployments"]["deployments"][0]
    models = {
        "podSecurityContext": client.V1PodSecurityContext,
        "securityContext": client.V1SecurityContext,
        "resources": client.V1ResourceRequirements,
        "readinessProbe": client.V1Probe,
    }
    for name, model in models.items():
        if name in given:
            assert k8s_model_from_dict(model, k8s_snake_case_dict(model, given[name])) is not None
    for name, model in {"env": client.V1EnvVar, "volumes": client.V1Volume, "volumeMounts": client.V1VolumeMount}.items():
        for one in given[name]:
            assert k8s_model_from_dict(model, k8s_snake_case_dict(model, one)) is not None
    pod = given["podSecurityContext"]
    assert pod["runAsNonRoot"] is True and given["securityContext"]["readOnlyRootFilesystem"] is True
