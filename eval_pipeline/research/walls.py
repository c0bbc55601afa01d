"""A proposer's command runs with its user's files and network, and without what would show it the holdout.

Hidden: the state directory (ledger, results, logs), the local artifacts, where sandboxes work, and the folders of the holdout's worlds.
Its processes are in a pid namespace of their own: it sees no engine's environment, and all of them end with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy.engine import make_url

from eval_pipeline.host import reachable_root
from eval_pipeline.sandbox.local.places import prepare
from eval_pipeline.settings import Settings


def hidden(settings: Settings, postgres_url: str, worlds: Iterable[str]) -> list[Path]:
    """Folders that a proposer must not see, none within another. postgres_url: a server's socket is hidden; one on the network can't be."""
    places = prepare(settings.state_dir)
    found = [settings.state_dir, reachable_root(settings.state_dir), places.scratch]
    found += [settings.worlds_dir / "worlds" / name for name in worlds]
    if settings.artifacts_url is not None and settings.artifacts_url.startswith("file:///"):
        found.append(Path(settings.artifacts_url.removeprefix("file://")))
    if str(socket := make_url(postgres_url).query.get("host", "")).startswith("/"):
        found.append(Path(str(socket)))
    real = sorted({path.resolve() for path in found if path.is_dir()})
    return [path for path in real if not any(path != other and path.is_relative_to(other) for other in real)]


def command_within(command: Sequence[str], settings: Settings, kept_apart: Iterable[Path]) -> list[str]:
    bwrap = prepare(settings.state_dir).bwrap
    arguments = [str(bwrap), "--die-with-parent", "--new-session", "--unshare-user", "--unshare-pid", "--unshare-ipc"]
    arguments += ["--cap-drop", "ALL", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for path in kept_apart:
        arguments += ["--tmpfs", str(path), "--remount-ro", str(path)]
    return [*arguments, "--chdir", str(Path.cwd()), "--", *command]
