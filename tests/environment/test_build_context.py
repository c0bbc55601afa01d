"""What a Dockerfile copies, against what git has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from eval_pipeline.environment.build_context import build_context, copied
from eval_pipeline.errors import SpecError
from eval_pipeline.specs import git

DOCKERFILE = """
FROM debian:12 AS first
# COPY not/this /x
COPY --chown=1:1 ./requirements.txt setup.* \\
     /opt/
ADD ["a b.txt", "/opt/"]
ADD https://example.com/x /opt/x
COPY --from=first /opt /opt
RUN echo COPY me
copy src /app/src
COPY /top /top
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    names = ["requirements.txt", "setup.py", "setup.cfg", "a b.txt", "src/deep/m.py", "srcs", "top", "other", ".dockerignore"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "setup.py").chmod(0o755)
    (tmp_path / "link").symlink_to("top")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_what_is_copied() -> None:
    assert list(copied(DOCKERFILE)) == ["requirements.txt", "setup.*", "a b.txt", "src", "top"]
    assert list(copied("COPY . /app")) == ["."] and list(copied("COPY ./ /app")) == ["."]


def test_the_context_is_the_files_that_are_copied(repo: Path) -> None:
    subprocess.run(
        [
            "git",
            "-C",
            str(repo),
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.invalid",
            "commit",
            "-q",
            "--allow-empty",
            "-mx",
        ],
        check=True,
    )
    tree = git.worktree_tree(repo, ".")
    found = build_context(repo, tree, DOCKERFILE.encode())
    assert set(found) == {"requirements.txt", "setup.py", "setup.cfg", "a b.txt", "src/deep/m.py", "top", ".dockerignore"}
    assert found["src/deep/m.py"].data == b"src/deep/m.py"
    assert [name for name, file in found.items() if file.executable] == ["setup.py"]
    assert build_context(repo, tree, b"FROM debian:12\n") == {}
    for source, said in (("nowhere", "no file of the app's folder"), ("link", "symbolic link"), (".", "symbolic link")):
        with pytest.raises(SpecError, match=said):
            build_context(repo, tree, f"FROM x\nCOPY {source} /y".encode())
