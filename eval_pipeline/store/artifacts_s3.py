"""Artifacts in S3 or what speaks its protocol. Credentials, region and endpoint are boto3's own configuration."""

# boto3 and botocore bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from eval_pipeline.errors import StoreError
from eval_pipeline.store.artifacts import Artifact, Stored, check_digest, describe, fetch_to, missing, storage_errors, verified

_RETRIES = {"mode": "standard", "total_max_attempts": 6}
_YOUNG_S = 3600.0
_AT_ONCE = 8
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

    def take_file(self, path: Path) -> Artifact:
        return self.put_file(path)

    def put_bytes(self, data: bytes) -> Artifact:
        return self._put(io.BytesIO(data))

    def _put(self, source: BinaryIO) -> Artifact:
        artifact = describe(source)
        with self._errors(f"artifact {artifact.digest} can't be stored"):
            if self._size(artifact.digest) != artifact.size_bytes or not self._refreshed(artifact.digest):
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

    def listing(self) -> Iterator[Stored]:
        with self._errors("artifacts can't be listed"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._beneath(""))
            for found in (one for page in pages for one in page.get("Contents", ())):
                digest = str(found["Key"]).rpartition("/")[2]
                if len(digest) == 64 and found["Key"] == self._key(digest):
                    yield Stored(digest, int(found["Size"]), (datetime.now(UTC) - found["LastModified"]).total_seconds())

    def remove(self, digest: str, older_than_s: float) -> bool:
        """Between the look and the removal lies a moment in which a put goes unnoticed: S3 has no step for both."""
        with self._errors(f"artifact {digest} can't be removed"):
            found = self._head(digest)
            if found is None or (datetime.now(UTC) - found["LastModified"]).total_seconds() < older_than_s:
                return False
            self._client.delete_object(Bucket=self._bucket, Key=self._key(digest))
            return True

    def claim(self, installation: str) -> set[str]:
        owners = self._beneath("owners/")
        with self._errors("the owners of the store can't be written"):
            self._client.put_object(Bucket=self._bucket, Key=f"{owners}{installation}", Body=b"")
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=owners)
            return {str(one["Key"]).removeprefix(owners) for page in pages for one in page.get("Contents", ())}

    def _refreshed(self, digest: str) -> bool:
        """Copied onto itself when it is not young: its age is what tells that somebody is about to refer to it."""
        found = self._head(digest)
        if found is None:
            return False
        if (datetime.now(UTC) - found["LastModified"]).total_seconds() < _YOUNG_S:
            return True
        here = {"Bucket": self._bucket, "Key": self._key(digest)}
        how = {"MetadataDirective": "REPLACE", "Metadata": {"put-again": datetime.now(UTC).isoformat()}}
        self._client.copy(here, self._bucket, self._key(digest), ExtraArgs=how)
        return True

    @property
    def _place(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _key(self, digest: str) -> str:
        return self._beneath(f"{check_digest(digest)[:2]}/{digest}")

    def _beneath(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _size(self, digest: str) -> int | None:
        found = self._head(digest)
        return None if found is None else int(found["ContentLength"])

    def _head(self, digest: str) -> Any:
        """None when there is no such artifact."""
        try:
            return self._client.head_object(Bucket=self._bucket, Key=self._key(digest))
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise

    @contextmanager
    def _errors(self, what: str) -> Generator[None]:
        with _s3_errors(f"{what} in {self._place}", "EVALS_ARTIFACTS_URL"):
            yield


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


@contextmanager
def _s3_errors(what: str, named_by: str) -> Generator[None]:
    try:
        yield
    except (ClientError, BotoCoreError, Boto3Error) as error:
        hint = f"check {named_by}, the bucket's permissions, and the AWS_* environment or profile"
        raise StoreError(f"{what}: {error}", hint=hint) from error


def upload_pages(folder: Path, bucket: str, prefix: str) -> str:
    """The HTML files below `folder`, under their names below the prefix; `index.html` last, so that it leads to nothing that is not
    there yet. What was there under other names stays. Returns the address of the index. Raises StoreError."""
    client = cast(Any, boto3.client("s3", config=Config(retries=_RETRIES, max_pool_connections=_AT_ONCE)))
    kind = {"ContentType": "text/html; charset=utf-8", "CacheControl": "no-cache"}

    def key(path: Path) -> str:
        name = path.relative_to(folder).as_posix()
        return f"{prefix.strip('/')}/{name}".lstrip("/")

    def put(path: Path) -> None:
        with storage_errors(f"{path} can't be read"):
            client.upload_file(str(path), bucket, key(path), ExtraArgs=kind)

    index = folder / "index.html"
    with _s3_errors(f"the pages can't be stored in s3://{bucket}/{prefix}", "the address"), ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(put, (path for path in sorted(folder.rglob("*.html")) if path != index)):
            pass
        put(index)
    return f"s3://{bucket}/{key(index)}"


def _code(error: ClientError) -> str:
    response = cast(dict[str, dict[str, str]], error.response)
    return response.get("Error", {}).get("Code", "")
