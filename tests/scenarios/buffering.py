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

from meshfleet.gateway import ByClock, Clock, Faults, Fleet, Gateway, Mode, Settings, Site
from meshfleet.gateway.online.pace import wall_millis
from meshfleet.gateway.world.samples import CAPACITY, Samples
from meshfleet.link import Address, Delays, Options
from meshfleet.wire.codes import Kind
from meshfleet.wire.ids import Mac, device_id
from meshfleet.wire.times import write_millis
from tests.cli.outside import PATIENCE
from tests.eventually import eventually_async
from tests.gateway.world.trees import put
from tests.link.proxy import Proxy
from tests.scenarios.serving import PASSWORD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from meshfleet.gateway.world.samples import Sample
    from tests.scenarios.serving import Service
    from tests.service.mqtt.house import Credentials

SPEED = 200.0
"""A minute, from one measurement to the next, takes a third of a second."""
CALM = 0.05
"""So slow that next to nothing happens until gateways have told their versions."""

_GATEWAYS = {Mac("02005e0000a1"): Mode.RAW, Mac("02005e0000b1"): Mode.DECODED}
_PRODUCTS = ("0040", "0005", "0018", "0050")
"""An extender, and others; none with a button, which is pressed too rarely to wait for."""

_MOTION = "8810"

_LASTING = Options(delays=Delays(first=0.05, most=0.3), patient=True)


class Made(NamedTuple):
    """A sample as it must be stored."""

    time: str
    kind: str
    identifier: str
    seq: int


class _Watched(Samples):
    """The memory of a device, in which nothing appears unseen."""

    __slots__ = ("_saw",)

    def __init__(self, before: Samples, saw: Callable[[Sample], None]) -> None:
        super().__init__()
        for sample in before:
            super().keep(sample)
        self._saw = saw

    def keep(self, sample: Sample) -> None:
        assert len(self) < CAPACITY, "a device has no room, and gives samples up"
        super().keep(sample)
        self._saw(sample)


class Town:
    """Two gateways, one that reports raw and one decoded, with devices around them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._accounts: dict[Mac, Credentials] = {mac: service.claim(mac) for mac in _GATEWAYS}
        self._gateways: dict[Mac, Gateway] = {}
        self._clock = Clock(0, CALM)
        self._pace = ByClock(self._clock)
        self.made: dict[Mac, list[Made]] = defaultdict(list)
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
    async def life(self, faults: Faults = Faults()) -> AsyncIterator[None]:  # noqa: B008 # frozen
        """Let gateways live, with what their devices remember of the life before."""
        self._clock = Clock(0, CALM)
        self._pace = ByClock(self._clock)
        fleet = Fleet(self._pace, http=self._http, options=_LASTING)
        for number, (mac, mode) in enumerate(_GATEWAYS.items()):
            before = self._gateways.get(mac)
            settings = Settings(mac=mac, mode=mode, faults=faults)
            memory = None if before is None else before.memory()
            gateway = Gateway(settings, _site(mac, 10 * number), self._clock, memory=memory)
            self._gateways[mac] = gateway
            self._watch(gateway)
            fleet.add(gateway, self._address(mac))
        running = asyncio.create_task(fleet.run())
        try:
            async with asyncio.timeout(PATIENCE):
                await fleet.is_complete.wait()
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    # Time

    def hurry(self) -> None:
        """Let the world run."""
        self._clock.bend(self._pace.moment(), wall_millis(), SPEED)

    async def make(self, each: int) -> None:
        """Let all devices make so many more samples of all that they measure."""
        before = {device: len(made) for device, made in self.made.items()}
        wanted = {mac: each * len(measured) for mac, measured in self.measured.items()}

        def new(mac: Mac) -> int:
            return sum(made.kind == Kind.MEASUREMENT for made in self.made[mac][before.get(mac, 0) :])

        await self.until(lambda: all(new(mac) >= wanted[mac] for mac in wanted))

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds in the world."""

        def checked() -> bool:
            assert holds(), f"devices still keep {self.held}"
            return True

        await eventually_async(checked)

    # What is in there

    @property
    def held(self) -> dict[tuple[Mac, Kind, str], list[int]]:
        """The times of samples that devices still keep."""
        return {
            (mac, kind, identifier): [sample.millis for sample in samples]
            for mac, device in self._devices().items()
            for (kind, identifier), samples in (device.samples or {}).items()
            if len(samples)
        }

    @property
    def total(self) -> int:
        """How many samples were ever made."""
        return sum(map(len, self.made.values()))

    async def empty(self) -> set[tuple[Mac, str]]:
        """Wait until nothing is kept of what was made up to now; gives the events of which that is not known.

        A device tells what it kept when something new of the same series is acknowledged. An event that does
        not happen again has to wait.
        """
        began = wall_millis()
        before = {device: len(made) for device, made in self.made.items()}

        def old() -> set[tuple[Mac, Kind, str]]:
            return {series for series, times in self.held.items() if times[0] <= began}

        def happened(mac: Mac, identifier: str) -> bool:
            new = [each for each in self.made[mac][before[mac] :] if each.kind == Kind.EVENT]
            return sum(each.identifier == identifier for each in new) > 1

        await self.make(2)
        await self.until(
            lambda: all(kind is Kind.EVENT and not happened(mac, each) for mac, kind, each in old())
        )
        return {(mac, identifier) for mac, _, identifier in old()}

    @property
    def measured(self) -> dict[Mac, tuple[str, ...]]:
        """What each device measures."""
        return {mac: device.product.measured for mac, device in self._devices().items()}

    @property
    def noticed(self) -> dict[Mac, tuple[str, ...]]:
        """What each device tells before long: what it measures, and that it moves."""
        moving = {mac: bool(device.product.motion) for mac, device in self._devices().items()}
        return {mac: (*each, _MOTION) if moving[mac] else each for mac, each in self.measured.items()}

    def _devices(self) -> dict[Mac, Any]:
        return {mac: device for gateway in self._gateways.values() for mac, device in gateway.devices.items()}

    def _watch(self, gateway: Gateway) -> None:
        for mac, device in gateway.devices.items():
            series = [(Kind.MEASUREMENT, each) for each in device.product.measured]
            series += [(Kind.EVENT, each) for each in device.product.events]
            for kind, identifier in series:
                saw = self._writer(mac, kind, identifier)
                kept = device.samples_of(kind, identifier)
                device.samples[kind, identifier] = _Watched(kept, saw)  # type: ignore[index] # it has some now

    def _writer(self, mac: Mac, kind: Kind, identifier: str) -> Callable[[Sample], None]:
        made = self.made[mac]
        return lambda sample: made.append(Made(write_millis(sample.millis), kind, identifier, sample.seq))

    def _address(self, mac: Mac) -> Address:
        return replace(self.network.address, user=mac, password=self._accounts[mac].password)


