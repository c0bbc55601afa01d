"""Artifacts in S3 or what speaks its protocol. Credentials, region and endpoint are boto3's own configuration."""

# boto3 and botocore bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from eval_pipeline.errors import StoreError
from eval_pipeline.store.artifacts import Artifact, check_digest, describe, fetch_to, missing, storage_errors, verified

_RETRIES = {"mode": "standard", "total_max_attempts": 6}
_ABSENT = ("404", "NoSuchKey", "NotFound")


class S3Artifacts:
    """`s3://bucket/[prefix/]<2 hex>/<digest>`. An unfinished multipart upload is invisible; a lifecycle rule may expire it."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._client: Any = boto3.client("s3", config=Config(retries=_RETRIES))

    def put_file(self, path: Path) -> Artifact:
        with storage_errors(f"{path} can't be read"), path.open("rb") as source:
            return self._put(source)

    def put_bytes(self, data: bytes) -> Artifact:
        return self._put(io.BytesIO(data))

    def _put(self, source: BinaryIO) -> Artifact:
        artifact = describe(source)
        with self._errors(f"artifact {artifact.digest} can't be stored"):
            if self._size(artifact.digest) != artifact.size_bytes:
                # Can't seek, so the transfer manager reads it once and aborts when it is not what was hashed.
                self._client.upload_fileobj(verified(source, artifact), self._bucket, self._key(artifact.digest))
        return artifact

    def open(self, digest: str) -> BinaryIO:
        with self._errors(f"artifact {digest} can't be read"):
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=self._key(digest))
            except self._client.exceptions.NoSuchKey:
                raise missing(digest, self._place) from None
        body = cast(BinaryIO, _Body(found["Body"], f"artifact {digest} can't be read from {self._place}"))
        return verified(body, Artifact(digest, int(found["ContentLength"])))

    def fetch(self, digest: str, dest: Path) -> None:
        with self.open(digest) as source:
            fetch_to(source, dest)

    def exists(self, digest: str) -> bool:
        with self._errors(f"artifact {digest} can't be looked up"):
            return self._size(digest) is not None

    def url(self, digest: str) -> str:
        return f"s3://{self._bucket}/{self._key(digest)}"

    @property
    def _place(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _key(self, digest: str) -> str:
        key = f"{check_digest(digest)[:2]}/{digest}"
        return f"{self._prefix}/{key}" if self._prefix else key

    def _size(self, digest: str) -> int | None:
        try:
            return int(self._client.head_object(Bucket=self._bucket, Key=self._key(digest))["ContentLength"])
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise

    @contextmanager
    def _errors(self, what: str) -> Generator[None]:
        try:
            yield
        except (ClientError, BotoCoreError, Boto3Error) as error:
            hint = "check EVALS_ARTIFACTS_URL, the bucket's permissions, and the AWS_* environment or profile"
            raise StoreError(f"{what} in {self._place}: {error}", hint=hint) from error


class _Body:
    """A connection that breaks while the body is read is a StoreError as well."""

    def __init__(self, body: Any, what: str) -> None:
        self._body = body
        self._what = what

    def read(self, size: int) -> bytes:
        try:
            return self._body.read(size)
        except (BotoCoreError, OSError) as error:
            raise StoreError(f"{self._what}: {error}") from error

    def close(self) -> None:
        self._body.close()


def _code(error: ClientError) -> str:
    response = cast(dict[str, dict[str, str]], error.response)
    return response.get("Error", {}).get("Code", "")
