"""Everything the product raises on purpose.

EvalsError                       code, exit_code, hint; `retryable` says whether a new attempt can help
├── SpecError                    the author's mistake: a file, an argument, a name      exit 2
│   └── NotFound                 a name that nothing answers to                          exit 2
├── IsolationUnavailable         this machine can't isolate a sandbox                    exit 2
├── BudgetExceeded               the experiment's money is spent or reserved             exit 3
├── FenceLost                    another engine owns the cell now: stop writing          exit 1
├── Cancelled                    somebody asked for the end of the experiment            exit 1
└── InfrastructureError          ours or the platform's, never the agent's; retryable    exit 1
    ├── SandboxError             a sandbox could not be made, reached or ended
    │   ├── SandboxLost          it was there and is gone without being told to go
    │   ├── LayerGone            what it was to stand on has expired at the platform
    │   └── ForeignSandbox       the name belongs to another installation (not retryable)
    ├── BuildError               a layer's command failed before any agent started (not retryable: it would again)
    ├── StoreError               an artifact could not be written, read or verified
    ├── OutputUnreadable         it is stored, but whoever reads it dies (not retryable: the agent's run is over)
    └── LedgerUnavailable        Postgres does not answer
"""

from __future__ import annotations


class EvalsError(Exception):
    """Base of the tree. `str(error)` says what is wrong and what was found; `hint` says what to do."""

    code = "error"
    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class SpecError(EvalsError):
    """A mistake in something a person wrote. `where` is `file:line` when it stands in a file."""

    code = "spec"
    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.where = where


class NotFound(SpecError):
    code = "not_found"


class IsolationUnavailable(EvalsError):
    code = "isolation_unavailable"
    exit_code = 2


class BudgetExceeded(EvalsError):
    code = "budget_exceeded"
    exit_code = 3


class FenceLost(EvalsError):
    code = "fence_lost"


class Cancelled(EvalsError):
    code = "cancelled"


class InfrastructureError(EvalsError):
    code = "infrastructure"
    retryable = True


class SandboxError(InfrastructureError):
    code = "sandbox"


class SandboxLost(SandboxError):
    code = "sandbox_lost"


class LayerGone(SandboxError):
    code = "layer_gone"


class ForeignSandbox(SandboxError):
    code = "foreign_sandbox"
    retryable = False


class BuildError(InfrastructureError):
    code = "build"
    retryable = False


class StoreError(InfrastructureError):
    code = "store"


class OutputUnreadable(InfrastructureError):
    code = "output_unreadable"
    retryable = False


class LedgerUnavailable(InfrastructureError):
    code = "ledger_unavailable"
