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
from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int, to_device_id
from meshfleet.rest.live import ForgottenDevice, LiveGateway, ReleasedGateway
from meshfleet.service.devices import listing
from meshfleet.service.devices.model import DeviceFilter, SortOrder
from meshfleet.service.gateways import store as gateways
from meshfleet.service.live.event import NO_GATEWAY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest import Gateway
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import GatewayTraffic
    from meshfleet.service.live.hub import EventHub

_log = logging.getLogger(__name__)

_BATCH_SIZE: Final = 250
"""Devices that are read together."""

_BATCH_PAUSE_SECONDS: Final = 0.05
"""Seconds between two of these, so that telling states never takes the time that reports need."""

_RETRY_SECONDS: Final = 1.0
"""Seconds until a database that failed is asked again."""

_MAX_PENDING: Final = 50_000
"""Devices that may wait to be told."""

_MAX_PUBLISHED_GATEWAYS: Final = 50_000
"""Devices of which we know with which gateway they were told."""

_CAUSE_RANKS: Final = ("renamed", None, "claimed", "released")
"""Causes, the last one matters most."""

_encode = msgspec.json.Encoder().encode


class GatewayChange(NamedTuple):
    """What happened to a gateway."""

    cause: str | None
    """One word, such as `claimed`; None: it came or went, which shows when it is read."""
    devices: int = 0
    """How many devices changed with it; no event tells of each of these."""

    def merge(self, later: GatewayChange) -> GatewayChange:
        """Both as one: the devices of both, and the cause that matters more, or else is later."""
        cause = max((later.cause, self.cause), key=_CAUSE_RANKS.index)
        return GatewayChange(cause, self.devices + later.devices)


class _EncodedDevice(NamedTuple):
    number: int
    gateway: int
    data: msgspec.Raw


