"""What Modal can't do, said before anything is spent. Nothing here imports Modal."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable

from eval_pipeline.errors import SpecError

MAX_LIFETIME_S = 24 * 3600
MAX_DOMAINS = 100
AROUND_AGENT_S = 3600.0
STAND_IN = "stand-in"
MODEL_STAND_IN = "model-stand-in:80"
"""The endpoint of this machine's own gateway: nothing on Modal leads there, so it is left out of an allowlist."""

MISSING = {
    "egress": "the allowlist goes by the name in a TLS greeting on port 443: not by who answers there; names are resolved for anybody, "
    "whatever stands in them; other ports are Modal's to close (`evals doctor --backend modal --try egress` looks); nothing is recorded",
    "disk": "Modal does not cap what a sandbox writes at disk_mib, nor tell",
    "memory": "Modal ends what exceeds memory_mib and does not tell it from another end",
    "pids": "Modal does not cap the number of processes, nor tell",
    "evidence": "a sandbox that is lost leaves nothing: its disk goes with it",
}


def domains(endpoints: Collection[str], local: Iterable[str] = ()) -> list[str] | None:
    """The allowlist for `endpoints` (`host:port`); None when none is left: no network at all. Raises SpecError.

    local: those with a private address, which nothing on Modal reaches.
    """
    if private := sorted(set(endpoints) & set(local)):
        raise SpecError(f"egress to {', '.join(private)}: that address is private, and nothing on Modal leads there")
    named: list[str] = []
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if endpoint == MODEL_STAND_IN:
            continue
        if _is_address(host):
            raise SpecError(f"egress to {endpoint}: Modal's allowlist takes names, no IP address", hint="write the host's name")
        if port != "443":
            raise SpecError(
                f"egress to {endpoint}: Modal's allowlist holds on port 443 only", hint="use TLS on 443, or `backend: local`"
            )
        named.append(host)
    if len(set(named)) > MAX_DOMAINS:
        raise SpecError(f"egress to {len(set(named))} hosts; Modal's allowlist takes {MAX_DOMAINS}")
    return sorted(set(named)) or None


def refuse(who: str, egress: Collection[str], model: object) -> None:
    """Raises SpecError for an arm whose agent could not reach there what it may reach."""
    if MODEL_STAND_IN in egress and model == STAND_IN:
        raise SpecError(
            f"{who} uses the model {STAND_IN!r}, which answers on this machine alone",
            hint="name a real model, or use `backend: local`",
        )
    try:
        domains(egress)
    except SpecError as error:
        raise SpecError(f"{who}: {error}", hint=error.hint) from None


def check_engine(what: str, engine: bool, runtime: str) -> None:
    """Raises SpecError for a container engine without a kernel of its own."""
    if engine and runtime != "vm":
        raise SpecError(
            f"{what} needs a container engine (`services.compose`), and the runtime {runtime!r} has no kernel for one",
            hint="take the runtime `vm`: EVALS_MODAL_RUNTIME=vm",
        )


def open_egress(backend: str, egress: Collection[str]) -> str | None:
    """What the allowlist of an agent that may reach somebody does not hold on that backend; None when it holds there, or is empty."""
    return MISSING["egress"] if backend == "modal" and domains(egress) else None


def lifetime_s(wall_s: float) -> float:
    """Of a cell's sandbox: the agent's time, and what services, the dump and the bundle may take around it."""
    return wall_s + AROUND_AGENT_S


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def check_lifetime(what: str, lifetime_s: float) -> int:
    """Whole seconds. Raises SpecError for more than a sandbox may live."""
    if lifetime_s > MAX_LIFETIME_S:
        raise SpecError(
            f"{what} takes {lifetime_s:.0f} s with what goes before and after it, and a sandbox on Modal lives 24 hours at most",
            hint="lower limits.wall_s, or use `backend: local`",
        )
    return max(1, int(lifetime_s))
