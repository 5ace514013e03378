"""Emulated gateways whose devices keep samples until they are acknowledged, and the truth about these.

Every sample that a device makes is written down at the moment when it puts it into its own memory, before any
radio, gateway or network can lose it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import httpx
from msgspec.structs import replace

from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    RealTimePace,
    ReportMode,
    SimulatedClock,
    Site,
)
from meshfleet.emulator.runtime.simulation_pace import read_wall_clock_ms
from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY, SampleBuffer
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttOptions
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis
from tests.cli.programs import TEST_TIMEOUT
from tests.emulator.simulation.sites import place_device
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from meshfleet.emulator.simulation.sample_buffer import DeviceSample
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.embedded_broker.mqtt_accounts import Credentials

SPEED = 200.0
"""A minute, from one measurement to the next, takes a third of a second."""
SLOW_SPEED = 0.05
"""So slow that next to nothing happens until gateways have told their versions."""

_GATEWAYS = {Mac("02005e0000a1"): ReportMode.RAW, Mac("02005e0000b1"): ReportMode.DECODED}
_PRODUCTS = ("0040", "0005", "0018", "0050")
"""An extender, and others; none with a button, which is pressed too rarely to wait for."""

_MOTION = "8810"

_RECONNECT_OPTIONS = MqttOptions(
    backoff=ExponentialBackoff(initial=0.05, maximum=0.3), retry_first_connect=True
)


class BufferedSample(NamedTuple):
    """A sample as it must be stored."""

    time: str
    kind: str
    identifier: str
    seq: int


class _RecordingSamples(SampleBuffer):
    """The memory of a device, in which nothing appears unseen."""

    __slots__ = ("_on_sample",)

    def __init__(self, before: SampleBuffer, on_sample: Callable[[DeviceSample], None]) -> None:
        super().__init__()
        for sample in before:
            super().add(sample)
        self._on_sample = on_sample

    def add(self, sample: DeviceSample) -> None:
        assert len(self) < SAMPLE_CAPACITY, "a device has no room, and gives samples up"
        super().add(sample)
        self._on_sample(sample)


class BufferingSite:
    """Two gateways, one that reports raw and one decoded, with devices around them."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._accounts: dict[Mac, Credentials] = {mac: service.claim(mac) for mac in _GATEWAYS}
        self._gateways: dict[Mac, GatewayEmulator] = {}
        self._clock = SimulatedClock(0, SLOW_SPEED)
        self._pace = RealTimePace(self._clock)
        self.made: dict[Mac, list[BufferedSample]] = defaultdict(list)
        """The truth, by device."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.network = await stack.enter_async_context(Proxy(self._service.mqtt["mqtt"]))
            self._http = await stack.enter_async_context(httpx.AsyncClient())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *failed: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def running(self, faults: Faults = Faults()) -> AsyncIterator[None]:  # noqa: B008 # frozen
        """Let gateways live, with what their devices remember of the life before."""
        self._clock = SimulatedClock(0, SLOW_SPEED)
        self._pace = RealTimePace(self._clock)
        fleet = EmulatedFleet(self._pace, http=self._http, options=_RECONNECT_OPTIONS)
        for number, (mac, mode) in enumerate(_GATEWAYS.items()):
            before = self._gateways.get(mac)
            settings = EmulatorSettings(mac=mac, mode=mode, faults=faults)
            memory = None if before is None else before.save_memory()
            gateway = GatewayEmulator(settings, _site(mac, 10 * number), self._clock, memory=memory)
            self._gateways[mac] = gateway
            self._record_samples(gateway)
            fleet.add(gateway, self._address(mac))
        running = asyncio.create_task(fleet.run())
        try:
            async with asyncio.timeout(TEST_TIMEOUT):
                await fleet.all_connected.wait()
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    # Time

    def speed_up(self) -> None:
        """Let the world run."""
        self._clock.rebase(self._pace.now(), read_wall_clock_ms(), SPEED)

    async def make_samples(self, each: int) -> None:
        """Let all devices make so many more samples of all that they measure."""
        before = {device: len(made) for device, made in self.made.items()}
        wanted = {mac: each * len(measured) for mac, measured in self.measured.items()}

        def new(mac: Mac) -> int:
            return sum(made.kind == Kind.MEASUREMENT for made in self.made[mac][before.get(mac, 0) :])

        await self.wait_until(lambda: all(new(mac) >= wanted[mac] for mac in wanted))

    async def wait_until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds in the world."""

        def checked() -> bool:
            assert holds(), f"devices still keep {self.buffered}"
            return True

        await eventually_async(checked)

    # What is in there

    @property
    def buffered(self) -> dict[tuple[Mac, Kind, str], list[int]]:
        """The times of samples that devices still keep."""
        return {
            (mac, kind, identifier): [sample.millis for sample in samples]
            for mac, device in self._devices().items()
            for (kind, identifier), samples in (device.sample_buffers or {}).items()
            if len(samples)
        }

    @property
    def total(self) -> int:
        """How many samples were ever made."""
        return sum(map(len, self.made.values()))

    async def drain(self) -> set[tuple[Mac, str]]:
        """Wait until nothing is kept of what was made up to now; gives the events of which that is not known.

        A device tells what it kept when something new of the same series is acknowledged. An event that does
        not happen again has to wait.
        """
        began = read_wall_clock_ms()
        before = {device: len(made) for device, made in self.made.items()}

        def old() -> set[tuple[Mac, Kind, str]]:
            return {series for series, times in self.buffered.items() if times[0] <= began}

        def happened(mac: Mac, identifier: str) -> bool:
            new = [each for each in self.made[mac][before[mac] :] if each.kind == Kind.EVENT]
            return sum(each.identifier == identifier for each in new) > 1

        await self.make_samples(2)
        await self.wait_until(
            lambda: all(kind is Kind.EVENT and not happened(mac, each) for mac, kind, each in old())
        )
        return {(mac, identifier) for mac, _, identifier in old()}

    @property
    def measured(self) -> dict[Mac, tuple[str, ...]]:
        """What each device measures."""
        return {mac: device.product.measurements for mac, device in self._devices().items()}

    @property
    def reported(self) -> dict[Mac, tuple[str, ...]]:
        """What each device tells before long: what it measures, and that it moves."""
        moving = {mac: bool(device.product.motion_code) for mac, device in self._devices().items()}
        return {mac: (*each, _MOTION) if moving[mac] else each for mac, each in self.measured.items()}

    def _devices(self) -> dict[Mac, Any]:
        return {mac: device for gateway in self._gateways.values() for mac, device in gateway.devices.items()}

    def _record_samples(self, gateway: GatewayEmulator) -> None:
        for mac, device in gateway.devices.items():
            series = [(Kind.MEASUREMENT, each) for each in device.product.measurements]
            series += [(Kind.EVENT, each) for each in device.product.events]
            for kind, identifier in series:
                saw = self._sample_recorder(mac, kind, identifier)
                kept = device.sample_buffer(kind, identifier)
                device.sample_buffers[kind, identifier] = _RecordingSamples(kept, saw)  # type: ignore[index] # it has some now

    def _sample_recorder(self, mac: Mac, kind: Kind, identifier: str) -> Callable[[DeviceSample], None]:
        made = self.made[mac]
        return lambda sample: made.append(
            BufferedSample(format_millis(sample.millis), kind, identifier, sample.seq)
        )

    def _address(self, mac: Mac) -> BrokerAddress:
        return replace(self.network.address, user=mac, password=self._accounts[mac].password)


