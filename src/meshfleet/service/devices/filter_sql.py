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
"""Placeholder for the condition on device names (column `name_key`) in sets of indexed columns."""

_UNARY_PLUS: Final = custom_op[Any]("+")

_TRIGRAM_LENGTH: Final = 3
"""Minimum length of a string that can be searched in the trigram index of device names (rest-36)."""

_INITIALS_LENGTH: Final = 2
"""Number of leading characters of device names that the prefix index of names covers."""

_LAST_CHARACTER: Final = chr(sys.maxunicode)
_FIRST_SURROGATE: Final = 0xD800
"""First surrogate code point. The surrogates D800 to DFFF occur in no valid string."""

_SPECIAL: Final = re.compile(r"[\\%_]")
_ESCAPED: Final = r"\\\g<0>"


class NamePattern(Struct, frozen=True):
    """String to search in device names: a matching name contains the string.

    If the string has fewer than three characters, a matching name starts with the string (rest-36).
    """

    key: str
    is_prefix: bool
    on_sqlite: bool

    def build_condition(self, indexed: Collection[str] | None = None) -> ColumnElement[bool]:
        """Return the SQL condition that a device name matches this pattern.

        A prefix condition is written so that the database can use the prefix index of names. `indexed` are
        the columns whose indexes SQLite may use; None means all columns.
        """
        if not self.is_prefix:
            return self._contains_condition
        key: ColumnElement[str] = device.c.name_key
        if indexed is not None and NAME_CONDITION not in indexed:
            key = disable_index(key)
        initials = _build_prefix_condition(key, self.key[:_INITIALS_LENGTH])
        return (
            initials
            if len(self.key) <= _INITIALS_LENGTH
            else initials & _build_prefix_condition(key, self.key)
        )

    @property
    def prefix_end(self) -> str | None:
        """First string, by code point, after all strings with the prefix; None if there is none."""
        stem = self.key.rstrip(_LAST_CHARACTER)
        if not stem:
            return None
        code_point = ord(stem[-1]) + 1
        return stem[:-1] + chr(0xE000 if code_point == _FIRST_SURROGATE else code_point)

    @property
    def trigram_query(self) -> str | None:
        """Search string for SQLite's trigram index of device names; None if the index cannot be used."""
        if self.is_prefix or len(self.key) < _TRIGRAM_LENGTH:
            return None
        return '"' + self.key.replace('"', '""') + '"'

    @property
    def _contains_condition(self) -> ColumnElement[bool]:
        if self.on_sqlite:
            return func.instr(device.c.name_key, self.key) > 0
        return device.c.name_key.like(f"%{_SPECIAL.sub(_ESCAPED, self.key)}%")


class ResolvedFilter(Struct, frozen=True):
    """Device filter with database values: column values, and database ids of labels and devices."""

    columns: dict[str, Any]
    """Required values of columns of the table `device`, by column name."""
    labels: tuple[int, ...] = ()
    """Ids of labels. A matching device has all of them."""
    name: NamePattern | None = None
    ids: tuple[int, ...] | None = None
    """Ids of the devices that may match; None allows all devices."""

    def build_conditions(
        self, sort: DeviceSort = DeviceSort.ID, *, indexed: Collection[str] | None = None
    ) -> Iterator[ColumnElement[bool]]:
        """Yield all SQL conditions of the filter.

        `indexed` are the columns whose indexes SQLite may use; None means all columns.
        """
        yield from self.build_column_conditions(sort, indexed=indexed)
        yield from (build_label_condition(device.c.id, label_id) for label_id in self.labels)

    def build_column_conditions(
        self,
        sort: DeviceSort = DeviceSort.ID,
        *,
        indexed: Collection[str] | None = None,
        with_name: bool = True,
    ) -> Iterator[ColumnElement[bool]]:
        """Yield the SQL conditions of the filter, without those on labels.

        Conditions on names are left out if `with_name` is False. They are also left out if `sort` is by name
        and the filter has a name prefix, because the prefix limits the sort range.
        """
        for name, value in self.columns.items():
            column = device.c[name]
            yield (column if indexed is None or name in indexed else disable_index(column)) == value
        if self.name is not None and with_name and not (self.name.is_prefix and sort is DeviceSort.NAME):
            yield self.name.build_condition(indexed)
        if self.ids is not None:
            yield device.c.id.in_(self.ids)


def resolve_filter(connection: Connection, device_filter: DeviceFilter) -> ResolvedFilter | None:
    """Replace labels and MACs of a filter by database ids.

    Return None if no device can match, for example because a label does not exist.
    """
    labels = _find_label_ids(connection, device_filter.labels)
    name = _build_name_pattern(device_filter.name or "", on_sqlite=connection.dialect.name == "sqlite")
    if labels is None or device_filter.ids == () or (name is not None and "\0" in name.key):
        return None
    ids = None if device_filter.ids is None else tuple(sorted({mac_to_int(mac) for mac in device_filter.ids}))
    return ResolvedFilter(columns=_build_column_values(device_filter), labels=labels, name=name, ids=ids)


def build_label_condition(device_id: ColumnElement[int], label_id: int) -> ColumnElement[bool]:
    """Return the SQL condition that a device has a label."""
    return exists().where(device_label.c.label == label_id, device_label.c.device == device_id)


def disable_index(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL expression `+column`, so that SQLite does not use an index on the column."""
    return UnaryExpression(column, operator=_UNARY_PLUS, type_=column.type)


def _find_label_ids(connection: Connection, labels: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the ids of labels, or None if a label does not exist."""
    unique = set(labels)
    if not unique:
        return ()
    if any("\0" in text for text in unique):  # PostgreSQL rejects NUL in strings
        return None
    found = tuple(connection.scalars(select(label.c.id).where(label.c.text.in_(sorted(unique)))))
    return found if len(found) == len(unique) else None


def _build_name_pattern(text: str, *, on_sqlite: bool) -> NamePattern | None:
    """Return the name pattern for the string in a filter; None if the string is empty.

    The length of the typed string decides whether the pattern is a prefix: normalizing may lengthen it.
    """
    length = len(unicodedata.normalize("NFC", text))
    if not length:
        return None
    return NamePattern(normalize_name(text), is_prefix=length < _TRIGRAM_LENGTH, on_sqlite=on_sqlite)


def _build_prefix_condition(column: ColumnElement[str], start: str) -> ColumnElement[bool]:
    # Literal numbers as in the index definition: SQLite matches expressions by their text.
    """Return the SQL condition that a column starts with a string, in the form that the index has."""
    return func.substr(column, literal_column("1"), literal_column(str(len(start)))) == start


def _build_column_values(device_filter: DeviceFilter) -> dict[str, Any]:
    """Return the values that a filter requires in columns of the table `device`, by column name."""
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
