from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from eval_pipeline.cli.output import Failure, emit
from eval_pipeline.settings import Settings

ON_REQUEST: Mapping[str, str] = {
    "snapshot": "how long a file system snapshot takes, and that a mounted volume is left out of it",
    "ports": "how fast a port of a sandbox is led here, through a command's input and output",
    "egress": "what the allowlist lets through: other names, other ports, addresses, name resolution",
    "containers": "whether a container engine starts: its storage, its packet filter, FUSE (for `services.compose`)",
    "rate": "how many sandboxes this account may create at once",
}


class _Refs:
    """The doctor leaves no layer behind."""

    def __init__(self) -> None:
        self._refs: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self._refs.get(key)

    def put(self, key: str, ref: str, expires_at: datetime) -> str:
        return self._refs.setdefault(key, ref)

    def expires_at(self, key: str) -> datetime | None:
        return None

    def keep(self, key: str, ref: str, built_s: float) -> str:
        return self._refs.setdefault(key, ref)

    def remove(self, key: str) -> None:
        self._refs.pop(key, None)

    def gone(self, ref: str) -> None:
        self._refs = {key: known for key, known in self._refs.items() if known != ref}


def examine(settings: Settings, tries: Sequence[str], as_json: bool) -> int:
    """Whether experiments can run on Modal."""
    from eval_pipeline.sandbox import modal_probe as probing
    from eval_pipeline.sandbox.modal import ModalBackend

    backend = ModalBackend("doctor", settings.modal, _Refs())
    steps = {**probing.ALWAYS, **{name: probing.ON_REQUEST[name] for name in tries}}
    with tempfile.TemporaryDirectory(prefix="evals-") as folder:
        tried = asyncio.run(probing.probe(backend, Path(folder), steps))
    broken = [one.what for one in tried if not one.works]
    verdict = f"this does not work: {', '.join(broken)}" if broken else "experiments can run on Modal"
    commands = {f"evals doctor --backend modal --try {name}": said for name, said in ON_REQUEST.items() if name not in tries}

    def people() -> None:
        for one in tried:
            click.echo(f"{click.style('ok', fg='green') if one.works else click.style('no', fg='red')}  {one.what}: {one.said}")
            if one.remedy:
                click.echo(f"      remedy: {one.remedy}")
        click.echo("not enforced there:")
        for name, said in backend.missing.items():
            click.echo(f"    {name}: {said}")
        click.echo("still to be seen on this account:" if commands else "")
        for command, said in commands.items():
            click.echo(f"    {command:<40}  # {said}")
        if not broken:
            click.echo(f"\nverdict: {verdict}")

    data = {
        "verdict": verdict,
        "findings": [asdict(one) for one in tried],
        "missing": dict(backend.missing),
        "to_be_seen": commands,
    }
    emit(data, as_json, people, Failure("doctor", verdict) if broken else None)
    return 2 if broken else 0
