"""Against a real HTTP server that speaks S3, found through boto3's own environment."""

# boto3 brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import hashlib
import http.client
import io
import os
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.aws import aws_server, own_environment

from eval_pipeline.errors import SpecError, StoreError
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import Artifact, ArtifactStore, open_store, publish_pages
from eval_pipeline.store.artifacts_s3 import S3Artifacts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def moto_url() -> Generator[str]:
    with aws_server() as url:
        yield url


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Point boto3 at an endpoint, and away from this machine's own configuration."""
    own_environment(monkeypatch, tmp_path / "none")
    return lambda url: monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)


@pytest.fixture
def bucket(moto_url: str, aws: Callable[[str], None], request: pytest.FixtureRequest) -> str:
    aws(moto_url)
    name = "b-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    _client().create_bucket(Bucket=name)
    return name


def _client() -> Any:
    return boto3.client("s3")


def _keys(bucket: str) -> list[str]:
    return [item["Key"] for item in _client().list_objects_v2(Bucket=bucket).get("Contents", [])]


def _store(url: str) -> ArtifactStore:
    return open_store(Settings(state_dir=Path("/nonexistent"), worlds_dir=Path("/nonexistent"), artifacts_url=url))


def test_put_and_read(bucket: str, tmp_path: Path) -> None:
    store = _store(f"s3://{bucket}/some/prefix")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, "abc"
    (tmp_path / "abc").write_bytes(b"abc")
    assert not store.exists(digest)
    assert store.put_file(tmp_path / "abc") == store.put_bytes(b"abc") == Artifact(digest, 3)
    assert store.exists(digest)
    assert _keys(bucket) == [f"some/prefix/ba/{digest}"]
    assert store.url(digest) == f"s3://{bucket}/some/prefix/ba/{digest}"
    with store.open(digest) as stream:
        assert stream.read() == b"abc"
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"abc"


@pytest.mark.parametrize("size", [0, 8 << 20, (8 << 20) + 1, 20_000_003])
def test_sizes_around_multipart(bucket: str, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "data").write_bytes(data)
    store = _store(f"s3://{bucket}")
    artifact = store.put_file(tmp_path / "data")
    assert artifact == Artifact(hashlib.sha256(data).hexdigest(), size)
    store.fetch(artifact.digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    etag = _client().head_object(Bucket=bucket, Key=_keys(bucket)[0])["ETag"].strip('"')
    assert ("-" in etag) == (size >= 8 << 20)  # S3 marks what came in parts


def test_stored_once(bucket: str) -> None:
    store = _store(f"s3://{bucket}")
    artifact = store.put_bytes(b"abc")
    key = _keys(bucket)[0]
    first = _client().head_object(Bucket=bucket, Key=key)["LastModified"]
    _client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store.put_bytes(b"abc")
    assert len(_client().list_object_versions(Bucket=bucket)["Versions"]) == 1
    assert _client().head_object(Bucket=bucket, Key=key)["LastModified"] == first
    assert artifact.digest in key


def test_many_puts_of_the_same(bucket: str) -> None:
    store = _store(f"s3://{bucket}")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(store.put_bytes, [b"same"] * 12))) == 1
    assert len(_keys(bucket)) == 1


@pytest.mark.parametrize("content", [b"abd", b"ab", b"abcd", b""])
def test_damage_is_found_and_another_size_replaced(bucket: str, tmp_path: Path, content: bytes) -> None:
    store = _store(f"s3://{bucket}")
    artifact = store.put_bytes(b"abc")
    _client().put_object(Bucket=bucket, Key=_keys(bucket)[0], Body=content)
    with pytest.raises(StoreError, match=artifact.digest):
        store.fetch(artifact.digest, tmp_path / "dest")
    assert not list(tmp_path.iterdir())
    if len(content) != 3:
        store.put_bytes(b"abc")
        store.fetch(artifact.digest, tmp_path / "dest")
        assert (tmp_path / "dest").read_bytes() == b"abc"


def test_a_file_that_changes_is_not_stored(bucket: str, tmp_path: Path) -> None:
    """The writer strikes after the first reading, when the server is asked whether the object is there."""
    path = tmp_path / "data"
    path.write_bytes(b"x" * 9_000_000)
    store = S3Artifacts(bucket)

    def strike(**_: object) -> None:
        path.write_bytes(b"x" * 8_999_999 + b"y")

    store._client.meta.events.register("before-send.s3.HeadObject", strike)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StoreError, match="bytes with the digest"):
        store.put_file(path)
    assert _keys(bucket) == []
    assert "Uploads" not in _client().list_multipart_uploads(Bucket=bucket)


def test_what_is_missing(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"is not in s3://{bucket}/p"):
        _store(f"s3://{bucket}/p/").fetch("0" * 64, tmp_path / "dest")
    assert not list(tmp_path.iterdir())
    absent = _store("s3://no-such-bucket")
    with pytest.raises(StoreError, match="NoSuchBucket") as caught:
        absent.put_bytes(b"abc")
    assert "EVALS_ARTIFACTS_URL" in str(caught.value.hint)
    with pytest.raises(StoreError, match="64 hex digits"):
        absent.exists("../x")


