"""A house with accounts, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.embedded_broker.mqtt_accounts import MqttAccounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture
def anyio_backend() -> str:
    """The broker's own tests have the others."""
    return "asyncio"


@pytest.fixture
def house(database: Database) -> Iterator[MqttAccounts]:
    made = MqttAccounts(database)
    yield made
    made.close()