def _site(gateway: Mac, number: int) -> Site:
    fixtures = [place_device(number + each, 1.5 + each / 2, code=code) for each, code in enumerate(_PRODUCTS)]
    return Site(gateway=gateway, seed=1, devices=tuple(fixtures))


class SampleReader:
    """Reads what the service has stored, in a thread: the world goes on meanwhile."""

    def __init__(self, service: ServiceProcess) -> None:
        self._client = httpx.Client(base_url=service.url, timeout=TEST_TIMEOUT)
        told = {"username": "admin", "password": PASSWORD}
        token = self._client.post("/api/v1/auth/login", json=told).json()["authToken"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Let the connection go."""
        self._client.close()

    async def versions(self) -> set[str]:
        """What gateways speak."""
        page = await self._get("/api/v1/gateways")
        return {each["apiVersion"] for each in page["items"]}

    async def samples(self, device: Mac) -> list[BufferedSample]:
        """The measurements and events of a device, from all pages."""
        return [
            BufferedSample(each["time"], each["kind"], each["identifier"], each["seq"])
            for kind in ("measurement", "event")
            for each in await self._pages(f"/api/v1/devices/{to_device_id(device)}/samples", Kind=kind)
        ]

    async def gaps(self, device: Mac) -> list[dict[str, Any]]:
        """Where the service misses something."""
        return await self._pages(f"/api/v1/devices/{to_device_id(device)}/holes")

    async def complete_up_to(self, device: Mac, identifier: str) -> str | None:
        """Up to when it misses nothing."""
        path = f"/api/v1/devices/{to_device_id(device)}/series"
        told: str | None = (await self._get(path, Identifier=identifier))["completeUpTo"]
        return told

    async def _pages(self, path: str, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query["MaxResults"] = 250
        while True:
            page = await self._get(path, **query)
            found += page["items"]
            if page["nextToken"] is None:
                return found
            query["NextToken"] = page["nextToken"]

    async def _get(self, path: str, **query: Any) -> Any:
        answer = await asyncio.to_thread(self._client.get, path, params=query)
        assert answer.status_code in {200, 404}, answer.text
        return answer.json() if answer.status_code == 200 else {"items": [], "nextToken": None}
