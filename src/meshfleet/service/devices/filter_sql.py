"""Translates device filters into SQL conditions on rows of the table `device`."""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, UnaryExpression, exists, func, literal_column, select
from sqlalchemy.sql.operators import custom_op

from meshfleet.db.tables import device, device_label, label
from meshfleet.protocol.ids import mac_to_int
from meshfleet.service.devices.model import DeviceFilter, DeviceSort, format_base_version, normalize_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


NAME_CONDITION: Final = "name"
"""Stands for the condition on device names (column `name_key`) in sets of indexed columns."""

_UNARY_PLUS: Final = custom_op[Any]("+")

_TRIGRAM: Final = 3
"""Minimum length of a text for which the trigram index of names can be searched (rest-36)."""

_INITIALS: Final = 2
"""Number of leading characters of names that the index of name prefixes covers."""

_LAST_CHARACTER: Final = chr(sys.maxunicode)
_FIRST_SURROGATE: Final = 0xD800
"""First surrogate. The code points from here to DFFF occur in no valid text."""

_SPECIAL: Final = re.compile(r"[\\%_]")
_ESCAPED: Final = r"\\\g<0>"


class NamePattern(Struct, frozen=True):
    """Text to search in device names: a matching name contains this text.

    If the text has fewer than three characters, a matching name starts with it (rest-36).
    """

    key: str
    is_prefix: bool
    on_sqlite: bool

    def condition(self, indexed: Collection[str] | None = None) -> ColumnElement[bool]:
        """Return the SQL condition on the name of a device.

        A prefix condition is written so that the database can use the index of name prefixes. `indexed` are
        the columns whose indexes SQLite may use; None means all.
        """
        if not self.is_prefix:
            return self._contained
        key: ColumnElement[str] = device.c.name_key
        if indexed is not None and NAME_CONDITION not in indexed:
            key = without_index(key)
        initials = _starts_with(key, self.key[:_INITIALS])
        return initials if len(self.key) <= _INITIALS else initials & _starts_with(key, self.key)

    @property
    def prefix_end(self) -> str | None:
        """First text, by code point, after all texts that start with the prefix; None if there is none."""
        stem = self.key.rstrip(_LAST_CHARACTER)
        if not stem:
            return None
        code_point = ord(stem[-1]) + 1
        return stem[:-1] + chr(0xE000 if code_point == _FIRST_SURROGATE else code_point)

    @property
    def trigram_query(self) -> str | None:
        """Search text for SQLite's trigram index of names; None if the index cannot be used."""
        if self.is_prefix or len(self.key) < _TRIGRAM:
            return None
        return '"' + self.key.replace('"', '""') + '"'

    @property
    def _contained(self) -> ColumnElement[bool]:
        if self.on_sqlite:
            return func.instr(device.c.name_key, self.key) > 0
        return device.c.name_key.like(f"%{_SPECIAL.sub(_ESCAPED, self.key)}%")


class ResolvedFilter(Struct, frozen=True):
    """Device filter in terms of the database: column values, and the ids of labels and devices."""

    columns: dict[str, Any]
    """Columns of the table `device` and the values that they must have."""
    labels: tuple[int, ...] = ()
    name: NamePattern | None = None
    ids: tuple[int, ...] | None = None

    def conditions(
        self, sort: DeviceSort = DeviceSort.ID, *, indexed: Collection[str] | None = None
    ) -> Iterator[ColumnElement[bool]]:
        """Yield all SQL conditions of the filter.

        `indexed` are the columns whose indexes SQLite may use; None means all.
        """
        yield from self.column_conditions(sort, indexed=indexed)
        yield from (has_label(device.c.id, label_id) for label_id in self.labels)

    def column_conditions(
        self,
        sort: DeviceSort = DeviceSort.ID,
        *,
        indexed: Collection[str] | None = None,
        with_name: bool = True,
    ) -> Iterator[ColumnElement[bool]]:
        """Yield the SQL conditions of the filter except those on labels; `with_name` includes the name.

        When sorting by name, a condition on a name prefix is left out: it limits the sort range instead.
        """
        for name, value in self.columns.items():
            column = device.c[name]
            yield (column if indexed is None or name in indexed else without_index(column)) == value
        if self.name is not None and with_name and not (self.name.is_prefix and sort is DeviceSort.NAME):
            yield self.name.condition(indexed)
        if self.ids is not None:
            yield device.c.id.in_(self.ids)


def resolve_filter(connection: Connection, device_filter: DeviceFilter) -> ResolvedFilter | None:
    """Look up the database ids that a filter refers to.

    Return None if no device can match, for example because a label does not exist.
    """
    labels = _find_label_ids(connection, device_filter.labels)
    name = _build_name_pattern(device_filter.name or "", on_sqlite=connection.dialect.name == "sqlite")
    if labels is None or device_filter.ids == () or (name is not None and "\0" in name.key):
        return None
    ids = None if device_filter.ids is None else tuple(sorted({mac_to_int(mac) for mac in device_filter.ids}))
    return ResolvedFilter(columns=_build_column_values(device_filter), labels=labels, name=name, ids=ids)


def has_label(device_id: ColumnElement[int], label_id: int) -> ColumnElement[bool]:
    """Return the SQL condition that a device has a label."""
    return exists().where(device_label.c.label == label_id, device_label.c.device == device_id)


def without_index(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a column with a unary plus, which keeps SQLite from using an index on the column."""
    return UnaryExpression(column, operator=_UNARY_PLUS, type_=column.type)


def _find_label_ids(connection: Connection, texts: tuple[str, ...]) -> tuple[int, ...] | None:
    unique = set(texts)
    if not unique:
        return ()
    if any("\0" in text for text in unique):  # PostgreSQL rejects NUL in texts
        return None
    found = tuple(connection.scalars(select(label.c.id).where(label.c.text.in_(sorted(unique)))))
    return found if len(found) == len(unique) else None


def _build_name_pattern(text: str, *, on_sqlite: bool) -> NamePattern | None:
    """Return the name pattern for the text of a filter; None if the text is empty.

    Whether it is a prefix depends on the typed text: two typed characters may become three when normalized.
    """
    length = len(unicodedata.normalize("NFC", text))
    if not length:
        return None
    return NamePattern(normalize_name(text), is_prefix=length < _TRIGRAM, on_sqlite=on_sqlite)


def _starts_with(column: ColumnElement[str], start: str) -> ColumnElement[bool]:
    # Literal numbers as in the index definition: SQLite matches expressions by their text.
    return func.substr(column, literal_column("1"), literal_column(str(len(start)))) == start


def _build_column_values(device_filter: DeviceFilter) -> dict[str, Any]:
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
