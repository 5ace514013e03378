"""Devices and gateways as live events: whoever changes one says so here, and it is read when its turn comes.

However often a device changes, it is read once and told as it is then.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError, NotFound
from meshfleet.service.devices import listing
from meshfleet.service.devices.model import Filter, Order
from meshfleet.service.gateways import store as gateways
from meshfleet.service.live.event import NOWHERE
from meshfleet.wire.ids import Mac, device_id, mac_number, number_mac
from meshfleet.wire.rest.live import ForgottenDevice, LiveGateway, ReleasedGateway

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import Traffic
    from meshfleet.service.live.hub import Hub
    from meshfleet.wire.rest import Gateway

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 250
"""Devices that are read together."""

_PAUSE: Final = 0.05
"""Seconds between two of these, so that telling states never takes the time that reports need."""

_RETRY: Final = 1.0
"""Seconds until a database that failed is asked again."""

_WAITING: Final = 50_000
"""Devices that may wait to be told."""

_REMEMBERED: Final = 50_000
"""Devices of which we know with which gateway they were told."""

_RANKS: Final = ("renamed", None, "claimed", "released")
"""Causes, the last one matters most."""

_encode = msgspec.json.Encoder().encode


class GatewayNews(NamedTuple):
    """What happened to a gateway."""

    cause: str | None
    """One word, such as `claimed`; None: it came or went, which shows when it is read."""
    devices: int = 0
    """How many devices changed with it; no event tells of each of these."""

    def joined(self, later: GatewayNews) -> GatewayNews:
        """Both as one: the devices of both, and the cause that matters more, or else is later."""
        cause = max((later.cause, self.cause), key=_RANKS.index)
        return GatewayNews(cause, self.devices + later.devices)


class _Told(NamedTuple):
    number: int
    gateway: int
    data: msgspec.Raw


class Devices:
    """Tells states. Lives in one event loop, as the hub does."""

    def __init__(self, hub: Hub, database: Database, traffic: Traffic, now: Now) -> None:
        self._hub = hub
        self._database = database
        self._traffic = traffic
        self._now = now
        self._interest = hub.interest["device"]
        self._urgent: dict[int, None] = {}
        self._routine: dict[int, None] = {}
        """In the order in which they came."""
        self._gone: set[int] = set()
        self._gateways: dict[int, GatewayNews] = {}
        self._behind: dict[int, int] = {}
        """With which gateway a device was told last, while somebody listens to gateways."""
        self._news = asyncio.Event()

    def touch(self, numbers: Iterable[int]) -> None:
        """These devices are not as they were; somebody may look at them now."""
        self._add(self._urgent, numbers)

    def touch_routinely(self, numbers: Iterable[int]) -> None:
        """These devices reported: there will be more of them in a moment, so they can wait."""
        self._add(self._routine, numbers)

    def touch_forgotten(self, number: int) -> None:
        """This device is not in the registry any more."""
        if self._interest:
            self._gone.add(number)
            self.touch([number])

    def touch_gateways(self, news: Mapping[int, GatewayNews]) -> None:
        """These gateways are not as they were, by their numbers. Several news of one are told as one."""
        if self._hub.interest["gateway"]:
            for number, later in news.items():
                earlier = self._gateways.get(number)
                self._gateways[number] = later if earlier is None else earlier.joined(later)
            self._news.set()

    def devices_changed(self, devices: Iterable[int]) -> None:
        """These devices came or went, each by itself."""
        self.touch(devices)

    def gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
        """This gateway came or went, and these devices with it: each is told only if somebody named it."""
        self.touch_gateways({gateway: GatewayNews(None, len(devices))})
        named = self._interest.devices
        self.touch([each for each in devices if each in named] if named else ())

    async def run(self) -> None:
        """Tell what is touched, until cancelled."""
        while True:
            await self._news.wait()
            try:
                await self._tell_gateways()
                await self._tell_devices()
            except (FleetError, DBAPIError) as exc:
                _log.warning("states cannot be told: %s", type(exc).__name__)
                self._hub.publish_loss("device", "the database does not answer")
                await asyncio.sleep(_RETRY)
            else:
                await asyncio.sleep(_PAUSE)
            if not (self._urgent or self._routine or self._gateways):
                self._news.clear()

    def _add(self, waiting: dict[int, None], numbers: Iterable[int]) -> None:
        interest = self._interest
        if not interest:
            return
        if interest.is_all or interest.gateways:
            waiting.update(dict.fromkeys(numbers))
        else:
            waiting.update((number, None) for number in numbers if number in interest.devices)
        if len(waiting) > _WAITING:
            waiting.clear()
            self._hub.publish_loss("device", "more devices change than can be told")
        if waiting:
            self._news.set()

    async def _tell_gateways(self) -> None:
        news, self._gateways = self._gateways, {}
        if not news:
            return
        try:
            read = await self._database.read(_read_gateways, list(news))
        except BaseException:
            later, self._gateways = self._gateways, news
            self.touch_gateways(later)  # behind what is still to be told
            raise
        for number, found in read:
            if found is not None:
                self._hub.publish("gateway", self._with_news(found, number, news[number]), **_both(number))
            elif news[number].cause == "released":
                mac = number_mac(number)
                released = ReleasedGateway(mac=mac, device_id=device_id(mac))
                self._hub.publish("gateway", released, **_both(number))

    def _with_news(self, found: Gateway, number: int, news: GatewayNews) -> LiveGateway:
        """What is stored of a gateway, with what only we know."""
        stored = msgspec.structs.asdict(found)
        stored["reports_per_minute"] = self._traffic.rate(number)
        # One that was released and is here was claimed again.
        known = "claimed" if news.cause == "released" else news.cause
        cause = known or ("connected" if found.connected else "disconnected")
        return LiveGateway(**stored, cause=cause, devices=news.devices)

    async def _tell_devices(self) -> None:
        waiting = self._urgent or self._routine
        numbers = list(islice(waiting, _AT_ONCE))
        if not numbers:
            return
        for number in numbers:
            del waiting[number]
            self._routine.pop(number, None)
        found = await self._database.read(_read_devices, numbers)
        for number, gateway, data in found:
            former = self._moved(number, gateway)
            if self._interest.includes(number, gateway) or (
                former is not None and self._interest.includes(number, former)
            ):
                self._hub.publish("device", data, device=number, gateway=gateway, former=former)
        self._tell_forgotten(set(numbers), {each.number for each in found})

    def _moved(self, number: int, gateway: int) -> int | None:
        """With which other gateway a device was told before: who listens to that one is to know, too."""
        if not self._interest.gateways:
            self._behind.clear()
            return None
        former = self._behind.pop(number, gateway)
        self._behind[number] = gateway
        if len(self._behind) > _REMEMBERED:
            del self._behind[next(iter(self._behind))]
        return None if former == gateway else former

    def _tell_forgotten(self, asked: set[int], found: set[int]) -> None:
        gone = self._gone & asked
        self._gone -= asked
        for number in gone - found:
            forgotten = ForgottenDevice(id=device_id(number_mac(number)))
            self._hub.publish("device", forgotten, device=number)


def _read_devices(connection: Connection, numbers: list[int]) -> list[_Told]:
    """The same items as in the list of devices; spelt here, in a thread."""
    chosen = Filter(ids=tuple(map(number_mac, numbers)))
    found, _ = listing.page(connection, chosen, Order(), after=None, limit=len(numbers), live=True)
    return [
        _Told(
            mac_number(Mac(each.id.removeprefix("bmac-"))),
            NOWHERE if not each.live or each.live.gateway is None else mac_number(Mac(each.live.gateway)),
            msgspec.Raw(_encode(each)),
        )
        for each in found
    ]


def _read_gateways(connection: Connection, numbers: list[int]) -> list[tuple[int, Gateway | None]]:
    return [(number, _read_gateway(connection, number)) for number in numbers]


def _read_gateway(connection: Connection, number: int) -> Gateway | None:
    try:
        return gateways.show(connection, number_mac(number))
    except NotFound:
        return None


def _both(number: int) -> dict[str, int]:
    """A gateway is a device too, behind itself."""
    return {"device": number, "gateway": number}
