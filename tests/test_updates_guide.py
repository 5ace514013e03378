"""The page about updates: every command on it can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshfleet.cli import main
from tests.row_tables import each_row

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "updates.md"
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("meshfleet ")
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 4


@each_row("line", COMMANDS)
def test_a_command_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *words = shlex.split(line.replace("…", "1234567890abcdef"))
    monkeypatch.chdir(tmp_path)
    for image in (word for word in words if word.endswith((".zip", ".bin"))):
        Path(image).touch()  # who types this has one
    command: click.Command = main
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, info_name=name, parent=context)
        found, below, words = command.resolve_command(context, words)
        assert found is not None
        assert below is not None
        name, command = found, below
    made = command.make_context(name, words, parent=context)
    assert made.command is command
