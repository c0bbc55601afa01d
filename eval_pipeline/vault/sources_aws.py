"""AWS Secrets Manager as a source. Credentials, region and endpoint are boto3's own configuration. No list of secrets is ever asked for."""

# boto3 and botocore bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import AwsSecretsSettings
from eval_pipeline.vault.sources import PartlyRead

_CONFIG = Config(retries={"mode": "standard", "total_max_attempts": 6}, connect_timeout=5, read_timeout=15)
_DENIED = ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException")
_POLICY_VERSION = "2012-10-17"


@dataclass(frozen=True)
class Place:
    """Where a name's value is: a secret's name or ARN, and a key of the JSON object that it holds. key None: its whole text."""

    secret: str
    key: str | None


def place_of(settings: AwsSecretsSettings, name: str) -> Place | None:
    """None: this source is not asked for the name."""
    if name in settings.names:
        secret, _, key = settings.names[name].partition("#")
        return Place(secret, key or None)
    return None if settings.prefix is None else Place(settings.prefix + name, None)


class AwsSecrets:
    """Each secret is read once for all the names in it, by GetSecretValue: what may be read is then exactly what is named."""

    kind = "aws"

    def __init__(self, settings: AwsSecretsSettings) -> None:
        self._settings = settings
        self._changed: dict[str, datetime] = {}

    @property
    def where(self) -> str:
        prefix = "" if self._settings.prefix is None else f" below {self._settings.prefix!r}"
        return f"AWS Secrets Manager{prefix}"

    def changed_at(self, name: str) -> datetime | None:
        """Of the secret's current version: a change of its description or its tags is no rotation."""
        return self._changed.get(name)

    def read(self, names: Collection[str]) -> dict[str, str]:
        """Raises PartlyRead when some can't be read; SpecError when nobody answers, or nothing can be asked."""
        places = {name: place for name in sorted(names) if (place := place_of(self._settings, name)) is not None}
        found: dict[str, str] = {}
        failed: dict[str, str] = {}
        client = self._client() if places else None
        for secret in sorted({place.secret for place in places.values()}):
            wanted = {name: place.key for name, place in places.items() if place.secret == secret}
            try:
                answer = self._answer(client, secret)
            except ClientError as error:
                failed[secret] = _said(error)
                continue
            if answer is not None:
                found |= self._values(secret, answer, wanted, failed)
        if failed:
            said = "; ".join(f"{secret}: {why}" for secret, why in sorted(failed.items()))
            hint = (
                "`evals secrets policy` prints what the credentials need; docs/secrets.md says how a secret is named and written"
            )
            raise PartlyRead(f"AWS Secrets Manager did not give {said}", found, hint)
        return found

    def _values(
        self, secret: str, answer: dict[str, Any], wanted: dict[str, str | None], failed: dict[str, str]
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, key in wanted.items():
            try:
                value = _value(answer, key)
            except ValueError as error:
                failed[f"{secret} for {name}"] = str(error)
                continue
            if value:
                found[name] = value
                self._changed[name] = answer["CreatedDate"]
        return found

    def _client(self) -> Any:
        try:
            return boto3.client("secretsmanager", config=_CONFIG)
        except (BotoCoreError, ValueError) as error:
            raise self._unasked(error) from None

    def _answer(self, client: Any, secret: str) -> dict[str, Any] | None:
        """None: there is no such secret, or it is about to be deleted. Raises ClientError, SpecError when nobody answers."""
        try:
            return client.get_secret_value(SecretId=secret)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ResourceNotFoundException" or (code == "InvalidRequestException" and "delet" in str(error)):
                return None
            raise
        except BotoCoreError as error:
            raise self._unasked(error) from None

    def _unasked(self, error: Exception) -> SpecError:
        hint = "set up boto3: AWS_REGION, credentials (a role, AWS_PROFILE or AWS_ACCESS_KEY_ID), and a way to the service"
        return SpecError(f"AWS Secrets Manager can't be asked: {type(error).__name__}: {error}", hint=hint)


def _said(error: ClientError) -> str:
    code = str(error.response["Error"]["Code"])
    return f"{code} (the credentials may not read it)" if code in _DENIED else f"{code}: {error.response['Error'].get('Message')}"


def _value(answer: dict[str, Any], key: str | None) -> str:
    """Raises ValueError, which never repeats what the secret holds."""
    text = answer.get("SecretString")
    if text is None:
        text = _text(answer["SecretBinary"])
    if key is None:
        return text
    try:
        held: Any = json.loads(text)
    except ValueError:
        raise ValueError(f"it holds no JSON, so it has no key {key!r}") from None
    if not isinstance(held, dict):
        raise ValueError(f"its JSON is no object, so it has no key {key!r}")
    if key not in held:
        raise ValueError(f"its JSON has no key {key!r}")
    value = cast(dict[str, Any], held)[key]
    if isinstance(value, dict | list) or value is None:
        raise ValueError(f"its key {key!r} is no text and no number")
    return value if isinstance(value, str) else json.dumps(value)


def _text(data: bytes) -> str:
    """An environment variable holds text without NULs: other bytes are given in base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()
    return base64.b64encode(data).decode() if "\0" in text else text


def policy(settings: AwsSecretsSettings, names: Iterable[str]) -> dict[str, Any]:
    """The IAM policy that lets somebody read the secrets of these names, and nothing else."""
    region = boto3.Session().region_name or "*"
    places = [place for name in names if (place := place_of(settings, name)) is not None]
    resources = sorted({_arn(place.secret, region) for place in places})
    statement = {
        "Sid": "ReadDeclaredSecrets",
        "Effect": "Allow",
        "Action": "secretsmanager:GetSecretValue",
        "Resource": resources,
    }
    return {"Version": _POLICY_VERSION, "Statement": [statement] if resources else []}


def _arn(secret: str, region: str) -> str:
    """AWS ends each name with a hyphen and six characters of its own."""
    return secret if secret.startswith("arn:") else f"arn:aws:secretsmanager:{region}:*:secret:{secret}-??????"
