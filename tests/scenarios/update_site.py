"""Site of emulated gateways whose devices are updated, with the versions that they really have."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
from msgspec.structs import replace

from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    RealTimePace,
    SimulatedClock,
    Site,
)
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE
from meshfleet.emulator.simulation.site import SiteDevice, SitePosition
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttOptions
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import Mac, ModelNumber, Version, to_device_id
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually_async
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.scenarios.service_process import ServiceProcess

SPEED = 100.0
"""Factor of simulated time: heartbeats every 0.6 seconds; an image of this size takes a second or two."""

HEALTHY, FAILING, SILENT, BROKEN = (Mac(f"02005e0000{each}1") for each in "abcd")
FAULTS = {
    HEALTHY: Faults(),
    FAILING: Faults(update_fail=0.4),
    SILENT: Faults(silent=0.3),
    BROKEN: Faults(update_fail=1.0),
}
BY_DOWNLOAD, BY_BROADCAST, BY_DFU = "0005", "0018", "000F"
MODELS = (BY_DOWNLOAD, BY_BROADCAST, BY_DFU)

_IMAGE = bytes(range(256)) * 64
_RECONNECT_OPTIONS = MqttOptions(
    backoff=ExponentialBackoff(initial=0.05, maximum=0.3), retry_first_connect=True
)


def build_test_package(model: str, version: str) -> bytes:
    """Build a package as a vendor would."""
    return build_package(_IMAGE, model_number=ModelNumber(model), version=Version.parse(version))


class UpdateSite:
    """Gateways, and the versions that their devices really run."""

    def __init__(self, service: ServiceProcess, devices_by_gateway: Mapping[Mac, Mapping[str, int]]) -> None:
        """Create gateways with these numbers of devices of each model."""
        self.counts = {
            model: sum(counts.get(model, 0) for counts in devices_by_gateway.values()) for model in MODELS
        }
        self._service = service
        self._accounts = {mac: service.claim(mac) for mac in devices_by_gateway}
        clock = SimulatedClock(0, SPEED)
        self._pace = RealTimePace(clock)
        self._gateways = {
            mac: GatewayEmulator(
                EmulatorSettings(mac=mac, faults=FAULTS[mac]), _build_site(mac, number, models), clock
            )
            for number, (mac, models) in enumerate(devices_by_gateway.items())
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the gateways while a block lasts."""
        async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES) as http:
            fleet = EmulatedFleet(self._pace, http=http, options=_RECONNECT_OPTIONS)
            for mac, gateway in self._gateways.items():
                listener = self._service.mqtt["mqtt"]
                account = self._accounts[mac]
                address = BrokerAddress(host=listener.host, port=listener.port)
                fleet.add(gateway, replace(address, user=mac, password=account.password))
            fleet_task = asyncio.create_task(fleet.run())
            try:
                async with asyncio.timeout(TEST_TIMEOUT):
                    await fleet.all_connected.wait()
                yield
            finally:
                fleet_task.cancel()
                await asyncio.wait([fleet_task])

    def actual_versions(self, model: str) -> dict[str, str]:
        """Return the versions that the devices of a model really run, by device id."""
        return {
            to_device_id(mac): str(device.firmware_version)
            for gateway in self._gateways.values()
            for mac, device in gateway.devices.items()
            if device.product.model == model
        }


def _build_site(gateway: Mac, number: int, counts: Mapping[str, int]) -> Site:
    """Build a site with all devices near the gateway, as Nordic DFU requires."""
    models = [model for model, count in counts.items() for _ in range(count)]
    devices = [_build_device(100 * number + 2 * index, index, code) for index, code in enumerate(models)]
    return Site(gateway=gateway, seed=number + 1, devices=tuple(devices))


def _build_device(number: int, index: int, code: str) -> SiteDevice:
    product = PRODUCTS_BY_CODE[code]
    mac = Mac(f"c00000000{number:03x}")
    return SiteDevice(
        mac=mac,
        product=product,
        position=SitePosition(0, 1.0 + index / 10, 1.0),
        mode=product.default_mode,
        battery=90,
    )


class OperatorClient:
    """Client of an operator over REST. It works in threads, because the site runs in the event loop."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self._service.call, method, path, body)

    async def upload(self, model: str, version: str) -> str:
        """Upload firmware and release it. Return its id."""
        firmware = await asyncio.to_thread(
            self._service.upload, model, version, build_test_package(model, version)
        )
        await self.call("POST", f"/api/v1/firmware/{firmware}/release")
        return firmware

    async def list_device_ids(self, model: str, version: str | None = None) -> list[str]:
        """Return the ids of the connected devices of a model, of one version or of any."""
        filters = f"Connected=true&ModelNumber={model}" + (f"&FirmwareVersion={version}" if version else "")
        page = await self.call("GET", f"/api/v1/devices?MaxResults=1000&{filters}")
        return [each["id"] for each in page["items"]]

    async def wait_until_finished(self, job: str, *, within: float) -> Any:
        """Wait until a job is finished, and return it."""

        async def get_finished() -> Any:
            record = await self.call("GET", f"/api/v1/jobs/{job}")
            return record if record["finishedAt"] is not None else None

        return await eventually_async(get_finished, f"the end of {job}", patience=within)

    async def executions(self, job: str) -> dict[str, Any]:
        """Return the executions of a job by device."""
        page = await self.call("GET", f"/api/v1/jobs/{job}/executions?MaxResults=1000")
        return {each["deviceId"]: each for each in page["items"]}
