"""What a sandbox on this machine really holds back, found by running one and trying."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval_pipeline.errors import IsolationUnavailable, SandboxError
from eval_pipeline.sandbox.base import Phase, SandboxSpec, isolation_level
from eval_pipeline.sandbox.local import preflight
from eval_pipeline.sandbox.local.guarantees import Guarantee, missing

if TYPE_CHECKING:
    from eval_pipeline.sandbox.local.backend import LocalBackend

# Runs inside, in plain sh: a line for each thing that was possible although it must not be
_ATTACK = r"""
[ "$(id -u) $(id -G)" = "$EXPECTED" ] || echo "runs as uid $(id -u)"
grep -q '^CapEff:[[:space:]]*0000000000000000$' /proc/self/status || echo "has capabilities"
grep -q '^CapBnd:[[:space:]]*0000000000000000$' /proc/self/status || echo "could have capabilities"
grep -q '^Seccomp:[[:space:]]*2$' /proc/self/status || echo "no system call filter"
grep -q '^NoNewPrivs:[[:space:]]*1$' /proc/self/status || echo "may gain privileges"
[ "$(grep -c : /proc/net/dev)" -le 1 ] || echo "has a network interface"
[ "$(wc -l </proc/net/route)" -le 1 ] || echo "has a route"
(: >/usr/evals-probe) 2>/dev/null && echo "/usr is writable"
(: >/world/evals-probe) 2>/dev/null && echo "/world is writable"
(: >/run/evals/evals-probe) 2>/dev/null && echo "/run/evals is writable"
(: >/proc/sys/kernel/hostname) 2>/dev/null && echo "sysctls are writable"
(: </proc/1/environ) 2>/dev/null && echo "PID 1 can be read"
unshare -U true 2>/dev/null && echo "user namespaces can be nested"
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class IsolationReport:
    guarantees: Sequence[Guarantee]

    @property
    def missing(self) -> Mapping[str, str]:
        return missing(self.guarantees)

    @property
    def level(self) -> str:
        return isolation_level(self.missing)


async def probe(backend: LocalBackend, world: Path) -> IsolationReport:
    """Run a sandbox and let it attack its walls. `world`: any directory that the sandbox user can read.

    Raises IsolationUnavailable when no sandbox starts here, or when one of the walls does not stand.
    """
    name = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        sandbox = await backend.get_or_create(SandboxSpec(name=name, installation="probe", world=world))
    except SandboxError as error:
        found = preflight.look(unsafe=backend.unsafe)
        raise IsolationUnavailable(
            found.said if found.way is None else f"no sandbox can be started here: {error}",
            hint=found.remedy or "see the message; run `python3 -m eval_pipeline.sandbox.local.preflight`",
        ) from error
    try:
        await sandbox.start("attack", ["sh", "-c", _ATTACK], env={"EXPECTED": backend.user}, workdir="/")
        async with asyncio.timeout(20):
            while (state := await sandbox.state("attack")).phase is Phase.RUNNING:
                await asyncio.sleep(0.005)
        stdout, stderr = await sandbox.logs("attack")
    finally:
        await sandbox.terminate()
    holes = stdout.decode(errors="replace").splitlines()
    if holes or state.exit_code != 0:
        detail = "; ".join(holes) or f"{state}: {stderr.decode(errors='replace')}"
        raise IsolationUnavailable(f"a sandbox here is not isolated: {detail}", hint="use another backend on this machine")
    return IsolationReport(guarantees=backend.guarantees)
