"""A filter as the database sees it: numbers for labels and MACs, and conditions on the rows of devices."""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from sqlalchemy import ColumnElement, UnaryExpression, exists, func, literal_column, select
from sqlalchemy.sql.operators import custom_op

from meshfleet.db.tables import device, device_label, label
from meshfleet.protocol.ids import mac_to_int
from meshfleet.service.devices.model import DeviceSort, format_base_version, normalize_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sqlalchemy import Connection

    from meshfleet.service.devices.model import DeviceFilter

NAME_CONDITION: Final = "name"
"""Stands for conditions on names among those on columns."""

_UNARY_PLUS: Final = custom_op[Any]("+")

_TRIGRAM: Final = 3
"""Shorter texts have no place in an index of parts of names (rest-36)."""

_INITIALS: Final = 2
"""How many characters of the beginning of names have an index."""

_LAST_CHARACTER: Final = chr(sys.maxunicode)
_FIRST_SURROGATE: Final = 0xD800
"""Here begins what no text has; it goes on at E000."""

_SPECIAL: Final = re.compile(r"[\\%_]")
_ESCAPED: Final = r"\\\g<0>"


class NamePattern(Struct, frozen=True):
    """What a name must contain, or with fewer than three characters, how it must begin (rest-36)."""

    key: str
    is_prefix: bool
    on_sqlite: bool

    def condition(self, indexed: Collection[str] | None = None) -> ColumnElement[bool]:
        """On a device, written for the index that has the names in the order of ids."""
        if not self.is_prefix:
            return self._contained
        key = (
            device.c.name_key
            if indexed is None or NAME_CONDITION in indexed
            else without_index(device.c.name_key)
        )
        initials = _starts_with(key, self.key[:_INITIALS])
        return initials if len(self.key) <= _INITIALS else initials & _starts_with(key, self.key)

    @property
    def prefix_end(self) -> str | None:
        """The first text after all that begin with this, by code point; None: there is none."""
        shorter = self.key.rstrip(_LAST_CHARACTER)
        if not shorter:
            return None
        number = ord(shorter[-1]) + 1
        return shorter[:-1] + chr(0xE000 if number == _FIRST_SURROGATE else number)

    @property
    def trigram_query(self) -> str | None:
        """What to look for in SQLite's index of parts of names; None: it cannot tell."""
        if self.is_prefix or len(self.key) < _TRIGRAM:
            return None
        return '"' + self.key.replace('"', '""') + '"'

    @property
    def _contained(self) -> ColumnElement[bool]:
        if self.on_sqlite:
            return func.instr(device.c.name_key, self.key) > 0
        return device.c.name_key.like(f"%{_SPECIAL.sub(_ESCAPED, self.key)}%")


class ResolvedFilter(Struct, frozen=True):
    """A filter that something may meet."""

    columns: dict[str, Any]
    """Columns of `device`, and what must be in them."""
    labels: tuple[int, ...] = ()
    name: NamePattern | None = None
    ids: tuple[int, ...] | None = None

    def conditions(
        self, sort: DeviceSort = DeviceSort.ID, *, indexed: Collection[str] | None = None
    ) -> Iterator[ColumnElement[bool]]:
        """All that must hold, as conditions on a device.

        `indexed` are the columns whose indexes SQLite may use; without it, all.
        """
        yield from self.column_conditions(sort, indexed=indexed)
        yield from (has_label(device.c.id, number) for number in self.labels)

    def column_conditions(
        self,
        sort: DeviceSort = DeviceSort.ID,
        *,
        indexed: Collection[str] | None = None,
        with_name: bool = True,
    ) -> Iterator[ColumnElement[bool]]:
        """What must hold besides the labels, with or without the name.

        How a name begins is left out where names are sorted: there it is a range of the sort.
        """
        for name, value in self.columns.items():
            column = device.c[name]
            yield (column if indexed is None or name in indexed else without_index(column)) == value
        if self.name is not None and with_name and not (self.name.is_prefix and sort is DeviceSort.NAME):
            yield self.name.condition(indexed)
        if self.ids is not None:
            yield device.c.id.in_(self.ids)


def resolve_filter(connection: Connection, device_filter: DeviceFilter) -> ResolvedFilter | None:
    """Look up what a filter names; None: nothing can meet it, such as a label that is not known."""
    labels = _labels(connection, device_filter.labels)
    name = _name(device_filter.name or "", on_sqlite=connection.dialect.name == "sqlite")
    if labels is None or device_filter.ids == () or (name is not None and "\0" in name.key):
        return None
    ids = None if device_filter.ids is None else tuple(sorted({mac_to_int(mac) for mac in device_filter.ids}))
    return ResolvedFilter(columns=_columns(device_filter), labels=labels, name=name, ids=ids)


def has_label(number: ColumnElement[int], wanted: int) -> ColumnElement[bool]:
    """Whether a device has a label."""
    return exists().where(device_label.c.label == wanted, device_label.c.device == number)


def without_index(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column with a sign in front of it, which keeps SQLite from using an index of it."""
    return UnaryExpression(column, operator=_UNARY_PLUS, type_=column.type)


def _labels(connection: Connection, texts: tuple[str, ...]) -> tuple[int, ...] | None:
    wanted = set(texts)
    if not wanted:
        return ()
    if any("\0" in text for text in wanted):  # which PostgreSQL refuses to look for
        return None
    found = tuple(connection.scalars(select(label.c.id).where(label.c.text.in_(sorted(wanted)))))
    return found if len(found) == len(wanted) else None


def _name(text: str, *, on_sqlite: bool) -> NamePattern | None:
    """Characters are counted as they were typed: what looks like two may be compared as three."""
    typed = len(unicodedata.normalize("NFC", text))
    return (
        NamePattern(normalize_name(text), is_prefix=typed < _TRIGRAM, on_sqlite=on_sqlite) if typed else None
    )


def _starts_with(column: ColumnElement[str], start: str) -> ColumnElement[bool]:
    # Numbers as they stand in the index: SQLite knows it by its words.
    return func.substr(column, literal_column("1"), literal_column(str(len(start)))) == start


def _columns(device_filter: DeviceFilter) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if device_filter.connected is not None:
        columns["connected"] = device_filter.connected
    if device_filter.model is not None:
        columns["model"] = int(device_filter.model, 16)
    if device_filter.firmware is not None:
        columns["firmware"] = format_base_version(device_filter.firmware)
        if device_filter.firmware.beta:
            columns["beta"] = device_filter.firmware.beta
    if device_filter.hardware is not None:
        columns["hardware"] = format_base_version(device_filter.hardware)
    if device_filter.gateway is not None:
        columns["gateway"] = mac_to_int(device_filter.gateway)
    return columns
