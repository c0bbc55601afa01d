"""What git knows of the app: commits, trees and files at a commit. Only the `git` program, never a checkout."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.domain.experiment import WORKTREE
from eval_pipeline.errors import SpecError

# Set inside a git hook, they would lead every call to the hook's repository instead of the app's.
_REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE")

# The commits we make ourselves must be equal for equal trees.
_ALWAYS_THEN = {"GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z"}


def _git(repo: Path, *args: str, index: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES} | _ALWAYS_THEN
    if index is not None:
        env["GIT_INDEX_FILE"] = str(index)
    try:
        return subprocess.run(["git", "-C", str(repo), *args], capture_output=True, check=False, env=env)
    except FileNotFoundError:
        raise SpecError("the program `git` is not installed", hint="install git: the app is read from its repository") from None


def _text(repo: Path, *args: str, problem: str, hint: str | None = None) -> str:
    done = _git(repo, *args)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise SpecError(f"{problem}: {said[-1]}" if said else problem, hint=hint)
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def is_repository(path: Path) -> bool:
    return _git(path, "rev-parse", "--git-dir").returncode == 0


def resolve(repo: Path, ref: str) -> str:
    """The full commit SHA of `ref`; SpecError when there is no such commit."""
    if ref.startswith("-"):
        raise SpecError(f"{ref!r} is not a git revision")
    hint = f"`git -C {repo} log --oneline` shows the commits; fetch the branch if it is a remote one"
    if ref.upper() == WORKTREE:
        hint = f"write {WORKTREE}, in capitals, for the tree with what is not committed"
    return _text(
        repo,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{ref}^{{commit}}",
        problem=f"there is no commit {ref!r} in {repo}",
        hint=hint,
    )


def tree_of(repo: Path, commit: str, path: str) -> str:
    """The id of the tree at `path` ("." for the root) in `commit`."""
    inside = "" if path in (".", "") else path.strip("/")
    hint = "check `path` in app.yaml"
    return _text(
        repo, "rev-parse", "--verify", "--quiet", f"{commit}:{inside}", problem=f"{commit} has no folder {path!r}", hint=hint
    )


def worktree_tree(repo: Path, path: str) -> str:
    """The tree that a commit of everything in the working tree (ignored files left out) would have at `path`."""
    top = Path(_text(repo, "rev-parse", "--show-toplevel", problem=f"{repo} is not a git working tree"))
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        for args in (["read-tree", "HEAD"], ["add", "--all", "--", path]):
            done = _git(top, *args, index=index)
            if done.returncode != 0:
                raise SpecError(f"the working tree {top} can't be read: {done.stderr.decode(errors='replace').strip()}")
        written = _git(top, "write-tree", index=index)
    if written.returncode != 0:
        raise SpecError(f"the working tree {top} can't be written as a tree: {written.stderr.decode(errors='replace').strip()}")
    return tree_of(top, written.stdout.decode().strip(), path)


def read_file(repo: Path, tree: str, name: str) -> bytes:
    """The content of `name` in `tree`; SpecError when it isn't there."""
    done = _git(repo, "cat-file", "blob", f"{tree}:{name}")
    if done.returncode != 0:
        raise SpecError(
            f"{name} is not in the app's folder at this commit (tree {tree[:12]})", hint="commit it, or use ref: WORKTREE"
        )
    return done.stdout


def commits_between(repo: Path, old: str, new: str) -> int | None:
    """How many commits `new` is ahead of `old`; None when git can't say."""
    done = _git(repo, "rev-list", "--count", f"{old}..{new}")
    return int(done.stdout) if done.returncode == 0 else None


def nearest_ancestor(repo: Path, commit: str, among: Collection[str]) -> str | None:
    """The one of `among` that git comes to first on its way back from `commit`, itself included; None when it comes to none."""
    done = _git(repo, "rev-list", "--topo-order", commit)
    return next((one for one in done.stdout.decode().split() if one in among), None) if done.returncode == 0 else None


