"""The option `--table`: identifiers of the user's own, beside the built-in ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from meshfleet.errors import MalformedCatalogue, Mistake
from meshfleet.wire.identifiers import BUILTIN, Catalogue


def _load(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Catalogue:
    if path is None:
        return BUILTIN
    try:
        return BUILTIN.extended(_text(path), str(path))
    except MalformedCatalogue as exc:
        # Each mistake at the beginning of a line, where editors look for file and line.
        raise click.ClickException(f"the table cannot be used:\n{exc}") from exc


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise MalformedCatalogue(str(path), [Mistake(line, "is not UTF-8")]) from exc


def table_option(command: Any) -> Any:
    """Give a command the option `--table`; it gets the catalogue as `catalogue`."""
    return click.option(
        "--table",
        "catalogue",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_load,
        help="A table of your own identifiers, added to the built-in ones.",
    )(command)
