"""AWS Secrets Manager, as a moto server speaks it over HTTP, and a relay before it that throttles and denies."""

# boto3 brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import fnmatch
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.aws import aws_server, own_environment
from support.places import short_dir
from support.project import Project

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import AwsSecretsSettings, Settings, load_settings
from eval_pipeline.vault.sources import PartlyRead, read_secrets, read_what_can_be, sources_of
from eval_pipeline.vault.sources_aws import AwsSecrets, policy
from eval_pipeline.vault.values import Values

pytestmark = pytest.mark.slow
CANARY = "canary-5e0c"


@dataclass
class Relay:
    """errors: what is answered instead, one a request, by AWS' code. denied: names of secrets. asked: what came, by target and secret."""

    url: str = ""
    errors: list[str] = field(default_factory=list[str])
    denied: set[str] = field(default_factory=set[str])
    asked: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])


@pytest.fixture(scope="module")
def moto_url() -> Generator[str]:
    with aws_server() as url:
        yield url


@pytest.fixture
def relay(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Relay]:
    state = Relay()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked = json.loads(body)
            state.asked.append((self.headers["X-Amz-Target"].rpartition(".")[2], asked.get("SecretId")))
            code = (
                state.errors.pop(0) if state.errors else "AccessDeniedException" if asked.get("SecretId") in state.denied else ""
            )
            if code:
                self._answer(400, json.dumps({"__type": code, "message": "no"}).encode())
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")}
            passed = urllib.request.Request(moto_url, data=body, headers=headers)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(passed) as response:
                    self._answer(response.status, response.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    own_environment(monkeypatch, tmp_path / "none", region="eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", state.url)
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def put(relay: Relay, moto_url: str) -> Generator[Callable[..., str]]:
    """Create a secret, or give it another value; returns its ARN."""
    client: Any = boto3.client("secretsmanager", endpoint_url=moto_url)
    made: set[str] = set()

    def put(name: str, value: str | bytes) -> str:
        content = {"SecretBinary": value} if isinstance(value, bytes) else {"SecretString": value}
        change = client.put_secret_value if name in made else client.create_secret
        answer = change(**{("SecretId" if name in made else "Name"): name}, **content)
        made.add(name)
        return answer["ARN"]

    yield put
    for name in made:
        client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)


@pytest.fixture
def project(state_dir: Path) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, state_dir)


def source(prefix: str | None = "evals/", **names: str) -> AwsSecrets:
    return AwsSecrets(AwsSecretsSettings(prefix=prefix, names=names))


def test_only_what_is_asked_for_is_read_and_nothing_is_listed(put: Callable[..., str], relay: Relay) -> None:
    for n in range(120):  # more than a page of any listing holds
        put(f"evals/KEY_{n}", f"{CANARY}-{n}")
    wanted = {f"KEY_{n}" for n in range(0, 120, 2)}
    assert source().read({*wanted, "NOBODYS"}) == {name: f"{CANARY}-{name[4:]}" for name in wanted}
    assert sorted(relay.asked) == sorted(("GetSecretValue", f"evals/{name}") for name in {*wanted, "NOBODYS"})


def test_json_with_several_keys_binary_and_arns(put: Callable[..., str], relay: Relay) -> None:
    put("llm", json.dumps({"anthropic": CANARY, "n": 7, "deep": {"a": 1}, "none": None}))
    arn = put("evals/other", "by its arn")
    put("evals/TEXT", b"bytes of text")
    put("evals/RAW", b"\x00\xff\x01")
    put("evals/EMPTY", json.dumps(""))
    given = source(A="llm#anthropic", N="llm#n", O=arn).read(["A", "N", "O", "TEXT", "RAW"])
    assert given == {"A": CANARY, "N": "7", "O": "by its arn", "TEXT": "bytes of text", "RAW": "AP8B"}
    assert [asked for asked in relay.asked if asked[1] == "llm"] == [("GetSecretValue", "llm")], "once for all its names"
    for key, said in (("missing", "no key 'missing'"), ("deep", "no text"), ("none", "no text")):
        with pytest.raises(PartlyRead, match=said) as caught:
            source(A="llm#anthropic", B=f"llm#{key}").read(["A", "B"])
        assert caught.value.found == {"A": CANARY} and CANARY not in str(caught.value)
    with pytest.raises(PartlyRead, match="holds no JSON"):
        source(B="evals/other#key").read(["B"])


@pytest.mark.long
def test_throttling_is_waited_for(put: Callable[..., str], relay: Relay) -> None:
    put("evals/A", CANARY)
    relay.errors = ["ThrottlingException"] * 3
    assert source().read(["A"]) == {"A": CANARY}
    assert len(relay.asked) == 4
    relay.errors = ["ThrottlingException"] * 50
    with pytest.raises(PartlyRead, match="evals/A: ThrottlingException"):
        source().read(["A"])
    assert len(relay.errors) == 44


