"""The environment, read once into a frozen object. No other module reads os.environ for settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

from eval_pipeline.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class ModalSettings:
    """environment, region: None is what Modal's own configuration says. runtime: `vm` has a kernel of its own, `gvisor` has not.

    max_sandboxes: at once, from one process. creates_per_s: of the whole installation. ecr_secret: the name of a Modal Secret with
    credentials for AWS' registry.
    """

    app: str = "evals"
    environment: str | None = None
    region: str | None = None
    runtime: Literal["vm", "gvisor"] = "vm"
    max_sandboxes: int = 1000
    creates_per_s: float = 5.0
    ecr_secret: str | None = None


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """When experiments are archived by themselves; never open ones.

    after_days: since anything happened to it. over: of so many that are not archived, the oldest go. keep: the newest so many stay.
    delete_after_days: how long after that the bundles of its cells are kept; None: for ever.
    """

    after_days: int = 90
    over: int = 200
    keep: int = 20
    delete_after_days: int | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """timeout_s: the deadline of one call to a judge. How many are made at once is in the ledger: `evals judge limits`."""

    timeout_s: float = 120.0


@dataclass(frozen=True, kw_only=True)
class AwsSecretsSettings:
    """Where AWS Secrets Manager holds what apps declare. Falsy: it is not asked.

    prefix: NAME is the secret `<prefix>NAME`. names: of some, in its place: the secret, and with `#KEY` a key of the JSON it holds.
    """

    prefix: str | None = None
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def __bool__(self) -> bool:
        return self.prefix is not None or bool(self.names)


@dataclass(frozen=True, kw_only=True)
class SupplyChainSettings:
    """min_age_days: of a package in an app's lock files. pypi_url, npm_url: where an index tells publish times as JSON, with {name} and
    {version} in it; None: it is not asked.
    """

    min_age_days: float = 7.0
    pypi_url: str | None = field(default=None, repr=False)
    npm_url: str | None = field(default=None, repr=False)

    @property
    def indexes(self) -> dict[Literal["pypi", "npm"], str]:
        return {**({"pypi": self.pypi_url} if self.pypi_url else {}), **({"npm": self.npm_url} if self.npm_url else {})}


MIN_MEMORY_MIB = 256
UNSAFE_VARIABLE = "EVALS_UNSAFE_NO_ISOLATION"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where things are. All paths are absolute.

    postgres_url: None means the embedded server under `state_dir`.
    artifacts_url: None means the directory `state_dir/artifacts`; else `s3://bucket[/prefix]` or `file:///directory`.
    persist: who reads outputs: the engine, it and persist workers (which get what comes while its places are taken), or workers alone.
    persist_memory_mib: what a process that reads an output may have.
    secrets_path: the file of secrets; None means `state_dir/secrets.env`. secrets_aws: asked after it.
    user: who starts experiments; None: whoever is logged in.
    webhook_url: where notices go; a secret. None: nobody is told.
    openai_base_url, anthropic_base_url: where the model gateway sends calls, with the real keys.
    unsafe_no_isolation: sandboxes may run without a user namespace where none can be made. A permission, not a preference.
    """

    state_dir: Path
    worlds_dir: Path
    user: str | None = None
    postgres_url: str | None = None
    artifacts_url: str | None = None
    secrets_path: Path | None = None
    secrets_aws: AwsSecretsSettings = AwsSecretsSettings()
    unsafe_no_isolation: bool = False
    webhook_url: str | None = field(default=None, repr=False)
    persist: Literal["engine", "both", "workers"] = "engine"
    persist_memory_mib: int = 1024
    modal: ModalSettings = ModalSettings()
    retention: RetentionSettings = RetentionSettings()
    judge: JudgeSettings = JudgeSettings()
    supply_chain: SupplyChainSettings = SupplyChainSettings()
    openai_base_url: str = "https://api.openai.com/v1"
    anthropic_base_url: str = "https://api.anthropic.com"

    @property
    def dagster_home(self) -> Path:
        return self.state_dir / "dagster"

    @property
    def secrets_file(self) -> Path:
        return self.secrets_path or self.state_dir / "secrets.env"


