"""Commands of docs/guides/updates.md, parsed but not executed."""

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


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) > 4


@each_row("line", COMMANDS)
def test_every_command_of_the_guide_is_valid(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *arguments = shlex.split(line.replace("…", "1234567890abcdef"))
    monkeypatch.chdir(tmp_path)
    for image in (argument for argument in arguments if argument.endswith((".zip", ".bin", ".raucb"))):
        Path(image).touch()  # the image must exist
    command: click.Command = main
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, info_name=name, parent=context)
        found, subcommand, arguments = command.resolve_command(context, arguments)
        assert found is not None
        assert subcommand is not None
        name, command = found, subcommand
    parsed = command.make_context(name, arguments, parent=context)
    assert parsed.command is command
