"""Fixtures: a database with accounts, on both database systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.embedded_broker.mqtt_accounts import MqttAccounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture
def accounts(database: Database) -> Iterator[MqttAccounts]:
    created = MqttAccounts(database)
    yield created
    created.close()