def dagster_environment(settings: Settings, postgres_url: str) -> dict[str, str]:
    """What every Dagster process needs in its environment before it loads its instance."""
    return {
        "DAGSTER_HOME": str(settings.dagster_home),
        "EVALS_STATE_DIR": str(settings.state_dir),
        "EVALS_WORLDS_DIR": str(settings.worlds_dir),
        "EVALS_SECRETS_FILE": str(settings.secrets_file),
        "EVALS_POSTGRES_URL": postgres_url,
        "EVALS_POSTGRES_EMBEDDED": "0" if settings.postgres_url else "1",
        UNSAFE_VARIABLE: "1" if settings.unsafe_no_isolation else "0",
    }


def _project_root(start: Path) -> Path:
    for folder in (start, *start.parents):
        if (folder / "worlds_src").is_dir():
            return folder
    return start


def load_settings(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """Read EVALS_USER, EVALS_STATE_DIR, EVALS_WORLDS_DIR, EVALS_POSTGRES_URL, EVALS_ARTIFACTS_URL, EVALS_SECRETS_FILE,
    EVALS_SECRETS_AWS_PREFIX, EVALS_SECRETS_AWS_NAMES, EVALS_UNSAFE_NO_ISOLATION, EVALS_PERSIST, EVALS_PERSIST_MEMORY_MIB, EVALS_WEBHOOK_URL,
    EVALS_ARCHIVE_*, EVALS_JUDGE_TIMEOUT_S, EVALS_OPENAI_BASE_URL, EVALS_ANTHROPIC_BASE_URL, EVALS_DEPENDENCY_AGE_DAYS, EVALS_PYPI_JSON_URL,
    EVALS_NPM_JSON_URL and EVALS_MODAL_*.

    Paths default to `.evals` and `worlds_src` in the nearest folder above `cwd` that holds a `worlds_src`.
    EVALS_POSTGRES_EMBEDDED=1 marks the URL as our own embedded server's, exported for Dagster's sake (`dagster_environment`).
    """
    env = os.environ if environ is None else environ
    root = _project_root((cwd or Path.cwd()).absolute())
    return Settings(
        state_dir=Path(env.get("EVALS_STATE_DIR") or root / ".evals").expanduser().absolute(),
        worlds_dir=Path(env.get("EVALS_WORLDS_DIR") or root / "worlds_src").expanduser().absolute(),
        user=env.get("EVALS_USER") or None,
        postgres_url=None if env.get("EVALS_POSTGRES_EMBEDDED") == "1" else env.get("EVALS_POSTGRES_URL") or None,
        artifacts_url=env.get("EVALS_ARTIFACTS_URL") or None,
        secrets_path=Path(secrets).expanduser().absolute() if (secrets := env.get("EVALS_SECRETS_FILE")) else None,
        secrets_aws=_secrets_aws(env),
        unsafe_no_isolation=_permitted(env.get(UNSAFE_VARIABLE) or "0"),
        webhook_url=_webhook(env.get("EVALS_WEBHOOK_URL") or None),
        persist=_persist(env.get("EVALS_PERSIST") or "engine"),
        persist_memory_mib=_mib("EVALS_PERSIST_MEMORY_MIB", env.get("EVALS_PERSIST_MEMORY_MIB") or "1024"),
        modal=_modal(env),
        retention=RetentionSettings(
            after_days=_count(env, "EVALS_ARCHIVE_AFTER_DAYS", 90),
            over=_count(env, "EVALS_ARCHIVE_OVER", 200),
            keep=_count(env, "EVALS_ARCHIVE_KEEP", 20),
            delete_after_days=_count(env, "EVALS_ARCHIVE_DELETE_DAYS", 0) if env.get("EVALS_ARCHIVE_DELETE_DAYS") else None,
        ),
        supply_chain=SupplyChainSettings(
            min_age_days=_positive(env, "EVALS_DEPENDENCY_AGE_DAYS", "7", "a number of days"),
            pypi_url=_index(env, "EVALS_PYPI_JSON_URL"),
            npm_url=_index(env, "EVALS_NPM_JSON_URL"),
        ),
        judge=JudgeSettings(timeout_s=_positive(env, "EVALS_JUDGE_TIMEOUT_S", "120", "a number of seconds")),
        openai_base_url=_base_url(env, "EVALS_OPENAI_BASE_URL", Settings.openai_base_url),
        anthropic_base_url=_base_url(env, "EVALS_ANTHROPIC_BASE_URL", Settings.anthropic_base_url),
    )


def _persist(value: str) -> Literal["engine", "both", "workers"]:
    if value not in ("engine", "both", "workers"):
        raise SpecError(f"EVALS_PERSIST is {value!r}", hint="set it to engine, both or workers")
    return value


def _secrets_aws(env: Mapping[str, str]) -> AwsSecretsSettings:
    """EVALS_SECRETS_AWS_NAMES: `NAME=secret` or `NAME=secret#key`, with commas between them."""
    prefix, listed = env.get("EVALS_SECRETS_AWS_PREFIX"), env.get("EVALS_SECRETS_AWS_NAMES") or ""
    names: dict[str, str] = {}
    for entry in filter(None, (one.strip() for one in listed.split(","))):
        name, _, secret = entry.partition("=")
        if not name.isidentifier() or not secret.partition("#")[0] or name in names:
            hint = "write NAME=secret or NAME=secret#key, each name once, with commas between them"
            raise SpecError(f"EVALS_SECRETS_AWS_NAMES holds {entry!r}", hint=hint)
        names[name] = secret
    return AwsSecretsSettings(prefix=prefix or None, names=names)


def _mib(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < MIN_MEMORY_MIB:
        raise SpecError(f"{name} is {value!r}", hint=f"set it to a number of MiB, {MIN_MEMORY_MIB} or more")
    return int(value)


def _modal(env: Mapping[str, str]) -> ModalSettings:
    runtime = env.get("EVALS_MODAL_RUNTIME") or "vm"
    if runtime not in ("vm", "gvisor"):
        raise SpecError(f"EVALS_MODAL_RUNTIME is {runtime!r}", hint="set it to vm or gvisor")
    most = env.get("EVALS_MODAL_MAX_SANDBOXES") or "1000"
    if not most.isdecimal() or int(most) < 1:
        raise SpecError(f"EVALS_MODAL_MAX_SANDBOXES is {most!r}", hint="set it to a number of sandboxes")
    return ModalSettings(
        app=env.get("EVALS_MODAL_APP") or "evals",
        environment=env.get("EVALS_MODAL_ENVIRONMENT") or None,
        region=env.get("EVALS_MODAL_REGION") or None,
        runtime=cast(Literal["vm", "gvisor"], runtime),
        max_sandboxes=int(most),
        creates_per_s=_positive(env, "EVALS_MODAL_CREATES_PER_S", "5", "a number of sandboxes a second"),
        ecr_secret=env.get("EVALS_MODAL_ECR_SECRET") or None,
    )


def _positive(env: Mapping[str, str], name: str, default: str, what: str) -> float:
    value = env.get(name) or default
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise SpecError(f"{name} is {value!r}", hint=f"set it to {what}")
    return number


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name) or str(default)
    if not value.isdecimal():
        raise SpecError(f"{name} is {value!r}", hint="set it to a whole number")
    return int(value)


def _base_url(env: Mapping[str, str], name: str, default: str) -> str:
    url = (env.get(name) or default).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or not url.isprintable():
        raise SpecError(f"{name} is {url!r}", hint=f"write an address like {default}, without credentials in it")
    return url


def _index(env: Mapping[str, str], name: str) -> str | None:
    url = env.get(name) or None
    if url is None:
        return None
    try:
        url.format(name="n", version="v")
        bad = not url.startswith(("https://", "http://")) or "{name}" not in url or not url.isprintable()
    except (KeyError, IndexError, ValueError, AttributeError):
        bad = True
    if bad:
        raise SpecError(f"{name} is no address with {{name}} in it", hint="write https://HOST/pypi/{name}/{version}/json")
    return url


def _webhook(url: str | None) -> str | None:
    if url is not None and (not url.startswith(("https://", "http://")) or not url.isprintable() or " " in url):
        raise SpecError("EVALS_WEBHOOK_URL is no http(s) URL", hint="copy it from the service that it posts to")
    return url


def _permitted(value: str) -> bool:
    if value not in ("0", "1"):
        raise SpecError(f"{UNSAFE_VARIABLE} is {value!r}", hint="1 permits it; 0, or no such variable, does not")
    return value == "1"
