"""Fixtures of a mosquitto without limits, and of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.mqtt.client.proxy import to_address, unique_name
from tests.servers import Mosquitto, ServerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.mqtt.client import BrokerAddress


@pytest.fixture(scope="module")
def server_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddress]:
    settings = ("max_inflight_messages 0", "max_queued_messages 0", "set_tcp_nodelay true")  # 0: unlimited
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), *settings) as broker:
        yield broker.address


@pytest.fixture
def broker(server_address: ServerAddress) -> BrokerAddress:
    return to_address(server_address)


@pytest.fixture
def topic() -> str:
    return unique_name("topic")