class DeviceEvents:
    """Tells states. Lives in one event loop, as the hub does."""

    def __init__(self, hub: EventHub, database: Database, traffic: GatewayTraffic, now: Now) -> None:
        self._hub = hub
        self._database = database
        self._traffic = traffic
        self._now = now
        self._interest = hub.interest["device"]
        self._urgent: dict[int, None] = {}
        self._routine: dict[int, None] = {}
        """In the order in which they came."""
        self._forgotten: set[int] = set()
        self._gateway_changes: dict[int, GatewayChange] = {}
        self._published_gateway: dict[int, int] = {}
        """With which gateway a device was told last, while somebody listens to gateways."""
        self._wakeup = asyncio.Event()

    def mark_changed(self, numbers: Iterable[int]) -> None:
        """These devices are not as they were; somebody may look at them now."""
        self._add(self._urgent, numbers)

    def mark_reported(self, numbers: Iterable[int]) -> None:
        """These devices reported: there will be more of them in a moment, so they can wait."""
        self._add(self._routine, numbers)

    def mark_forgotten(self, number: int) -> None:
        """This device is not in the registry any more."""
        if self._interest:
            self._forgotten.add(number)
            self.mark_changed([number])

    def mark_gateways_changed(self, changes: Mapping[int, GatewayChange]) -> None:
        """These gateways are not as they were, by their numbers. Several news of one are told as one."""
        if self._hub.interest["gateway"]:
            for number, later in changes.items():
                earlier = self._gateway_changes.get(number)
                self._gateway_changes[number] = later if earlier is None else earlier.merge(later)
            self._wakeup.set()

    def devices_changed(self, devices: Iterable[int]) -> None:
        """These devices came or went, each by itself."""
        self.mark_changed(devices)

    def gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
        """This gateway came or went, and these devices with it: each is told only if somebody named it."""
        self.mark_gateways_changed({gateway: GatewayChange(None, len(devices))})
        named = self._interest.devices
        self.mark_changed([each for each in devices if each in named] if named else ())

    async def run(self) -> None:
        """Tell what is touched, until cancelled."""
        while True:
            await self._wakeup.wait()
            try:
                await self._publish_gateways()
                await self._publish_devices()
            except (FleetError, DBAPIError) as exc:
                _log.warning("states cannot be told: %s", type(exc).__name__)
                self._hub.publish_loss("device", "the database does not answer")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                await asyncio.sleep(_BATCH_PAUSE_SECONDS)
            if not (self._urgent or self._routine or self._gateway_changes):
                self._wakeup.clear()

    def _add(self, waiting: dict[int, None], numbers: Iterable[int]) -> None:
        interest = self._interest
        if not interest:
            return
        if interest.includes_all or interest.gateways:
            waiting.update(dict.fromkeys(numbers))
        else:
            waiting.update((number, None) for number in numbers if number in interest.devices)
        if len(waiting) > _MAX_PENDING:
            waiting.clear()
            self._hub.publish_loss("device", "more devices change than can be told")
        if waiting:
            self._wakeup.set()

    async def _publish_gateways(self) -> None:
        news, self._gateway_changes = self._gateway_changes, {}
        if not news:
            return
        try:
            read = await self._database.read(_load_gateways, list(news))
        except BaseException:
            later, self._gateway_changes = self._gateway_changes, news
            self.mark_gateways_changed(later)  # behind what is still to be told
            raise
        for number, found in read:
            if found is not None:
                self._hub.publish(
                    "gateway",
                    self._build_gateway_event(found, number, news[number]),
                    **_gateway_scope(number),
                )
            elif news[number].cause == "released":
                mac = mac_from_int(number)
                released = ReleasedGateway(mac=mac, device_id=to_device_id(mac))
                self._hub.publish("gateway", released, **_gateway_scope(number))

    def _build_gateway_event(self, found: Gateway, number: int, change: GatewayChange) -> LiveGateway:
        """What is stored of a gateway, with what only we know."""
        stored = msgspec.structs.asdict(found)
        stored["reports_per_minute"] = self._traffic.reports_per_minute(number)
        # One that was released and is here was claimed again.
        known = "claimed" if change.cause == "released" else change.cause
        cause = known or ("connected" if found.connected else "disconnected")
        return LiveGateway(**stored, cause=cause, devices=change.devices)

    async def _publish_devices(self) -> None:
        waiting = self._urgent or self._routine
        numbers = list(islice(waiting, _BATCH_SIZE))
        if not numbers:
            return
        for number in numbers:
            del waiting[number]
            self._routine.pop(number, None)
        found = await self._database.read(_load_devices, numbers)
        for number, gateway, data in found:
            former = self._find_former_gateway(number, gateway)
            if self._interest.includes(number, gateway) or (
                former is not None and self._interest.includes(number, former)
            ):
                self._hub.publish("device", data, device=number, gateway=gateway, former=former)
        self._publish_forgotten(set(numbers), {each.number for each in found})

    def _find_former_gateway(self, number: int, gateway: int) -> int | None:
        """With which other gateway a device was told before: who listens to that one is to know, too."""
        if not self._interest.gateways:
            self._published_gateway.clear()
            return None
        former = self._published_gateway.pop(number, gateway)
        self._published_gateway[number] = gateway
        if len(self._published_gateway) > _MAX_PUBLISHED_GATEWAYS:
            del self._published_gateway[next(iter(self._published_gateway))]
        return None if former == gateway else former

    def _publish_forgotten(self, asked: set[int], found: set[int]) -> None:
        gone = self._forgotten & asked
        self._forgotten -= asked
        for number in gone - found:
            forgotten = ForgottenDevice(id=to_device_id(mac_from_int(number)))
            self._hub.publish("device", forgotten, device=number)


def _load_devices(connection: Connection, numbers: list[int]) -> list[_EncodedDevice]:
    """The same items as in the list of devices; spelt here, in a thread."""
    chosen = DeviceFilter(ids=tuple(map(mac_from_int, numbers)))
    found, _ = listing.list_devices(
        connection, chosen, SortOrder(), after=None, limit=len(numbers), live=True
    )
    return [
        _EncodedDevice(
            mac_to_int(Mac(each.id.removeprefix("bmac-"))),
            NO_GATEWAY if not each.live or each.live.gateway is None else mac_to_int(Mac(each.live.gateway)),
            msgspec.Raw(_encode(each)),
        )
        for each in found
    ]


def _load_gateways(connection: Connection, numbers: list[int]) -> list[tuple[int, Gateway | None]]:
    return [(number, _find_gateway(connection, number)) for number in numbers]


def _find_gateway(connection: Connection, number: int) -> Gateway | None:
    try:
        return gateways.load_gateway(connection, mac_from_int(number))
    except NotFound:
        return None


def _gateway_scope(number: int) -> dict[str, int]:
    """A gateway is a device too, behind itself."""
    return {"device": number, "gateway": number}
