"""Gateways whose clocks are wrong, before a service as a program."""

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
"""Seconds that the clocks of gateways are ahead."""


def moment(ahead: float) -> str:
    return format_millis(time.time_ns() // 1_000_000 + round(ahead * 1000))


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def answer_with_clock(ahead: int) -> Callable[[IncomingRequest], list[OutgoingMessage]]:
    """Answer every question with the version, at the time of this clock."""
    return lambda asked: [asked.build_response(version="2.3.0", time=moment(ahead))]


def report(gateway: ScriptedGateway, device: str, ahead: float) -> None:
    """Report all that tells what a device is, and how it is."""
    front = f"mt/gateway/{gateway.mac}/device/{device}"
    gateway.report(f"{front}/property-decoded/model-number", time=moment(ahead), value=0x2011)
    gateway.report(f"{front}/property-decoded/firmware-version", time=moment(ahead), value="2.4.1")
    gateway.report(f"{front}/measurement-decoded/temperature", time=moment(ahead), seq=1, value=21.5)
    gateway.report(f"{front}/heartbeat", time=moment(ahead), seq=1, status=0)


@pytest.mark.rule("report-48", "report-49", "rest-75", "rest-179")
def test_devices_behind_wrong_clocks_are_known_and_connected(tmp_path: Path) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(ServiceProcess(tmp_path, *loopback_options("--mqtt")))
        gateways, passwords, port = {}, {}, service.mqtt["mqtt"].port
        for mac, ahead in CLOCKS.items():
            told = service.claim(mac)
            passwords[mac] = told.password
            gateways[mac] = ScriptedGateway(port, mac, answer_with_clock(ahead), password=told.password)
            gateways[mac].start()
            stack.callback(gateways[mac].stop)

        def offsets() -> dict[str, Any]:
            items = service.call("GET", "/api/v1/gateways")["items"]
            return {each["mac"]: each["clockOffset"] for each in items}

        eventually(lambda: None not in offsets().values())
        assert offsets() == pytest.approx(CLOCKS, abs=2)

        def device(mac: str) -> Any:
            return service.call("GET", f"/api/v1/devices/bmac-{mac}")

        devices = {mac: f"c0ffee{mac[6:]}" for mac in CLOCKS}
        for mac, ahead in CLOCKS.items():
            report(gateways[mac], devices[mac], ahead)
        expected = {f"bmac-{mac}" for mac in devices.values()}

        def connected() -> set[str]:
            return {each["id"] for each in service.call("GET", "/api/v1/devices?Connected=true")["items"]}

        eventually(lambda: expected <= connected())
        now = time.time()
        found = [(each["modelNumber"], each["firmwareVersion"]) for each in map(device, devices.values())]
        assert found == [("2011", "2.4.1")] * len(CLOCKS)
        reported = {mac: seconds(device(devices[mac])["live"]["lastReportAt"]) for mac in CLOCKS}
        assert reported == pytest.approx(dict.fromkeys(CLOCKS, now), abs=TEST_TIMEOUT)

        for mac, ahead in CLOCKS.items():
            path = f"/api/v1/devices/bmac-{devices[mac]}/samples?Kind=measurement"
            (sample,) = service.call("GET", path)["items"]
            assert sample["clock"] is None
            assert seconds(sample["time"]) == pytest.approx(now + ahead, abs=TEST_TIMEOUT)
            if ahead:
                assert seconds(sample["correctedTime"]) == pytest.approx(now, abs=TEST_TIMEOUT)
            else:
                assert "correctedTime" not in sample

        # With a right clock, what is replayed is old, whoever replays it.
        right = next(mac for mac, ahead in CLOCKS.items() if not ahead)
        old = "c0ffee27ffff"
        report(gateways[right], old, -6 * HOUR)
        eventually(lambda: service.call("GET", "/api/v1/devices?Ids=bmac-" + old)["items"])
        assert not device(old)["connectivity"]["connected"]
        assert offsets()[right] == pytest.approx(0, abs=2)

        # One that was ahead was set right while it was away; it reports what it kept before it answers.
        mended, late = next(iter(CLOCKS)), "c0ffee27fffe"
        gateways[mended].stop()
        back = ScriptedGateway(port, mended, never_respond, password=passwords[mended])
        back.start()
        stack.callback(back.stop)
        report(back, late, -600)
        path = f"/api/v1/devices/bmac-{late}/samples?Kind=measurement"
        eventually(lambda: service.call("GET", "/api/v1/devices?Ids=bmac-" + late)["items"])
        (sample,) = service.call("GET", path)["items"]
        assert "correctedTime" not in sample
        now = time.time()
        assert seconds(device(late)["live"]["lastReportAt"]) == pytest.approx(now - 600, abs=TEST_TIMEOUT)
