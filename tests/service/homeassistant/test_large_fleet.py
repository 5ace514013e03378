"""A birth of Home Assistant with 2,000 devices, while gateways report."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator import EmulatorSettings, SimulatedClock, generate_site
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.ids import Mac, mac_from_int
from meshfleet.settings.model import HomeAssistantSettings
from meshfleet.testing.background import BackgroundContext
from meshfleet.testing.service import running_service
from tests.cli.programs import PahoListener, open_client
from tests.eventually import eventually
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

GATEWAYS = 20
DEVICES_PER_GATEWAY = 100
FIRST_GATEWAY = 0x02005E000001


@pytest.mark.part("homeassistant")
@pytest.mark.rule("homeassistant-6")
def test_a_birth_with_2000_devices_while_gateways_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emulated = []
    for number in range(GATEWAYS):
        mac = Mac(mac_from_int(FIRST_GATEWAY + number))
        site = generate_site(mac, devices=DEVICES_PER_GATEWAY - 1, seed=number)
        emulated.append((EmulatorSettings(mac=mac, clean_session=True), site))
    with Mosquitto(tmp_path) as mosquitto, PahoListener(mosquitto) as listener:
        address = BrokerAddress(host=mosquitto.address.host, port=mosquitto.address.port)
        run = partial(
            running_service,
            "",
            SimulatedClock(0, 1.0),
            emulated,
            homeassistant=HomeAssistantSettings(broker=address),
        )
        with BackgroundContext("service", run) as fleet, open_client(fleet.url, fleet.password) as rest:
            seen: set[str] = set()
            wanted = GATEWAYS * DEVICES_PER_GATEWAY

            def count_discovered() -> bool:
                while (message := listener.receive_now()) is not None:
                    if message.topic.endswith("/config"):
                        seen.add(message.topic)
                return len(seen) >= wanted

            eventually(count_discovered, "the first discovery", patience=300)
            eventually(lambda: read_queue(rest) < wanted / 10, "that only values are due", patience=300)
            seen.clear()
            before, started, cpu = read_lags(rest), time.monotonic(), time.process_time()
            listener.publish("homeassistant/status", b"online")
            eventually(count_discovered, "discovery after the birth", patience=300)
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
            lags = {bound: count - before[bound] for bound, count in read_lags(rest).items()}
            with capsys.disabled():
                sys.stdout.write(
                    f"\n{wanted} devices again after {seconds:.0f} s, {cpu:.1f} s of CPU with the emulators;"
                    f" batches of reports by lag: {lags}\n"
                )
            assert lags["+Inf"] > 0, "gateways reported meanwhile"


def read_lags(rest: httpx.Client) -> dict[str, float]:
    """Return the number of committed batches by the bound of their lag in seconds."""
    found = re.findall(
        r'^meshfleet_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', read_metrics(rest), re.MULTILINE
    )
    return {bound: float(count) for bound, count in found}


def read_queue(rest: httpx.Client) -> float:
    """Return the number of devices with messages that are due."""
    name = 'meshfleet_integration_queue{name="homeassistant"}'
    return float(next(line for line in read_metrics(rest).splitlines() if line.startswith(name)).split()[-1])


def read_metrics(rest: httpx.Client) -> str:
    """Return the metrics of the service."""
    return rest.get("/metrics").text
