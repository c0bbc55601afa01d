"""How an agent reaches models: through the host's gateway, which keeps the real keys, where its app asks for that and there is one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.gateway.model_log import MODELS, Access, Upstream
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.settings import Settings
from eval_pipeline.vault.declared import is_real
from eval_pipeline.vault.delivery import Delivered, Secrets

NOT_THERE = (
    "no model gateway there: usage is what agents report themselves, the real keys are in their sandboxes, and `limits` of cost, tokens and"
    " turns hold by the transcript alone"
)
_NO_TOKEN = "evals-no-models-here"


def goes_through_gateway(backend: str, manifest: AppManifest) -> bool:
    return manifest.models.gateway and backend == "local"


def not_measured(backend: str, manifest: AppManifest) -> str | None:
    """Why an app that asks for the gateway has none on that backend; None when it has one, or wants none."""
    return NOT_THERE if manifest.models.gateway and not goes_through_gateway(backend, manifest) else None


@dataclass(frozen=True)
class Means:
    """What a sandbox is given: secrets by name, and endpoints."""

    secrets: Mapping[str, str] = field(repr=False)
    egress: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ModelAccess:
    """Of one backend."""

    settings: Settings
    gateway: Gateway
    secrets: Secrets
    backend: str

    def without(self, manifest: AppManifest, delivered: Delivered) -> Means:
        """For services of a sandbox in which no agent runs: they may start, and ask nobody."""
        if not goes_through_gateway(self.backend, manifest):
            return Means(delivered.values, manifest.egress)
        return Means({**delivered.values, **_environment(manifest, _NO_TOKEN)}, manifest.egress)

    def opened(
        self, sandbox: str, arm: LockedArm, delivered: Delivered, limits: Limits | None = None, prices: PriceBook | None = None
    ) -> Means:
        """Let that sandbox ask models within the limits, as long as it lives. Done again it changes the limits only."""
        manifest = arm.manifest
        if not goes_through_gateway(self.backend, manifest):
            return self.without(manifest, delivered)
        token = f"evals-{sandbox}.{self.secrets.token(f'models:{sandbox}')}"
        access = Access(
            token_sha256=hashlib.sha256(token.encode()).hexdigest(),
            upstreams={one: self._upstream(one, name, arm, delivered) for one, name in manifest.model_keys.items()},
            cost_usd=None if limits is None else limits.cost_usd,
            tokens=None if limits is None else limits.tokens,
            turns=None if limits is None else limits.turns,
            prices=[] if prices is None else prices.as_data(),
        )
        access.save(self.gateway.paths.model_access_of(sandbox))
        endpoint = f"{MODELS[0]}:{MODELS[1]}"
        return Means({**delivered.values, **_environment(manifest, token)}, [*manifest.egress, endpoint])

    def _upstream(self, provider: str, key: str, arm: LockedArm, delivered: Delivered) -> Upstream:
        if not is_real(arm):
            return Upstream(base_url=None)
        base_url = self.settings.anthropic_base_url if provider == "anthropic" else self.settings.openai_base_url
        return Upstream(base_url=base_url, secret=key, version=delivered.versions.get(key))


def _environment(manifest: AppManifest, token: str) -> dict[str, str]:
    """As the providers' own clients read it, and MODEL_BASE_URL where there is no choice."""
    urls = {one: f"http://{MODELS[0]}/{one}" for one in manifest.model_keys}
    environment = {name: token for name in manifest.model_keys.values()}
    environment |= {f"{one.upper()}_BASE_URL": url for one, url in urls.items()}
    return environment | ({"MODEL_BASE_URL": next(iter(urls.values()))} if len(urls) == 1 else {})
