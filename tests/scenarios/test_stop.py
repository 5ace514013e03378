"""Stop of a service, which persists the state of its devices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient
    from tests.scenarios.service_process import ServiceProcess

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = "02005e000001", Mac("c0ffee0000a1")


async def report(gateway: RawClient, number: int, *, seconds_ago: int) -> str:
    """Publish a sample, wait until it is committed, and return its time."""
    at = format_millis(time.time_ns() // 1_000_000 - seconds_ago * 1000)
    payload = f'{{"time":"{at}","seq":{number},"value":"0100"}}'.encode()
    topic = f"mt/gateway/{GATEWAY}/device/{DEVICE}/measurement/8800"
    gateway.send(Publish(topic, payload, 1, packet_id=number))
    assert await gateway.expect(Puback) == Puback(number)
    return at


async def test_the_last_report_times_are_persisted_when_the_service_stops(service: ServiceProcess) -> None:
    """Publish two samples: the first is persisted in any case, because it registered the device."""
    gateway = await service.connect(service.claim(GATEWAY))
    await report(gateway, 1, seconds_ago=60)
    last = await report(gateway, 2, seconds_ago=0)
    code, errors = service.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
    await service.disconnect_all()
    service.start()
    devices = service.call("GET", "/api/v1/devices?Include=live")["items"]
    last_reports = {each["id"]: each["live"]["lastReportAt"] for each in devices}
    assert last_reports[to_device_id(DEVICE)] == last
