"""What the host writes to the runner: a command as a shell script, and the secrets as lines for its bell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox.base import RUN_DIR, SandboxSpec

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
RESERVED = ("inbox", "logs", "sh", "runner.sh")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRET_BYTES = 60_000  # a FIFO holds 64 KiB, and nobody reads it yet


def check_id(command_id: str) -> str:
    if not _ID.fullmatch(command_id):
        raise SpecError(f"{command_id!r} is no command id", hint="use letters, digits, '.', '_' and '-', 64 at most")
    return command_id


def check_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise SpecError(f"{key!r} is no layer key", hint="use letters, digits, '.', '_' and '-', 128 at most")
    return key


def command_script(
    argv: Sequence[str], env: Mapping[str, str], workdir: str, with_secrets: bool, run: str = "exec setsid --"
) -> bytes:
    """The script that the runner sources in a process of its own. Raises SpecError for what no process can be given."""
    if not argv:
        raise SpecError("a command needs at least a program")
    lines = [_export(name, value) for name, value in env.items()]
    if with_secrets:
        lines.append('eval "$secrets"')
    lines.append(f"cd -- {_quote(workdir)} || exit 126")
    lines.append(f"{run} " + " ".join(map(_quote, argv)))
    return os.fsencode("\n".join(lines) + "\n")


def check_spec(spec: SandboxSpec) -> None:
    """Raises SpecError for a name, file path or secret that no sandbox can have."""
    if not NAME.fullmatch(spec.name):
        raise SpecError(f"{spec.name!r} is no sandbox name", hint="use lower case letters, digits and '-', 63 at most")
    for path in spec.files:
        check_file(path)
    secrets_message(spec.secrets)


def check_file(path: str) -> str:
    """What of it lies below /run/evals. Raises SpecError."""
    parts = path.split("/")
    if not path.startswith(f"{RUN_DIR}/") or {"", ".", ".."} & set(parts[1:]) or parts[3] in RESERVED:
        raise SpecError(f"the file {path!r} has no place of its own below {RUN_DIR}")
    return path.removeprefix(f"{RUN_DIR}/")


def secrets_message(secrets: Mapping[str, str]) -> bytes:
    """The bell's first lines: how many follow, then an export a secret. Raises SpecError."""
    body = os.fsencode("".join(_export(name, value) + "\n" for name, value in secrets.items()))
    if len(body) > _MAX_SECRET_BYTES:
        raise SpecError(f"the secrets take {len(body)} bytes, and {_MAX_SECRET_BYTES} can be delivered")
    return b"%d\n" % body.count(b"\n") + body


def _export(name: str, value: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise SpecError(f"{name!r} is no name of an environment variable")
    return f"export {name}={_quote(value)}"


def _quote(text: str) -> str:
    if "\0" in text:
        raise SpecError("an argument or environment value holds a NUL byte")
    return shlex.quote(text)
