"""Mosquitto and the embedded broker, one for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.testing.broker import running_broker
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=["mosquitto", "embedded"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """URL of a broker that accepts every client."""
    if request.param == "mosquitto":
        with Mosquitto(tmp_path, "set_tcp_nodelay true") as mosquitto:
            yield f"mqtt://127.0.0.1:{mosquitto.address.port}"
        return
    async with running_broker("") as port:
        yield f"mqtt://127.0.0.1:{port}"
