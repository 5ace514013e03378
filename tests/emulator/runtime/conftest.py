"""Fixtures: a broker for each module, an HTTP client, and a server with a firmware image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.emulator.runtime.firmware_service import PACKAGE
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.mqtt.client.proxy import to_address
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.mqtt.client import BrokerAddress


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    settings = ("set_tcp_nodelay true", "max_queued_messages 0")
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), *settings) as mosquitto:
        yield mosquitto


@pytest.fixture
def mosquitto(broker: Mosquitto) -> BrokerAddress:
    return to_address(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHttpServer]:
    async with ScriptedHttpServer.serving({"/image": build_response(200, PACKAGE)}) as web:
        yield web
