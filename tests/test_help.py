"""The first screens: what each verb does stands there whole."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from eval_pipeline.cli.main import NOUNS, cli


@pytest.mark.parametrize("noun", NOUNS)
def test_summaries_are_whole_on_a_screen_of_100_columns(noun: str) -> None:
    command = cli.get_command(click.Context(cli), noun)
    done = CliRunner().invoke(cli, [noun, "--help"], terminal_width=100)
    assert done.exit_code == 0
    if isinstance(command, click.Group):
        listed = done.output.partition("Commands:\n")[2]
        assert listed and [line for line in listed.splitlines() if line.endswith("...")] == []
