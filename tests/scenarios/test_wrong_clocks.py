"""Gateways with wrong clocks, and the service as a program."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.service.requests.scripted_gateway import ScriptedGateway, never_respond

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage

HOUR = 3600
CLOCKS = {"02005e270001": 6 * HOUR, "02005e270002": -6 * HOUR, "02005e270003": 700, "02005e270004": 0}
"""Seconds by which the clocks of gateways are ahead."""


def format_time(ahead: float) -> str:
    return format_millis(time.time_ns() // 1_000_000 + round(ahead * 1000))


def parse_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def respond_with_clock(ahead: int) -> Callable[[IncomingRequest], list[OutgoingMessage]]:
    """Respond to every request with the version, at the time of this clock."""
    return lambda request: [request.build_response(version="2.3.0", time=format_time(ahead))]


def report(gateway: ScriptedGateway, device: str, ahead: float) -> None:
    """Publish all reports that describe a device and its state."""
    prefix = f"mt/gateway/{gateway.mac}/device/{device}"
    gateway.report(f"{prefix}/property-decoded/model-number", time=format_time(ahead), value=0x2011)
    gateway.report(f"{prefix}/property-decoded/firmware-version", time=format_time(ahead), value="2.4.1")
    gateway.report(f"{prefix}/measurement-decoded/temperature", time=format_time(ahead), seq=1, value=21.5)
    gateway.report(f"{prefix}/heartbeat", time=format_time(ahead), seq=1, status=0)


@pytest.mark.part("long")
@pytest.mark.rule("report-48", "report-49", "rest-75", "rest-179")
def test_devices_behind_wrong_clocks_are_registered_and_connected(tmp_path: Path) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(ServiceProcess(tmp_path, *loopback_options("--mqtt")))
        gateways, passwords, port = {}, {}, service.mqtt["mqtt"].port
        for mac, ahead in CLOCKS.items():
            credentials = service.claim(mac)
            passwords[mac] = credentials.password
            gateways[mac] = ScriptedGateway(
                port, mac, respond_with_clock(ahead), password=credentials.password
            )
            gateways[mac].start()
            stack.callback(gateways[mac].stop)

        def read_offsets() -> dict[str, Any]:
            items = service.call("GET", "/api/v1/gateways")["items"]
            return {each["mac"]: each["clockOffset"] for each in items}

        eventually(lambda: None not in read_offsets().values())
        assert read_offsets() == pytest.approx(CLOCKS, abs=2)

        def load_device(mac: str) -> Any:
            return service.call("GET", f"/api/v1/devices/bmac-{mac}")

        devices = {mac: f"c0ffee{mac[6:]}" for mac in CLOCKS}
        for mac, ahead in CLOCKS.items():
            report(gateways[mac], devices[mac], ahead)
        expected = {f"bmac-{mac}" for mac in devices.values()}

        def list_connected() -> set[str]:
            return {each["id"] for each in service.call("GET", "/api/v1/devices?Connected=true")["items"]}

        eventually(lambda: expected <= list_connected())
        now = time.time()
        versions = [
            (each["modelNumber"], each["firmwareVersion"]) for each in map(load_device, devices.values())
        ]
        assert versions == [("2011", "2.4.1")] * len(CLOCKS)
        reported = {mac: parse_time(load_device(devices[mac])["live"]["lastReportAt"]) for mac in CLOCKS}
        assert reported == pytest.approx(dict.fromkeys(CLOCKS, now), abs=TEST_TIMEOUT)

        for mac, ahead in CLOCKS.items():
            path = f"/api/v1/devices/bmac-{devices[mac]}/samples?Kind=measurement"
            (sample,) = service.call("GET", path)["items"]
            assert sample["clock"] is None
            assert parse_time(sample["time"]) == pytest.approx(now + ahead, abs=TEST_TIMEOUT)
            if ahead:
                assert parse_time(sample["correctedTime"]) == pytest.approx(now, abs=TEST_TIMEOUT)
            else:
                assert "correctedTime" not in sample

        # With a correct clock, replayed reports are old.
        correct = next(mac for mac, ahead in CLOCKS.items() if not ahead)
        old = "c0ffee27ffff"
        report(gateways[correct], old, -6 * HOUR)
        eventually(lambda: service.call("GET", "/api/v1/devices?Ids=bmac-" + old)["items"])
        assert not load_device(old)["connectivity"]["connected"]
        assert read_offsets()[correct] == pytest.approx(0, abs=2)

        # A clock that was ahead was corrected while its gateway was disconnected. The gateway sends its
        # buffered reports before it responds to requests.
        corrected, late = next(iter(CLOCKS)), "c0ffee27fffe"
        gateways[corrected].stop()
        reconnected = ScriptedGateway(port, corrected, never_respond, password=passwords[corrected])
        reconnected.start()
        stack.callback(reconnected.stop)
        report(reconnected, late, -600)
        path = f"/api/v1/devices/bmac-{late}/samples?Kind=measurement"
        eventually(lambda: service.call("GET", "/api/v1/devices?Ids=bmac-" + late)["items"])
        (sample,) = service.call("GET", path)["items"]
        assert "correctedTime" not in sample
        now = time.time()
        assert parse_time(load_device(late)["live"]["lastReportAt"]) == pytest.approx(
            now - 600, abs=TEST_TIMEOUT
        )
