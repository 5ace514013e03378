"""`meshfleet install systemd`: write the units and the settings file of the service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import Final

import click

from meshfleet.cli.file_replacement import replace_file
from meshfleet.cli.output import json_option, print_json

_SETTINGS: Final = Path("etc/meshfleet/meshfleet.toml")
_UNITS: Final = Path("etc/systemd/system")
_UNIT_NAMES: Final = ("meshfleet.service", "meshfleet-backup.service", "meshfleet-backup.timer")

_EXAMPLE_PROGRAM: Final = "/opt/meshfleet/bin/meshfleet"
"""Path of the program in the units of the package."""
_PLAIN_PATH: Final = re.compile(r"/[\w./+@~-]+", re.ASCII)
"""Paths that need no quotes or escapes in a unit."""
HIDDEN_FOLDERS: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 # never written to
"""Directories that the unit hides from the service (ProtectHome, PrivateTmp)."""

_NEXT_COMMANDS: Final = """\
Next:
  systemctl enable --now meshfleet meshfleet-backup.timer
  {program} users reset-password admin --config /{settings}
  systemctl status meshfleet"""


@click.group
def install() -> None:
    """Install the service on this machine."""


@install.command
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the systemd units and the settings file instead of writing them.",
)
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    help="Write below DIR instead of /, without reloading systemd: for packages and images.",
)
@json_option
def systemd(*, only_print: bool, root: Path, as_json: bool) -> None:
    """Write systemd units for the service and its daily backup, and a settings file; then reload systemd.

    Needs root. Existing units are replaced; an existing settings file is left as it is.
    """
    program = _find_program()
    contents = {_UNITS / name: _build_unit(name, program) for name in _UNIT_NAMES}
    contents[_SETTINGS] = _read_packaged_file(_SETTINGS.name)
    if only_print:
        _print_files({f"/{path}": content for path, content in contents.items()}, as_json=as_json)
        return
    is_live = root == Path("/")
    if is_live and os.geteuid() != 0:
        raise click.ClickException(
            "writing to /etc needs root: run this command with sudo, or use --print or --root DIR"
        )
    sentences = [
        _write_file(root / path, content, keep=path == _SETTINGS) for path, content in contents.items()
    ]
    if is_live:
        _reload_systemd()
    next_commands = _NEXT_COMMANDS.format(program=program, settings=_SETTINGS)
    if as_json:
        print_json({"files": sentences})
    else:
        click.echo("\n".join([*sentences, next_commands]))


def _print_files(files: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(files)
        return
    for path, content in files.items():
        click.echo(f"# {path}\n{content}")


def _find_program() -> str:
    """Return the path of the installed `meshfleet`. Warn if the service would not be able to run it."""
    program = str(Path(sysconfig.get_path("scripts"), "meshfleet"))
    if not _PLAIN_PATH.fullmatch(program):
        raise click.ClickException(
            f"systemd needs quotes for the path of the program, {program!r}: install it in /opt/meshfleet"
        )
    # The Python of a virtual environment may be a link to one in a home directory, as with pyenv and uv.
    python = os.path.realpath(sys.executable)
    if (folder := find_hidden_folder(program)) is not None:
        click.echo(
            f"Warning: the service cannot run {program}: its unit hides {folder}."
            " Install Meshfleet in /opt/meshfleet, and run this command from there.",
            err=True,
        )
    elif (folder := find_hidden_folder(python)) is not None:
        click.echo(
            f"Warning: the service cannot run {program}: its Python is {python}, and the unit hides {folder}."
            " Create the virtual environment with a Python of the system, such as /usr/bin/python3.",
            err=True,
        )
    return program


def find_hidden_folder(program: str) -> str | None:
    """Return the directory around the program that the unit hides from the service; None if it hides none."""
    return next((folder for folder in HIDDEN_FOLDERS if program.startswith(f"{folder}/")), None)


def _build_unit(name: str, program: str) -> str:
    """Return the content of a systemd unit that runs the program at this path."""
    return _read_packaged_file(name).replace(_EXAMPLE_PROGRAM, program)


def _read_packaged_file(name: str) -> str:
    return (files("meshfleet") / "deploy" / "systemd" / name).read_text("utf-8")


def _write_file(path: Path, content: str, *, keep: bool) -> str:
    """Write a file. If `keep` is set, leave an existing file as it is. Return what was done as a sentence."""
    try:
        existing = path.read_text("utf-8", "replace") if path.exists() else None
        if existing == content:
            return f"Unchanged: {path}"
        if existing is not None and keep:
            return f"Left as it is: {path} (the new example: meshfleet install systemd --print)"
        for folder in (path.parent.parent, path.parent):
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o755)  # whatever the umask of root is
        replace_file(path, content.encode(), mode=0o644)  # the service reads it as its own user
    except OSError as exc:
        raise click.ClickException(f"{path} cannot be written: {exc.strerror}") from exc
    return f"{'Written' if existing is None else 'Replaced'}: {path}"


def _reload_systemd() -> None:
    systemctl = which("systemctl")
    if systemctl is None:
        raise click.ClickException("the files are written, but there is no systemctl: is this systemd?")
    result = subprocess.run([systemctl, "daemon-reload"], check=False, capture_output=True, text=True)  # noqa: S603 # fixed arguments
    if result.returncode:
        raise click.ClickException(
            f"the files are written, but systemctl daemon-reload failed: {result.stderr.strip()}"
        )