@dataclass(frozen=True)
class Entry:
    """mode: as git writes it, `100755` for a program, `120000` for a symbolic link."""

    mode: str
    blob: str


def entries(repo: Path, tree: str) -> dict[str, Entry]:
    """The files of `tree` by path."""
    listed = _text(repo, "ls-tree", "-r", "-z", tree, problem=f"the tree {tree[:12]} can't be listed")
    found: dict[str, Entry] = {}
    for entry in filter(None, listed.split("\0")):
        head, _, path = entry.partition("\t")
        mode, _, blob = head.split(" ")
        found[path] = Entry(mode, blob)
    return found


def blob(repo: Path, blob_id: str) -> bytes:
    done = _git(repo, "cat-file", "blob", blob_id)
    if done.returncode != 0:
        raise SpecError(f"git has no file {blob_id} in {repo}", hint="fetch the repository again")
    return done.stdout


def submodules(repo: Path, tree: str) -> list[str]:
    """The paths in `tree` where another repository's commit stands in place of files."""
    return [path for path, entry in entries(repo, tree).items() if entry.mode == "160000"]


def distance(repo: Path, ancestor: str, commit: str) -> int | None:
    """How many commits `commit` is ahead of its ancestor; None when that is no ancestor of it, or is not known here."""
    if _git(repo, "merge-base", "--is-ancestor", ancestor, commit).returncode != 0:
        return None
    return commits_between(repo, ancestor, commit)


def common_ancestor(repo: Path, commits: Sequence[str]) -> str | None:
    """The best commit that all of `commits` descend from; None when there is none."""
    done = _git(repo, "merge-base", "--octopus", *commits)
    return done.stdout.decode().strip() or None if done.returncode == 0 else None


def bundle(repo: Path, tree: str, *, over: str | None = None) -> bytes:
    """A git bundle with the tree as one commit on the branch `app`; with `over`, only what that tree's bundle lacks.

    The commits are made anew from the trees alone, so neither history nor anything outside the app's folder travels, and nothing is
    written into `repo`. Equal trees give equal commits.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = _borrowing(repo, Path(folder))
        base = None if over is None else _commit_of(scratch, over, repo)
        tip = _commit_of(scratch, tree, repo, parent=base)
        _text(scratch, "update-ref", "refs/heads/app", tip, problem=f"the tree {tree[:12]} can't be bundled")
        done = _git(scratch, "bundle", "create", "--quiet", "-", "refs/heads/app", *([f"^{base}"] if base else []))
        if done.returncode != 0:
            raise SpecError(f"the tree {tree[:12]} can't be bundled: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout


def _borrowing(repo: Path, folder: Path) -> Path:
    """A bare repository in `folder` that reads the objects of `repo`."""
    kind = _text(repo, "rev-parse", "--show-object-format", problem=f"{repo} is not a git repository")
    objects = _text(repo, "rev-parse", "--path-format=absolute", "--git-path", "objects", problem=f"{repo} has no objects")
    _text(folder, "init", "--quiet", "--bare", f"--object-format={kind}", ".", problem="git init failed")
    (folder / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    return folder


def _commit_of(scratch: Path, tree: str, repo: Path, parent: str | None = None) -> str:
    who = ["-c", "user.name=evals", "-c", "user.email=evals@localhost", "-c", "commit.gpgSign=false"]
    args = [*who, "commit-tree", "-m", "app", *(["-p", parent] if parent else []), tree]
    gone = f"the app's tree {tree[:12]} is gone from {repo}"
    hint = "a WORKTREE run can be resumed only while git keeps its objects; start it again with --fresh"
    return _text(scratch, *args, problem=gone, hint=hint)


def uncommitted(folder: Path) -> list[str] | None:
    """What differs below the folder from the last commit, as git prints it; None when no repository has the folder."""
    done = _git(folder, "status", "--porcelain", "--untracked-files=all", "--ignored=matching", "--", ".")
    return done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else None
