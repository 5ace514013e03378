"""Emulated gateways whose devices buffer samples until they are acknowledged, with a record of all samples.

Every sample is recorded at the moment when a device puts it into its buffer, before the radio, a gateway or
the network can lose it.
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
from tests.cli.programs import TEST_TIMEOUT, open_client
from tests.emulator.simulation.sites import place_device
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.scenarios.service_process import PASSWORD
from tests.servers import NO_TRUSTED_AUTHORITIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from meshfleet.emulator.simulation.sample_buffer import DeviceSample
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.embedded_broker.mqtt_accounts import Credentials

SPEED = 200.0
"""Factor of simulated time: a minute, from one measurement to the next, takes a third of a second."""
SLOW_SPEED = 0.05
"""So slow that almost nothing happens until the gateways have reported their versions."""

_GATEWAYS = {Mac("02005e0000a1"): ReportMode.RAW, Mac("02005e0000b1"): ReportMode.DECODED}
_PRODUCTS = ("0040", "0005", "0018", "0050")
"""An extender, and others; none with a button, which is pressed too rarely to wait for."""

_MOTION = "8810"

_RECONNECT_OPTIONS = MqttOptions(
    backoff=ExponentialBackoff(initial=0.05, maximum=0.3), retry_first_connect=True
)


class BufferedSample(NamedTuple):
    """Sample as the service must store it."""

    time: str
    kind: str
    identifier: str
    seq: int


class _RecordingSamples(SampleBuffer):
    """Sample buffer of a device that reports every added sample."""

    __slots__ = ("_on_sample",)

    def __init__(self, buffered: SampleBuffer, on_sample: Callable[[DeviceSample], None]) -> None:
        super().__init__()
        for sample in buffered:
            super().add(sample)
        self._on_sample = on_sample

    def add(self, sample: DeviceSample) -> None:
        assert len(self) < SAMPLE_CAPACITY, "the buffer of a device is full, and samples would be lost"
        super().add(sample)
        self._on_sample(sample)


class BufferingSite:
    """Two gateways with devices, one reporting raw and one decoded."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._accounts: dict[Mac, Credentials] = {mac: service.claim(mac) for mac in _GATEWAYS}
        self._gateways: dict[Mac, GatewayEmulator] = {}
        self._clock = SimulatedClock(0, SLOW_SPEED)
        self._pace = RealTimePace(self._clock)
        self.recorded: dict[Mac, list[BufferedSample]] = defaultdict(list)
        """All samples that devices have taken, by device."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.network = await stack.enter_async_context(Proxy(self._service.mqtt["mqtt"]))
            self._http = await stack.enter_async_context(httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *failed: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def running(self, faults: Faults = Faults()) -> AsyncIterator[None]:  # noqa: B008 # immutable
        """Run the gateways. Their devices keep the memory of the previous run."""
        self._clock = SimulatedClock(0, SLOW_SPEED)
        self._pace = RealTimePace(self._clock)
        fleet = EmulatedFleet(self._pace, http=self._http, options=_RECONNECT_OPTIONS)
        for number, (mac, mode) in enumerate(_GATEWAYS.items()):
            previous = self._gateways.get(mac)
            settings = EmulatorSettings(mac=mac, mode=mode, faults=faults)
            memory = None if previous is None else previous.save_memory()
            gateway = GatewayEmulator(settings, _build_site(mac, 10 * number), self._clock, memory=memory)
            self._gateways[mac] = gateway
            self._record_samples(gateway)
            fleet.add(gateway, self._address(mac))
        fleet_task = asyncio.create_task(fleet.run())
        try:
            async with asyncio.timeout(TEST_TIMEOUT):
                await fleet.all_connected.wait()
            yield
        finally:
            fleet_task.cancel()
            await asyncio.wait([fleet_task])

    # Time

    def speed_up(self) -> None:
        """Run the simulation at full speed."""
        self._clock.rebase(self._pace.now(), read_wall_clock_ms(), SPEED)

    async def make_samples(self, count: int) -> None:
        """Wait until every device has taken this number of new samples of everything that it measures."""
        before = {device: len(samples) for device, samples in self.recorded.items()}
        required = {mac: count * len(identifiers) for mac, identifiers in self.measured.items()}

        def count_new(mac: Mac) -> int:
            return sum(sample.kind == Kind.MEASUREMENT for sample in self.recorded[mac][before.get(mac, 0) :])

        await self.wait_until(lambda: all(count_new(mac) >= required[mac] for mac in required))

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true."""

        def check() -> bool:
            assert condition(), f"devices still buffer {self.buffered}"
            return True

        await eventually_async(check)

    # State of the devices

    @property
    def buffered(self) -> dict[tuple[Mac, Kind, str], list[int]]:
        """Times of the samples that devices still buffer, by device, kind and identifier."""
        return {
            (mac, kind, identifier): [sample.millis for sample in samples]
            for mac, device in self._devices().items()
            for (kind, identifier), samples in (device.sample_buffers or {}).items()
            if len(samples)
        }

    @property
    def total(self) -> int:
        """Number of all samples that devices have taken."""
        return sum(map(len, self.recorded.values()))

    async def drain(self) -> set[tuple[Mac, str]]:
        """Wait until all samples taken so far are acknowledged. Return the events for which that is unknown.

        A device sends its buffered samples when a new one of the same series is acknowledged. An event that
        does not occur again stays in the buffer.
        """
        started = read_wall_clock_ms()
        before = {device: len(samples) for device, samples in self.recorded.items()}

        def list_old() -> set[tuple[Mac, Kind, str]]:
            return {series for series, times in self.buffered.items() if times[0] <= started}

        def occurred_again(mac: Mac, identifier: str) -> bool:
            new_events = [each for each in self.recorded[mac][before[mac] :] if each.kind == Kind.EVENT]
            return sum(each.identifier == identifier for each in new_events) > 1

        await self.make_samples(2)
        await self.wait_until(
            lambda: all(
                kind is Kind.EVENT and not occurred_again(mac, each) for mac, kind, each in list_old()
            )
        )
        return {(mac, identifier) for mac, _, identifier in list_old()}

    @property
    def measured(self) -> dict[Mac, tuple[str, ...]]:
        """Identifiers that each device measures."""
        return {mac: device.product.measurements for mac, device in self._devices().items()}

    @property
    def reported(self) -> dict[Mac, tuple[str, ...]]:
        """Identifiers that each device reports before long: its measurements, and motion."""
        has_motion = {mac: bool(device.product.motion_code) for mac, device in self._devices().items()}
        return {mac: (*each, _MOTION) if has_motion[mac] else each for mac, each in self.measured.items()}

    def _devices(self) -> dict[Mac, Any]:
        return {mac: device for gateway in self._gateways.values() for mac, device in gateway.devices.items()}

    def _record_samples(self, gateway: GatewayEmulator) -> None:
        for mac, device in gateway.devices.items():
            series = [(Kind.MEASUREMENT, each) for each in device.product.measurements]
            series += [(Kind.EVENT, each) for each in device.product.events]
            for kind, identifier in series:
                on_sample = self._sample_recorder(mac, kind, identifier)
                buffered = device.sample_buffer(kind, identifier)
                device.sample_buffers[kind, identifier] = _RecordingSamples(buffered, on_sample)  # type: ignore[index] # created by sample_buffer

    def _sample_recorder(self, mac: Mac, kind: Kind, identifier: str) -> Callable[[DeviceSample], None]:
        recorded = self.recorded[mac]
        return lambda sample: recorded.append(
            BufferedSample(format_millis(sample.millis), kind, identifier, sample.seq)
        )

    def _address(self, mac: Mac) -> BrokerAddress:
        return replace(self.network.address, user=mac, password=self._accounts[mac].password)


