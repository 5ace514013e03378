"""Writes the man page of the command line, docs/man/meshfleet.1, from the help texts of all commands."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = Path(__file__).parents[1] / "docs" / "man" / "meshfleet.1"
_AS_WRITTEN: Final = "\b\n"
"""Beginning of a paragraph whose lines click does not join."""


def format_page() -> str:
    """Return the man page: one section for each command."""
    context = click.Context(main, info_name="meshfleet", **main.context_settings)
    lines = [
        '.TH MESHFLEET 1 "" "Meshfleet" "User Commands"',
        ".SH NAME",
        r"meshfleet \- manage fleets of Bluetooth-mesh devices behind MQTT gateways",
        ".SH SYNOPSIS",
        *(r"\fBmeshfleet\fR \fICOMMAND\fR [\fIOPTIONS\fR]", ".SH DESCRIPTION"),
        "Settings of the service also come from environment variables and from a settings file.",
        ".SH COMMANDS",
        *_format_commands(main, context),
    ]
    return "\n".join(lines) + "\n"


def _format_commands(group: click.Group, parent: click.Context) -> Iterator[str]:
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=parent)
        if isinstance(command, click.Group):
            yield from _format_commands(command, context)
        else:
            usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
            yield f".SS {_escape(usage)}"
            yield from _format_text(command.help or "")
            records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
            for option, text in [record for record in records if record and record[1]]:
                yield from (".TP", rf"\fB{_escape(option)}\fR", _escape(text))
            yield from _format_text(command.epilog or "")


def _format_text(text: str) -> Iterator[str]:
    for paragraph in filter(None, inspect.cleandoc(text).split("\n\n")):
        yield ".PP"
        if paragraph.startswith(_AS_WRITTEN):
            yield from (".nf", *map(_escape, paragraph.removeprefix(_AS_WRITTEN).splitlines()), ".fi")
        else:
            yield _escape(" ".join(paragraph.split()))


def _escape(text: str) -> str:
    r"""Escape backslashes and hyphens, and a dot or quote that begins a line: those would be commands."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(format_page(), "utf-8")
