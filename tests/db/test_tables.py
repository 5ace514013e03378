"""Foreign keys between tables: dependent rows are deleted with their row, or protect it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import account, device, device_label, device_state, gateway, label, metadata, session

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

_DEVICE = {"id": 1, "name": "", "name_key": "", "named": False, "model": 0, "variant": 0, "firmware": "0.0.0"}
_DEVICE |= {"beta": 0, "hardware": "0.0.0", "connected": False, "connected_at": 0, "created_at": 0}


def _fill(connection: Connection) -> None:
    connection.execute(
        insert(account).values(username="a", password="hash", role="admin", created_at=0)  # noqa: S106 # not a real password
    )
    connection.execute(insert(session).values(id="s", username="a", created_at=0, expires_at=0))
    connection.execute(insert(device).values(_DEVICE))
    connection.execute(insert(device_state).values(device=1))
    connection.execute(insert(label).values(id=1, text="l", created_at=0))
    connection.execute(insert(device_label).values(label=1, device=1))


def _counts(connection: Connection) -> dict[str, int]:
    counts = {
        name: connection.scalar(select(func.count()).select_from(metadata.tables[name])) for name in _TABLES
    }
    return {name: count for name, count in counts.items() if count}


_TABLES = ("account", "session", "device", "device_state", "label", "device_label", "gateway")


@pytest.mark.parametrize(
    ("deleted_table", "remaining_tables"),
    [
        ("account", {"device", "device_state", "label", "device_label"}),
        ("device", {"account", "session", "label"}),
        ("label", {"account", "session", "device", "device_state"}),
    ],
)
def test_dependent_rows_are_deleted_with_their_row(
    database: Database, deleted_table: str, remaining_tables: set[str]
) -> None:
    database.write_now(_fill)
    database.write_now(lambda connection: connection.execute(metadata.tables[deleted_table].delete()))
    assert database.read_now(_counts) == dict.fromkeys(remaining_tables, 1)


def test_a_claimed_gateway_cannot_lose_its_device(database: Database) -> None:
    def claim(connection: Connection) -> None:
        connection.execute(insert(gateway).values(device=1, claimed_at=0))

    with pytest.raises(IntegrityError):
        database.write_now(claim)
    database.write_now(_fill)
    database.write_now(claim)
    with pytest.raises(IntegrityError):
        database.write_now(lambda connection: connection.execute(device.delete()))
