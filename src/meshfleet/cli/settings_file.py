"""Changes single settings in a settings file, and keeps all other settings and all comments."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import click
import msgspec

from meshfleet.cli.file_replacement import replace_file

if TYPE_CHECKING:
    from pathlib import Path

_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")


def set_in_table(path: Path, table: str, values: dict[str, str]) -> None:
    """Set string values by key in a table of a TOML file. Create the file if it does not exist.

    Raise `ClickException` if the file cannot be read or written, is not valid TOML, has a key `KEY-file` for
    one of the keys, or is written in a way that cannot be changed safely.
    """
    before = _read(path)
    after = before
    for key in values:
        if f"{key}-file" in _get_table(_parse(path, before), table):
            name = f"{table}.{key}-file"
            raise click.ClickException(f"{path} has {name}: write the value to that file, or remove {name}")
    for key, value in values.items():
        after = _set_line(after, table, key, msgspec.json.encode(value).decode())
    expected = _parse(path, before)
    expected[table] = {**_get_table(expected, table), **values}
    try:
        is_safe = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        is_safe = False
    if not is_safe:
        lines = "\n".join(f"  {key} = …" for key in values)
        raise click.ClickException(f"{path} cannot be changed safely; write it yourself:\n[{table}]\n{lines}")
    _write(path, after)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as exc:
        raise click.ClickException(f"{path} cannot be read: {exc}") from exc


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise click.ClickException(f"{path} is not valid TOML: {exc}") from exc


def _get_table(content: dict[str, Any], table: str) -> dict[str, Any]:
    """Return a table of parsed TOML; empty if there is none."""
    found = content.get(table)
    return found if isinstance(found, dict) else {}


def _set_line(text: str, table: str, key: str, value: str) -> str:
    """Return the TOML text with a line `key = value` in a table, in place of the former line of the key.

    Without a former line, add the line after the header of the table; without the table, add both at the end.
    """
    lines = text.splitlines()
    assignment = re.compile(rf"^\s*{re.escape(key)}\s*=")
    header, current = None, ""
    for index, line in enumerate(lines):
        if found := _TABLE.match(line):
            current = found[1].strip()
            header = index if current == table else header
        elif current == table and assignment.match(line):
            lines[index] = f"{key} = {value}"
            return "\n".join([*lines, ""])
    if header is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{table}]"]
        header = len(lines) - 1
    lines.insert(header + 1, f"{key} = {value}")
    return "\n".join([*lines, ""])


def _write(path: Path, text: str) -> None:
    """Write the settings file. An existing file keeps its owner and permissions, and a link its target.

    A new file can be read by its owner only.
    """
    try:
        path = path.resolve()
        status = path.stat() if path.exists() else None
        mode = 0o600 if status is None else status.st_mode & 0o777
        replace_file(path, text.encode(), mode=mode, owner=status)
    except OSError as exc:
        raise click.ClickException(f"{path} cannot be written: {exc.strerror}") from exc
