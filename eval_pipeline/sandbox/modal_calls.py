"""How the Modal SDK is called: with a deadline each time, and its exceptions become ours.

The SDK itself may wait for ever for a worker that died.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

import modal.exception as sdk

from eval_pipeline.errors import InfrastructureError, SandboxError, SandboxLost, SpecError

CALL_TIMEOUT_S = 60.0
CHANNEL_IDLE_S = 180
GONE = (sdk.NotFoundError, sdk.SandboxTerminatedError, sdk.SandboxTimeoutError, sdk.ConflictError)
_AUTH_HINT = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"


class NameTaken(SandboxError):
    """A running sandbox has the name."""


class Throttled(SandboxError):
    """Modal asks for fewer creates."""


async def within(work: Coroutine[Any, Any, Any], timeout_s: float = CALL_TIMEOUT_S) -> Any:
    async with asyncio.timeout(timeout_s):
        return await work


@contextmanager
def lost(name: str) -> Generator[None]:
    try:
        yield
    except GONE as error:
        raise SandboxLost(f"the sandbox {name} is gone: {error}") from error


@contextmanager
def translated(what: str) -> Generator[None]:
    try:
        yield
    except sdk.AuthError as error:
        raise InfrastructureError(f"Modal does not know us: {error}", hint=_AUTH_HINT) from error
    except sdk.PermissionDeniedError as error:
        raise InfrastructureError(f"{what}: Modal does not allow it: {error}") from error
    except sdk.ResourceExhaustedError as error:
        raise Throttled(f"{what}: Modal's rate limit was reached: {error}") from error
    except sdk.InvalidError as error:
        raise SpecError(f"{what}: Modal refused it: {error}") from error
    except TimeoutError as error:
        raise SandboxError(f"{what}: Modal did not answer in time") from error
    except (sdk.Error, OSError) as error:
        raise SandboxError(f"{what}: Modal answered with {type(error).__name__}: {error}") from error


def configure() -> None:
    """What the SDK reads from its environment; what a person has set stays."""
    # A channel that has idled out costs a new connection at each poll
    os.environ.setdefault("MODAL_SANDBOX_CHANNEL_IDLE_TIMEOUT", str(CHANNEL_IDLE_S))
    # Without it the SDK repeats a throttled call without an end
    os.environ.setdefault("MODAL_MAX_THROTTLE_WAIT", "60")


def reserve_descriptors(wanted: int) -> None:
    """Each sandbox takes a socket, and with too few the SDK stalls without a word. Raises SpecError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except ValueError:
            raise SpecError(
                f"{wanted} open files are needed for that many sandboxes at once; this process may have {hard}",
                hint=f"raise the limit (`ulimit -n {wanted}`), or lower EVALS_MODAL_MAX_SANDBOXES",
            ) from None