def _build_site(gateway: Mac, number: int) -> Site:
    fixtures = [
        place_device(number + index, 1.5 + index / 2, code=code) for index, code in enumerate(_PRODUCTS)
    ]
    return Site(gateway=gateway, seed=1, devices=tuple(fixtures))


class SampleReader:
    """Client that reads stored samples in a thread, so that the simulation continues."""

    def __init__(self, service: ServiceProcess) -> None:
        self._client = open_client(service.url, PASSWORD)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def versions(self) -> set[str]:
        """Return the API versions of all gateways."""
        page = await self._get("/api/v1/gateways")
        return {each["apiVersion"] for each in page["items"]}

    async def samples(self, device: Mac) -> list[BufferedSample]:
        """Return all measurements and events of a device."""
        return [
            BufferedSample(each["time"], each["kind"], each["identifier"], each["seq"])
            for kind in ("measurement", "event")
            for each in await self._load_pages(f"/api/v1/devices/{to_device_id(device)}/samples", Kind=kind)
        ]

    async def gaps(self, device: Mac) -> list[dict[str, Any]]:
        """Return the gaps in the samples of a device."""
        return await self._load_pages(f"/api/v1/devices/{to_device_id(device)}/holes")

    async def complete_up_to(self, device: Mac, identifier: str) -> str | None:
        """Return the time up to which the series of a device is complete; None if unknown."""
        path = f"/api/v1/devices/{to_device_id(device)}/series"
        complete_up_to: str | None = (await self._get(path, Identifier=identifier))["completeUpTo"]
        return complete_up_to

    async def _load_pages(self, path: str, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        query["MaxResults"] = 250
        while True:
            page = await self._get(path, **query)
            items += page["items"]
            if page["nextToken"] is None:
                return items
            query["NextToken"] = page["nextToken"]

    async def _get(self, path: str, **query: Any) -> Any:
        response = await asyncio.to_thread(self._client.get, path, params=query)
        assert response.status_code in {200, 404}, response.text
        return response.json() if response.status_code == 200 else {"items": [], "nextToken": None}
