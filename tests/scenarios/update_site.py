"""A site whose devices are to be updated: gateways, devices of three models behind them, and the truth."""

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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.scenarios.service_process import ServiceProcess

SPEED = 100.0
"""Heartbeats every 0.6 seconds; an image of this size takes a second or two."""

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
    """A package as a vendor would make it."""
    return build_package(_IMAGE, model_number=ModelNumber(model), version=Version.parse(version))


class UpdateSite:
    """The gateways, and what their devices really run."""

    def __init__(self, service: ServiceProcess, behind: Mapping[Mac, Mapping[str, int]]) -> None:
        """Put so many of each model behind each gateway."""
        self.counts = {model: sum(each.get(model, 0) for each in behind.values()) for model in MODELS}
        self._service = service
        self._accounts = {mac: service.claim(mac) for mac in behind}
        clock = SimulatedClock(0, SPEED)
        self._pace = RealTimePace(clock)
        self._gateways = {
            mac: GatewayEmulator(
                EmulatorSettings(mac=mac, faults=FAULTS[mac]), _site(mac, number, models), clock
            )
            for number, (mac, models) in enumerate(behind.items())
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let them live."""
        async with httpx.AsyncClient() as http:
            fleet = EmulatedFleet(self._pace, http=http, options=_RECONNECT_OPTIONS)
            for mac, gateway in self._gateways.items():
                place = self._service.mqtt["mqtt"]
                account = self._accounts[mac]
                address = BrokerAddress(host=place.host, port=place.port)
                fleet.add(gateway, replace(address, user=mac, password=account.password))
            running = asyncio.create_task(fleet.run())
            try:
                async with asyncio.timeout(TEST_TIMEOUT):
                    await fleet.all_connected.wait()
                yield
            finally:
                running.cancel()
                await asyncio.wait([running])

    def actual_versions(self, model: str) -> dict[str, str]:
        """What the devices of a model run in truth, by device id."""
        return {
            to_device_id(mac): str(device.firmware_version)
            for gateway in self._gateways.values()
            for mac, device in gateway.devices.items()
            if device.product.model == model
        }


def _site(gateway: Mac, number: int, behind: Mapping[str, int]) -> Site:
    """All near the gateway: whoever is updated by Nordic DFU must be."""
    models = [model for model, count in behind.items() for _ in range(count)]
    fixtures = [_fixture(100 * number + 2 * place, place, code) for place, code in enumerate(models)]
    return Site(gateway=gateway, seed=number + 1, devices=tuple(fixtures))


def _fixture(number: int, place: int, code: str) -> SiteDevice:
    product = PRODUCTS_BY_CODE[code]
    mac = Mac(f"c00000000{number:03x}")
    return SiteDevice(
        mac=mac,
        product=product,
        position=SitePosition(0, 1.0 + place / 10, 1.0),
        mode=product.default_mode,
        battery=90,
    )


class OperatorClient:
    """What an operator does over REST. In threads: the estate lives in the event loop."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self._service.call, method, path, body)

    async def upload(self, model: str, version: str) -> str:
        """Bring a firmware into the catalogue, and release it."""
        firmware = await asyncio.to_thread(
            self._service.upload, model, version, build_test_package(model, version)
        )
        await self.call("POST", f"/api/v1/firmware/{firmware}/release")
        return firmware

    async def list_device_ids(self, model: str, version: str | None = None) -> list[str]:
        """The devices of a model that are known and connected, of one version or of any."""
        wanted = f"Connected=true&ModelNumber={model}" + (f"&FirmwareVersion={version}" if version else "")
        page = await self.call("GET", f"/api/v1/devices?MaxResults=1000&{wanted}")
        return [each["id"] for each in page["items"]]

    async def wait_until_finished(self, job: str, *, within: float) -> Any:
        """A job when it is over."""

        async def over() -> Any:
            told = await self.call("GET", f"/api/v1/jobs/{job}")
            return told if told["finishedAt"] is not None else None

        return await eventually_async(over, f"that {job} is over", patience=within)

    async def executions(self, job: str) -> dict[str, Any]:
        """The executions of a job by device."""
        page = await self.call("GET", f"/api/v1/jobs/{job}/executions?MaxResults=1000")
        return {each["deviceId"]: each for each in page["items"]}
