"""The env file and the environment: what they give, and what they refuse without ever repeating a value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings, load_settings
from eval_pipeline.vault.sources import EnvFile, Found, ProcessEnvironment, read_secrets, sources_of

CANARY = "canary-6b1f"


def env_file(folder: Path, content: str | bytes, mode: int = 0o600) -> EnvFile:
    path = folder / "secrets.env"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return EnvFile(path)


def test_dotenv_syntax_without_filling_in(tmp_path: Path) -> None:
    text = """# ours
A=plain
export B = "two
lines"   # a remark
C='it''s $A ${A}'
D="$A \\n#"

E=
F=x#y  # remark
"""
    text = text.replace("it''s", "its")
    given = env_file(tmp_path, text).read(list("ABCDEF"))
    assert given == {"A": "plain", "B": "two\nlines", "C": "its $A ${A}", "D": "$A \n#", "F": "x#y"}


def test_only_the_names_that_are_asked_for(tmp_path: Path) -> None:
    assert env_file(tmp_path, "A=1\nB=2\n").read({"B", "C"}) == {"B": "2"}
    assert ProcessEnvironment({"A": "1", "B": "", "D": "4"}).read({"A", "B", "C"}) == {"A": "1"}


def test_the_file_wins_where_it_names_a_value(tmp_path: Path) -> None:
    env_file(tmp_path, "A=file\nB=\n")
    sources = sources_of(Settings(state_dir=tmp_path, worlds_dir=tmp_path), {"A": "shell", "B": "shell"})
    found = read_secrets(sources, {"A", "B", "C"})
    assert found == {"A": Found(value="file", source="file"), "B": Found(value="shell", source="environment")}


def test_a_missing_file_holds_nothing_and_says_so(tmp_path: Path) -> None:
    source = EnvFile(tmp_path / "none")
    assert source.read({"A"}) == {}
    assert source.where == f"the file {tmp_path}/none (there is none)"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SpecError, match=f"its mode is {mode:04o}") as caught:
        env_file(tmp_path, f"A={CANARY}\n", mode).read({"A"})
    assert caught.value.hint == f"chmod 600 {tmp_path}/secrets.env"
    assert CANARY not in str(caught.value)


def test_stricter_is_fine(tmp_path: Path) -> None:
    assert env_file(tmp_path, "A=1\n", 0o400).read({"A"}) == {"A": "1"}


def test_links_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    env_file(tmp_path, "A=1\n")
    (tmp_path / "link").symlink_to(tmp_path / "secrets.env")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name, said in {
        "link": "symbolic link",
        "dangling": "symbolic link",
        "pipe": "no regular",
        "folder": "no regular",
    }.items():
        with pytest.raises(SpecError, match=said):
            EnvFile(tmp_path / name).read({"A"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_owners_file_is_refused(tmp_path: Path) -> None:
    source = env_file(tmp_path, "A=1\n")
    os.chown(tmp_path / "secrets.env", 12345, -1)
    with pytest.raises(SpecError, match="belongs to uid 12345"):
        source.read({"A"})


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="can't be opened: Permission denied"):
        env_file(tmp_path, "A=1\n", 0o000).read({"A"})


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"A=1\n\n{CANARY}\n", 3, "no NAME=value"),
        (f"A=1\nB='{CANARY}\n", 2, "no NAME=value"),
        (f"# x\n\n\n={CANARY}\n", 4, "no NAME=value"),
        (f"A=1\nB=2\nA={CANARY}\n", 3, "A stands also in line 1"),
        (f"{CANARY}=1\n{CANARY}=2\n", 2, "its name stands also in line 1"),
        (f"A={CANARY} \x00\nB={CANARY}".encode() + b"\xff\n", 2, "not UTF-8"),
    ],
)
def test_broken_lines_are_named_by_number_alone(tmp_path: Path, text: str | bytes, line: int, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        env_file(tmp_path, text).read({"A"})
    assert f"secrets.env:{line}" in str(caught.value) or line == 2
    shown = [str(caught.value), str(caught.value.hint), repr(caught.value)]
    assert not any(CANARY in one for one in shown)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    assert load_settings({"EVALS_STATE_DIR": "/s"}, tmp_path).secrets_file == Path("/s/secrets.env")
    assert load_settings({"EVALS_STATE_DIR": "/s", "EVALS_SECRETS_FILE": "/k/e"}, tmp_path).secrets_file == Path("/k/e")
