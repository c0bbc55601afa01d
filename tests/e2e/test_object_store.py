"""The same cells with artifacts in S3: a real boto3 against a moto server."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import boto3
import pytest
from support.aws import aws_server, own_environment
from support.clusters import with_cluster
from support.places import short_dir
from support.project import Project

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[str]:
    own_environment(monkeypatch, tmp_path / "none")
    with aws_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        boto3.client("s3").create_bucket(Bucket="evals")
        yield "s3://evals/team"


def test_snapshots_and_bundles_live_in_s3(state_dir: Path, bucket: str) -> None:
    with short_dir() as root:
        project = Project(root, with_cluster(state_dir), {"EVALS_ARTIFACTS_URL": bucket})
        project.agent('grep -q "60 days" /world/documents/lease.txt && answer yes')
        project.case()
        project.experiment("s3")
        name = project.run("s3")["experiment"]
        assert [cell["score"] for cell in project.cells(name)] == [1.0]
        assert "yes" in project.evals("cell", "show", f"{name}/w.c/a/0")["answer"]
        stored = boto3.client("s3").list_objects_v2(Bucket="evals", Prefix="team/")["KeyCount"]
        assert stored >= 3  # the snapshot, the bundle, the scored table
        assert not (state_dir / "artifacts").exists()
        published = project.evals("report", name, "--publish", f"{bucket}/report")["published"]
        assert published == "s3://evals/team/report/index.html"
        found = boto3.client("s3").list_objects_v2(Bucket="evals", Prefix="team/report/")["Contents"]
        assert [one["Key"] for one in found] == ["team/report/cells/w.c.a.0.html", "team/report/index.html"]