@pytest.mark.slow
def test_nobody_answers(aws: Callable[[str], None]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        aws(f"http://127.0.0.1:{closed.getsockname()[1]}")
        store = S3Artifacts("b")
        with pytest.raises(StoreError, match="Could not connect"):
            store.exists("0" * 64)


class _Failing(BaseHTTPRequestHandler):
    """Relays to the real server, after it has answered the first requests of each kind with an error."""

    upstream = ""
    errors: list[int] = []
    cut = False
    lock = threading.Lock()

    def _relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.lock:
            status = self.errors.pop(0) if self.errors else None
        if status is not None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = http.client.HTTPConnection(self.upstream)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if self.cut and self.command == "GET" else data)
        self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = _relay

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def relay(bucket: str, moto_url: str, aws: Callable[[str], None]) -> Generator[type[_Failing]]:
    handler = type("Handler", (_Failing,), {"upstream": moto_url.removeprefix("http://"), "errors": list[int]()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    aws(f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_throttling_and_errors_are_retried(bucket: str, relay: type[_Failing], tmp_path: Path) -> None:
    store = _store(f"s3://{bucket}")
    relay.errors = [503, 500, 429]
    artifact = store.put_bytes(b"abc")
    relay.errors = [503, 500]
    store.fetch(artifact.digest, tmp_path / "dest")
    assert (tmp_path / "dest").read_bytes() == b"abc"
    relay.errors = [500] * 50
    with pytest.raises(StoreError, match="500"):
        store.exists(artifact.digest)
    assert len(relay.errors) > 40


def test_a_connection_that_breaks_while_read(bucket: str, relay: type[_Failing], tmp_path: Path) -> None:
    store = _store(f"s3://{bucket}")
    artifact = store.put_bytes(os.urandom(100_000))
    relay.cut = True
    with pytest.raises(StoreError, match=artifact.digest):
        store.fetch(artifact.digest, tmp_path / "dest")
    assert not list(tmp_path.iterdir())


def test_streams_can_be_read_in_small_pieces(bucket: str) -> None:
    store = _store(f"s3://{bucket}")
    data = os.urandom(1_500_000)
    with store.open(store.put_bytes(data).digest) as stream:
        copy = io.BytesIO()
        while piece := stream.read(10_007):
            copy.write(piece)
    assert copy.getvalue() == data


@pytest.mark.parametrize("prefix", ["", "deep/er"])
def test_artifacts_are_listed_and_removed_when_they_are_old(bucket: str, prefix: str) -> None:
    store = S3Artifacts(bucket, prefix)
    digest, other = (store.put_bytes(data).digest for data in (b"one", b"two!"))
    assert (store.claim("mine"), store.claim("another's")) == ({"mine"}, {"mine", "another's"})
    _client().put_object(Bucket=bucket, Key="somebody/else", Body=b"x")
    assert {(one.digest, one.size_bytes) for one in store.listing()} == {(digest, 3), (other, 4)}
    assert all(abs(one.age_s) < 3600 for one in store.listing())
    assert not store.remove(digest, 3600) and store.exists(digest)
    assert store.remove(digest, -3600) and not store.exists(digest) and store.exists(other)
    assert not store.remove(digest, -3600)


def test_an_old_artifact_that_is_put_again_is_young(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Artifacts(bucket)
    digest = store.put_bytes(b"one").digest
    monkeypatch.setattr("eval_pipeline.store.artifacts_s3._YOUNG_S", -3600.0)  # as if it had been put long ago
    assert store.put_bytes(b"one").digest == digest
    (key,) = _keys(bucket)
    assert "put-again" in _client().head_object(Bucket=bucket, Key=key)["Metadata"], "copied onto itself"
    with store.open(digest) as stream:
        assert stream.read() == b"one"


@pytest.mark.parametrize("prefix", ["", "/team/reports/"])
def test_pages_are_published_under_their_names_and_the_index_last(bucket: str, tmp_path: Path, prefix: str) -> None:
    (tmp_path / "cells").mkdir()
    pages = {"index.html": "<p>é", **{f"cells/{n}.html": f"<p>{n}" for n in range(20)}}
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.txt").write_text("no page")
    index = publish_pages(tmp_path, f"s3://{bucket}{prefix}")
    below = prefix.strip("/") + "/" if prefix else ""
    assert index == f"s3://{bucket}/{below}index.html"
    found = {key.removeprefix(below): _client().get_object(Bucket=bucket, Key=key) for key in _keys(bucket)}
    assert {name: one["Body"].read().decode() for name, one in found.items()} == pages
    assert {one["ContentType"] for one in found.values()} == {"text/html; charset=utf-8"}


def test_an_index_is_not_published_without_its_pages(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").symlink_to(tmp_path / "gone")
    (tmp_path / "index.html").write_text("index")
    with pytest.raises(StoreError, match="can't be read"):
        publish_pages(tmp_path, f"s3://{bucket}/x")
    assert _keys(bucket) == []
    (tmp_path / "a.html").unlink()
    with pytest.raises(StoreError, match="NoSuchBucket"):
        publish_pages(tmp_path, "s3://no-such-bucket")


@pytest.mark.parametrize("url", ["file:///tmp/x", "s3://", "bucket", "https://bucket"])
def test_pages_are_published_to_s3_alone(tmp_path: Path, url: str) -> None:
    with pytest.raises(SpecError, match="can't be published"):
        publish_pages(tmp_path, url)