def test_one_that_is_denied_costs_no_other(put: Callable[..., str], relay: Relay, tmp_path: Path) -> None:
    put("evals/A", CANARY)
    put("evals/B", CANARY)
    relay.denied.add("evals/B")
    settings = Settings(state_dir=tmp_path, worlds_dir=tmp_path, secrets_aws=AwsSecretsSettings(prefix="evals/"))
    found, problem = read_what_can_be(sources_of(settings, {"C": "shell"}), ["A", "B", "C"])
    assert {name: one.source for name, one in found.items()} == {"A": "aws", "C": "environment"}
    assert problem is not None and "evals/B: AccessDeniedException" in str(problem) and CANARY not in str(problem)
    with pytest.raises(SpecError, match="may not read it"):
        read_secrets(sources_of(settings, {}), ["B"])


def test_its_age_is_that_of_its_value(put: Callable[..., str], relay: Relay, moto_url: str) -> None:
    put("evals/A", "one")
    here = source()
    here.read(["A"])
    first = here.changed_at("A")
    assert first is not None and timedelta(0) <= datetime.now(UTC) - first < timedelta(minutes=5)
    boto3.client("secretsmanager", endpoint_url=moto_url).update_secret(SecretId="evals/A", Description="another description")
    put("evals/A", "two")
    assert here.read(["A"]) == {"A": "two"} and (here.changed_at("A") or first) >= first


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, relay: Relay) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", "http://127.0.0.1:9")
    with pytest.raises(SpecError, match="can't be asked"):
        source().read(["A"])


def test_settings_say_where_names_are() -> None:
    env = {
        "EVALS_SECRETS_AWS_PREFIX": "evals/",
        "EVALS_SECRETS_AWS_NAMES": "A=llm#a, B=arn:aws:secretsmanager:x:1:secret:b-AbCdEf",
    }
    found = load_settings(env).secrets_aws
    assert found == AwsSecretsSettings(prefix="evals/", names={"A": "llm#a", "B": "arn:aws:secretsmanager:x:1:secret:b-AbCdEf"})
    assert not load_settings({}).secrets_aws
    for wrong in ("A", "A=", "A=#key", "=x", "A=x,A=y", "a-b=x"):
        with pytest.raises(SpecError, match="EVALS_SECRETS_AWS_NAMES"):
            load_settings({"EVALS_SECRETS_AWS_NAMES": wrong})


def test_the_policy_allows_just_what_is_declared(relay: Relay) -> None:
    settings = AwsSecretsSettings(
        prefix="evals/", names={"B": "llm#b", "C": "llm#c", "D": "arn:aws:secretsmanager:x:1:secret:d-AbCdEf"}
    )
    (statement,) = policy(settings, ["A", "B", "C", "D"])["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Allow", "secretsmanager:GetSecretValue")
    here = "arn:aws:secretsmanager:eu-central-1:*:secret:"
    assert statement["Resource"] == [f"{here}evals/A-??????", f"{here}llm-??????", "arn:aws:secretsmanager:x:1:secret:d-AbCdEf"]
    real = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:"
    for name, allowed in (("evals/A-x1Y2z3", True), ("evals/AB-x1Y2z3", False), ("llm-x1Y2z3", True), ("llm2-x1Y2z3", False)):
        assert any(fnmatch.fnmatchcase(real + name, one) for one in statement["Resource"]) is allowed, name
    assert policy(settings, [])["Statement"] == []


@pytest.mark.long
def test_a_rotation_is_synced_now_and_one_that_is_due_is_said(put: Callable[..., str], relay: Relay, project: Project) -> None:
    project.env |= {name: value for name, value in os.environ.items() if name.startswith("AWS_") or name == "NO_PROXY"}
    project.env["EVALS_SECRETS_AWS_PREFIX"] = "evals/"
    project.manifest(secrets={"agent": ["MODEL_KEY"]})
    project.agent("answer yes")
    rules = {"max_age_days": {"MODEL_KEY": 0.000001, "*": 30}}
    project.write("app.yaml", {"name": "tiny", "repo": "app", "path": ".", "secrets": rules})
    try:
        missing = project.evals("secrets", "sync", check=False)
        assert (missing["exit_code"], missing["data"]["missing"]) == (2, ["MODEL_KEY"])
        assert "AWS Secrets Manager below 'evals/'" in missing["error"]["message"]
        put("evals/MODEL_KEY", f"{CANARY}-1")
        (first,) = project.evals("secrets", "sync")["secrets"]
        put("evals/MODEL_KEY", f"{CANARY}-2")
        (second,) = project.evals("secrets", "sync")["secrets"]
        assert (first["source"], second["source"]) == ("aws", "aws") and first["version"] != second["version"]
        assert second["changed_at"] > first["changed_at"] and second["rotation_due"] and second["max_age_days"] == 0.000001
        relay.denied.add("evals/MODEL_KEY")
        denied = project.evals("secrets", "sync", check=False)
        assert denied["exit_code"] == 2 and "AccessDeniedException" in denied["error"]["message"]
        (kept,) = denied["data"]["secrets"]
        assert (kept["version"], kept["held"]) == (second["version"], True)
        (resource,) = project.evals("secrets", "policy")["Statement"][0]["Resource"]
        assert resource == "arn:aws:secretsmanager:eu-central-1:*:secret:evals/MODEL_KEY-??????"
    finally:
        values = Values(project.state_dir)
        values.keep_only(set())
        values.folder.rmdir()
