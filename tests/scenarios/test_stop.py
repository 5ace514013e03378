"""A service that is asked to end writes down what it knows."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis
from tests.databases import create_database
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = "02005e000001", Mac("c0ffee0000a1")

_numbers = count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    given = loopback_options("--mqtt")
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        given += ["--database", create_database(server, f"stop_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *given) as running:
        yield running


async def report(gateway: RawClient, number: int, *, seconds_ago: int) -> str:
    """Let a sample be committed; gives its time."""
    at = format_millis(time.time_ns() // 1_000_000 - seconds_ago * 1000)
    payload = f'{{"time":"{at}","seq":{number},"value":"0100"}}'.encode()
    topic = f"mt/gateway/{GATEWAY}/device/{DEVICE}/measurement/8800"
    gateway.send(Publish(topic, payload, 1, packet_id=number))
    assert await gateway.expect(Puback) == Puback(number)
    return at


async def test_what_samples_told_is_written_down_at_the_end(service: ServiceProcess) -> None:
    """The first of them is in a journal anyway: it made the device known."""
    gateway = await service.connect(service.claim(GATEWAY))
    await report(gateway, 1, seconds_ago=60)
    last = await report(gateway, 2, seconds_ago=0)
    code, errors = service.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
    await service.disconnect_all()
    service.start()
    devices = service.call("GET", "/api/v1/devices?Include=live")["items"]
    seen = {each["id"]: each["live"]["lastReportAt"] for each in devices}
    assert seen[to_device_id(DEVICE)] == last
