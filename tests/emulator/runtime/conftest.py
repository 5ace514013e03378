"""Fixtures: a mosquitto broker for each module, an HTTP client, and a server of a firmware image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.emulator.runtime.firmware_service import PACKAGE
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.mqtt.client.proxy import to_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.mqtt.client import BrokerAddress
    from tests.servers import Mosquitto


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    from tests.servers import Mosquitto  # noqa: PLC0415 # else all tests here count as slow (tests/fast_suite.py)

    directory = tmp_path_factory.mktemp("mosquitto")
    with Mosquitto(directory, "set_tcp_nodelay true", "max_queued_messages 0") as mosquitto:
        yield mosquitto


@pytest.fixture
def mosquitto(broker: Mosquitto) -> BrokerAddress:
    return to_address(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    from tests.servers import NO_TRUSTED_AUTHORITIES  # noqa: PLC0415 # as above

    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHttpServer]:
    async with ScriptedHttpServer.serving({"/image": build_response(200, PACKAGE)}) as web:
        yield web
