"""Samples as PostgreSQL's binary COPY has them: the driver's own way takes several times as long."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.db.samples.sample import More, Row

COLUMNS: Final = (
    "device, time, gateway, identifier, number, kind, seq, raw, text, ext, error, error_ext, shift"
)
STRAY_COLUMNS: Final = f"{COLUMNS}, clock, received_at"

_BEGINNING: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"

_NULL: Final = b"\xff\xff\xff\xff"
_NUMBERED = struct.Struct(">hiqiqiqiqidihih").pack
_UNNUMBERED = struct.Struct(">hiqiqiqiqiihih").pack
_WIDE = struct.Struct(">iq").pack
_NARROW = struct.Struct(">ih").pack
_LENGTH = struct.Struct(">i").pack

_PLACED, _STRAY = 13, 15
"""How many columns there are."""


def placed(device: int, row: Row) -> bytes:
    """A row of `sample`."""
    return _row(_PLACED, device, row)


def stray(device: int, row: Row, clock: int, received_at: int) -> bytes:
    """A row of `sample_stray`."""
    return _row(_STRAY, device, row) + _NARROW(2, clock) + _WIDE(8, received_at)


def insert(connection: Connection, table: str, columns: str, rows: Sequence[bytes]) -> None:
    """Add rows, but for those that are there already."""
    if not rows:
        return
    # COPY itself would stop at a row that exists, so it goes to a table that only this connection sees.
    template = f"SELECT {columns} FROM {table} WITH NO DATA"  # noqa: S608 # our own names
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS new_{table} ON COMMIT DELETE ROWS AS {template}"
    )
    driver: Any = connection.connection.driver_connection
    dbapi: Any = connection.dialect.dbapi  # not by its name: who uses SQLite never loads it
    statement = f"COPY new_{table} ({columns}) FROM STDIN (FORMAT BINARY)"
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"".join((_BEGINNING, *rows, _END)))
    except dbapi.Error as exc:
        # As SQLAlchemy would raise it: it does not see what happens here.
        raise DBAPIError.instance(statement, None, exc, dbapi.Error, dialect=connection.dialect) from exc
    connection.exec_driver_sql(
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new_{table} ON CONFLICT DO NOTHING"  # noqa: S608
    )


def _row(columns: int, device: int, row: Row) -> bytes:
    time, kind, identifier, seq, gateway, number, raw, more = row
    if number is None:
        front = _UNNUMBERED(columns, 8, device, 8, time, 8, gateway, 8, identifier, -1, 2, kind, 2, seq)
    else:
        front = _NUMBERED(columns, 8, device, 8, time, 8, gateway, 8, identifier, 8, number, 2, kind, 2, seq)
    tail = _NULL if raw is None else _LENGTH(len(raw)) + raw
    return front + tail + (5 * _NULL if more is None else _more(more))


def _more(more: More) -> bytes:
    error, error_ext, shift = _whole(more.error), _whole(more.error_ext), _whole(more.shift)
    return b"".join((_text(more.text), _text(more.ext), error, error_ext, shift))


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    data = text.encode()
    return _LENGTH(len(data)) + data


def _whole(number: int | None) -> bytes:
    return _NULL if number is None else _WIDE(8, number)
