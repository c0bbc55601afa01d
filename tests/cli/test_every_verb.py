"""Every verb there is, found by looking: its help, its envelope, and what it says to whoever got a word wrong."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.places import short_dir

from eval_pipeline.cli.main import GROUPS, NOUNS, cli, main

pytestmark = pytest.mark.slow

BAD = "no such/thing!"


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from walk(child, (*path, name))


VERBS = dict(walk(cli))
EACH_VERB = pytest.mark.parametrize("path", VERBS, ids=" ".join)


def arguments(path: tuple[str, ...]) -> list[click.Argument]:
    return [one for one in VERBS[path].params if isinstance(one, click.Argument)]


def options(path: tuple[str, ...]) -> set[str]:
    return {name for one in VERBS[path].params if isinstance(one, click.Option) for name in (*one.opts, *one.secondary_opts)}


@EACH_VERB
def test_help_says_what_it_does_and_what_each_option_is_for(path: tuple[str, ...]) -> None:
    whole, short = (CliRunner().invoke(cli, [*path, flag], terminal_width=100) for flag in ("--help", "-h"))
    assert (whole.exit_code, short.output) == (0, whole.output)
    assert VERBS[path].help
    assert [one.name for one in VERBS[path].params if isinstance(one, click.Option) and not one.help] == []
    assert "--json" in options(path)


@EACH_VERB
def test_examples_are_calls_that_exist(path: tuple[str, ...]) -> None:
    text = (VERBS[path].epilog or "").replace("\\\n", " ")
    calls = [re.sub(r"\s#.*", "", line) for line in re.findall(r"^  evals (.*)$", text, re.MULTILINE)]
    for call in (one for line in calls for one in line.split(" | ")):
        words = shlex.split(call.removeprefix("evals "))
        of = next(found for found in VERBS if words[: len(found)] == list(found))
        assert {word for word in words if word.startswith("--")} <= options(of), call


def test_every_group_has_its_heading_on_the_first_screen() -> None:
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    for title, group in GROUPS.items():
        listed = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == list(group), "a noun a line"
    assert sum(map(len, GROUPS.values())) == len(NOUNS)


# ---- what spends, ends or deletes

NOTHING_TO_TRY = {
    "demo": "its model is the stand-in, and a resumed one does nothing",
    "up": "Ctrl-C ends what it starts",
    "doctor": "looks; its own sandbox is gone when it ends",
    "world new": "refuses what is there",
    "world snapshot": "adds what a run would add",
    "world open": "nothing is lost; `world close --dry-run` says what it began",
    "world ports": "leads ports here until Ctrl-C",
    "app check": "one case with its own limits",
    "cell shell": "a sandbox that ends with the shell",
    "budget": "says what it set; set it back",
    "image build": "`image status` says whether one is there",
    "image warm": "`image status` says how many are ready",
    "secrets sync": "`secrets list` says what is held",
    "research next": "`research status` says what is under way",
    "judge review": "draws questions, removes none",
    "judge label": "adds labels",
    "judge limits": "says what it set; set it back",
    "worker persist": "until Ctrl-C",
    "report": "writes pages where it is told to",
    "export": "writes a file where it is told to",
    "import biglaw-bench": "writes into a folder of its own",
    "import harvey-lab": "writes into a folder of its own",
    "import inspect": "`import remove` takes it back; over another one only with --replace",
    "import harbor": "`import remove` takes it back; over another one only with --replace",
}
READS = set(
    re.split(
        r",\s*",
        """app dependencies, benchmark list, benchmark show, case check, case list, case show, cell diff, cell files, cell logs,
        cell quarantine, cell show, cell transcript, compare, dataset list, dataset show, experiment cells, experiment list,
        experiment plan, experiment status, image list, image status, import list, import show, judge calibrate, leaderboard,
        research list, research report, research status, sandbox list, secrets list, secrets policy, world check, world diff,
        world list""",
    )
)


@EACH_VERB
def test_what_spends_ends_or_deletes_can_be_tried_dry(path: tuple[str, ...]) -> None:
    verb = " ".join(path)
    assert ("--dry-run" in options(path)) != (verb in NOTHING_TO_TRY or verb in READS), (
        "say why it has no --dry-run, or give it one"
    )


# ---- mistakes

NEXT = re.compile(r"evals \w|known \w+: (?!none)|\b(write|name|take|correct) ")


@pytest.fixture(scope="module")
def outside(shared_state: Path) -> Generator[None]:
    """An empty project that calls of this process find."""
    with short_dir() as root, pytest.MonkeyPatch.context() as patch:
        for folder in ("worlds", "datasets", "experiments"):
            (root / "worlds_src" / folder).mkdir(parents=True)
        (root / "a-file").write_text("")
        patch.setenv("EVALS_STATE_DIR", str(shared_state))
        patch.setenv("EVALS_WORLDS_DIR", str(root / "worlds_src"))
        patch.chdir(root)
        yield


def calls(path: tuple[str, ...]) -> Iterator[list[str]]:
    """What can only be a mistake."""
    required = ["--base", "a", "--head", "b", "--margin", "0.1"] if path == ("gate",) else []
    required += ["--rater", "r"] if path == ("judge", "label") else []
    yield [*required, *(BAD for _ in arguments(path)), "--no-such-option"]
    if all(one.nargs == 1 for one in arguments(path)):
        yield [*required, *(BAD for _ in arguments(path)), "surplus"]
    if any(one.required for one in arguments(path)):
        yield required
    if arguments(path):
        yield [*required, *("a-file" if path == ("skill", "install") else BAD for _ in arguments(path))]


@EACH_VERB
def test_a_mistake_is_answered_with_one_envelope_and_the_next_step(
    path: tuple[str, ...], outside: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in calls(path):
        monkeypatch.setattr(sys, "argv", ["evals", *path, "--json", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        said: dict[str, Any] = json.loads(out)
        assert (said["ok"], ended.value.code) == (False, 2), words
        assert said["error"]["message"] and "Traceback" not in out + err
        assert NEXT.search(said["error"]["hint"] or ""), (words, said["error"])
