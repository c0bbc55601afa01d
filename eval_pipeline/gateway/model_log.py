"""What sandboxes may ask of models, and what they asked: files that outlive the gateway and are read without it.

models/<sandbox>.json    who it is, where its calls go, what they may cost; there as long as the sandbox is
models/<sandbox>.jsonl   two lines a call: when it went out, and what became of it; one for each limit that refused a call
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from eval_pipeline.domain.usage import Usage
from eval_pipeline.vault.redaction import Redactor

Fault = Literal["rate_limit", "provider", "unreachable", "cut", "key"]
Refusal = Literal["cost", "tokens", "turns"]
MODELS = ("model-gateway", 80)
"""What sandboxes call it."""
MAX_ERROR_CHARS = 300
MAX_REJECTED = 1000  # lines of calls that the provider called malformed: they are the agent's own and cost nothing


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """secret, version: where the real key lies in the vault; None: none is needed. base_url None: the host's stand-in model."""

    base_url: str | None
    secret: str | None = None
    version: str | None = None


@dataclass(frozen=True, kw_only=True)
class Access:
    """token_sha256: of the token that the sandbox shows in place of a key. prices: rows, to know when cost_usd is reached."""

    token_sha256: str
    upstreams: dict[str, Upstream]
    cost_usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    prices: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def save(self, path: Path) -> None:
        partial = path.with_suffix(f".partial.{os.getpid()}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(asdict(self), file)
        partial.rename(path)

    @classmethod
    def load(cls, path: Path) -> Access | None:
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        upstreams = {name: Upstream(**one) for name, one in data.pop("upstreams").items()}
        return cls(upstreams=upstreams, **data)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that has ended. fault None: nothing the provider or the line is to blame for. status None: no answer at all.

    usage None: not known; `billed` says whether there may have been one. tries: with those that were cured; lost_tries: those among
    them, before the last, that went out and whose answer never came: they may be billed, too.
    """

    id: str
    provider: str
    model: str
    served: str | None = None
    status: int | None
    tries: int
    duration_s: float
    fault: Fault | None = None
    error: str | None = None
    usage: dict[str, Any] | None = None
    billed: bool = True
    lost_tries: int = 0


class ModelLog:
    """One sandbox's calls, by whoever writes them and by whoever follows. `read` takes in what is new.

    redactor: of who writes: what a provider says of a key may hold it.
    """

    def __init__(self, path: Path, redactor: Callable[[], Redactor] | None = None) -> None:
        self._path = path
        self._redactor = redactor
        self._offset = 0
        self.open: dict[str, Usage] = {}
        self._totals: dict[str, Usage] = {}
        self._assumed: dict[str, Usage] = {}
        self._rejected = 0
        self.last_fault: Call | None = None
        self.calls = 0
        self.unmeasured = 0
        self.retried = 0
        self.faults: list[Call] = []
        self.refusals: set[Refusal] = set()

    @property
    def usages(self) -> list[Usage]:
        """One sum a model, in order of first use."""
        return list(self._totals.values())

    @property
    def assumed(self) -> list[Usage]:
        """The most that calls may have used that are not, or not wholly, in `usages`."""
        return list(self._assumed.values())

    @property
    def under_way(self) -> int:
        return len(self.open)

    def read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        if "refused" in line:
            self.refusals.add(line["refused"])
        elif "began" in line:
            self.open[line["id"]] = Usage.model_validate(line.get("most") or {"model": line["model"]})
        else:
            self._ended(Call(**line))

    def _ended(self, call: Call) -> None:
        most = self.open.pop(call.id, Usage(model=call.model))
        self.retried += call.tries - 1
        self.last_fault = None if call.fault is None else call
        if call.fault is not None:
            self.faults.append(call)
        if not call.billed and not call.lost_tries:
            self._rejected += call.fault is None
            return
        self.calls += 1
        usage = None if call.usage is None else Usage.model_validate(call.usage)
        if usage is not None:
            _add(self._totals, usage)
        unmeasured = call.lost_tries + (call.billed and (usage is None or call.fault == "cut"))
        self.unmeasured += unmeasured
        for _ in range(unmeasured):
            _add(self._assumed, most)

    def began(self, call_id: str, provider: str, most: Usage, at: datetime) -> None:
        """most: what it may use."""
        self._append(
            {"id": call_id, "began": at.isoformat(), "provider": provider, "model": most.model, "most": most.model_dump()}
        )

    def ended(self, call: Call) -> None:
        data = asdict(call)
        error = call.error if self._redactor is None or call.error is None else self._redactor().text(call.error)
        data["error"] = error and error[:MAX_ERROR_CHARS]
        self._append(data)

    def refused(self, why: Refusal) -> None:
        if why not in self.refusals:
            self._append({"refused": why})

    @property
    def floods(self) -> bool:
        return self._rejected >= MAX_REJECTED

    def _append(self, record: dict[str, Any]) -> None:
        record = record if self._redactor is None else self._redactor().any(record)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(record).encode() + b"\n")
        finally:
            os.close(fd)
        self.read()


def _add(totals: dict[str, Usage], usage: Usage) -> None:
    seen = totals.get(usage.model)
    totals[usage.model] = seen.plus(usage) if seen else usage