def _site(gateway: Mac, number: int) -> Site:
    fixtures = [put(number + each, 1.5 + each / 2, code=code) for each, code in enumerate(_PRODUCTS)]
    return Site(gateway=gateway, seed=1, devices=tuple(fixtures))


class Reader:
    """Reads what the service has stored, in a thread: the world goes on meanwhile."""

    def __init__(self, service: Service) -> None:
        self._client = httpx.Client(base_url=service.url, timeout=PATIENCE)
        told = {"username": "admin", "password": PASSWORD}
        token = self._client.post("/api/v1/auth/login", json=told).json()["authToken"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Let the connection go."""
        self._client.close()

    async def versions(self) -> set[str]:
        """What gateways speak."""
        page = await self._ask("/api/v1/gateways")
        return {each["apiVersion"] for each in page["items"]}

    async def samples(self, device: Mac) -> list[Made]:
        """The measurements and events of a device, from all pages."""
        return [
            Made(each["time"], each["kind"], each["identifier"], each["seq"])
            for kind in ("measurement", "event")
            for each in await self._pages(f"/api/v1/devices/{device_id(device)}/samples", Kind=kind)
        ]

    async def holes(self, device: Mac) -> list[dict[str, Any]]:
        """Where the service misses something."""
        return await self._pages(f"/api/v1/devices/{device_id(device)}/holes")

    async def complete(self, device: Mac, identifier: str) -> str | None:
        """Up to when it misses nothing."""
        path = f"/api/v1/devices/{device_id(device)}/series"
        told: str | None = (await self._ask(path, Identifier=identifier))["completeUpTo"]
        return told

    async def _pages(self, path: str, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query["MaxResults"] = 250
        while True:
            page = await self._ask(path, **query)
            found += page["items"]
            if page["nextToken"] is None:
                return found
            query["NextToken"] = page["nextToken"]

    async def _ask(self, path: str, **query: Any) -> Any:
        answer = await asyncio.to_thread(self._client.get, path, params=query)
        assert answer.status_code in {200, 404}, answer.text
        return answer.json() if answer.status_code == 200 else {"items": [], "nextToken": None}
