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
        text = path.read_text("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as exc:
        line = path.read_bytes()[: exc.start].count(b"\n") + 1
        raise MalformedCatalogue(str(path), [Mistake(line, "is not UTF-8")]) from exc
    return BUILTIN.extended(text, str(path))


def table_option(command: Any) -> Any:
    """Give a command the option `--table`; it gets the catalogue as `catalogue`."""
    return click.option(
        "--table",
        "catalogue",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_load,
        help="A table of your own identifiers, added to the built-in ones.",
    )(command)
