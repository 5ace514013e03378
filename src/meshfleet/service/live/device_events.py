"""Publishes devices and gateways as live events.

Code that changes a device or gateway marks that object as changed here, which queues the object. When its
turn comes, the object is loaded and published once with its current state, however often it changed.
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
    from meshfleet.rest.gateways import Gateway
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import GatewayTraffic
    from meshfleet.service.live.hub import EventHub

_log = logging.getLogger(__name__)

_BATCH_SIZE: Final = 250
"""Maximum number of devices that are loaded and published together."""

_BATCH_PAUSE_SECONDS: Final = 0.05
"""Seconds between two batches of published devices, so that ingest of reports is not delayed."""

_RETRY_SECONDS: Final = 1.0
"""Seconds to wait after a database failure before devices are loaded again."""

_MAX_PENDING: Final = 50_000
"""Maximum number of queued devices. If there are more, subscribers get a `resync` instead."""

_MAX_PUBLISHED_GATEWAYS: Final = 50_000
"""Maximum number of devices whose last published gateway is kept."""

_CAUSE_RANKS: Final = ("renamed", None, "claimed", "released")
"""Causes of gateway changes in ascending order of importance; None means connected or disconnected."""

_encode = msgspec.json.Encoder().encode


class GatewayChange(NamedTuple):
    """Change of a gateway to publish as a live event."""

    cause: str | None
    """Cause such as `claimed`; None means connected or disconnected, the gateway's state when published."""
    devices: int = 0
    """Number of devices that connected or disconnected together with the gateway."""

    def merge(self, later: GatewayChange) -> GatewayChange:
        """Combine this change of a gateway with a later one: sum of devices, and the more important cause."""
        cause = max((later.cause, self.cause), key=_CAUSE_RANKS.index)
        return GatewayChange(cause, self.devices + later.devices)


class _EncodedDevice(NamedTuple):
    """Device as JSON, with the fields that filters check."""

    number: int
    gateway: int
    data: msgspec.Raw


class DeviceEvents:
    """Publishes changed devices and gateways as live events. Runs in the event loop of the hub."""

    def __init__(self, hub: EventHub, database: Database, traffic: GatewayTraffic, now: Now) -> None:
        self._hub = hub
        self._database = database
        self._traffic = traffic
        self._now = now
        self._interest = hub.interest["device"]
        self._urgent: dict[int, None] = {}
        """Queue of devices to publish first: changed by users or by a new connection state."""
        self._routine: dict[int, None] = {}
        """Queue of devices to publish last: changed by their reports."""
        self._forgotten: set[int] = set()
        self._gateway_changes: dict[int, GatewayChange] = {}
        self._published_gateway: dict[int, int] = {}
        """Gateway of each device in its last published event; only while there are filters by gateway."""
        self._wakeup = asyncio.Event()

    def mark_changed(self, numbers: Iterable[int]) -> None:
        """Queue devices that a user or a new connection state has changed. They are published first."""
        self._queue_devices(self._urgent, numbers)

    def mark_reported(self, numbers: Iterable[int]) -> None:
        """Queue devices whose reports have changed them. They are published last, as more reports follow."""
        self._queue_devices(self._routine, numbers)

    def mark_forgotten(self, number: int) -> None:
        """Queue a device that was deleted from the device registry, to publish its deletion."""
        if self._interest:
            self._forgotten.add(number)
            self.mark_changed([number])

    def mark_gateways_changed(self, changes: Mapping[int, GatewayChange]) -> None:
        """Queue gateways that have changed. Several changes of one gateway are published as one."""
        if self._hub.interest["gateway"]:
            for number, later in changes.items():
                earlier = self._gateway_changes.get(number)
                self._gateway_changes[number] = later if earlier is None else earlier.merge(later)
            self._wakeup.set()

    def on_devices_changed(self, devices: Iterable[int]) -> None:
        """Queue devices that connected or disconnected independently of their gateways."""
        self.mark_changed(devices)

    def on_gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
        """Queue a gateway that connected or disconnected, and the devices that changed together with it.

        Only devices that a filter names get their own events. The others are counted in the event of the
        gateway.
        """
        self.mark_gateways_changed({gateway: GatewayChange(None, len(devices))})
        named = self._interest.devices
        self.mark_changed([each for each in devices if each in named] if named else ())

    async def run(self) -> None:
        """Publish queued devices and gateways until canceled."""
        while True:
            await self._wakeup.wait()
            try:
                await self._publish_gateways()
                await self._publish_devices()
            except (FleetError, DBAPIError) as exc:
                _log.warning("devices could not be loaded for live events: %s; retrying", type(exc).__name__)
                self._hub.publish_loss("device", "the database is unavailable")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                await asyncio.sleep(_BATCH_PAUSE_SECONDS)
            if not (self._urgent or self._routine or self._gateway_changes):
                self._wakeup.clear()

    def _queue_devices(self, queue: dict[int, None], numbers: Iterable[int]) -> None:
        """Add devices to a queue if a filter may match their events. Report a loss if it is full."""
        interest = self._interest
        if not interest:
            return
        if interest.includes_all or interest.gateways:
            queue.update(dict.fromkeys(numbers))
        else:
            queue.update((number, None) for number in numbers if number in interest.devices)
        if len(queue) > _MAX_PENDING:
            queue.clear()
            self._hub.publish_loss("device", "too many changes at once")
        if queue:
            self._wakeup.set()

    async def _publish_gateways(self) -> None:
        """Load the queued gateways, and publish each in its current state, or as released."""
        changes, self._gateway_changes = self._gateway_changes, {}
        if not changes:
            return
        try:
            loaded = await self._database.read(_load_gateways, list(changes))
        except BaseException:
            later, self._gateway_changes = self._gateway_changes, changes
            self.mark_gateways_changed(later)  # merges them into the changes that could not be published
            raise
        for number, gateway in loaded:
            if gateway is not None:
                self._hub.publish(
                    "gateway",
                    self._build_gateway_event(gateway, number, changes[number]),
                    **_build_gateway_scope(number),
                )
            elif changes[number].cause == "released":
                mac = mac_from_int(number)
                released = ReleasedGateway(mac=mac, device_id=to_device_id(mac))
                self._hub.publish("gateway", released, **_build_gateway_scope(number))

    def _build_gateway_event(self, gateway: Gateway, number: int, change: GatewayChange) -> LiveGateway:
        """Build the live event of a gateway from its stored data, its traffic and the cause of the change.

        The traffic is not in the database; only this process knows it.
        """
        fields = msgspec.structs.asdict(gateway)
        fields["reports_per_minute"] = self._traffic.reports_per_minute(number)
        # A released gateway that exists was claimed again.
        cause_if_known = "claimed" if change.cause == "released" else change.cause
        cause = cause_if_known or ("connected" if gateway.connected else "disconnected")
        return LiveGateway(**fields, cause=cause, devices=change.devices)

    async def _publish_devices(self) -> None:
        """Load the next 250 queued devices, and publish each in its current state, or as deleted."""
        queue = self._urgent or self._routine
        numbers = list(islice(queue, _BATCH_SIZE))
        if not numbers:
            return
        for number in numbers:
            del queue[number]
            self._routine.pop(number, None)
        devices = await self._database.read(_load_devices, numbers)
        for number, gateway, data in devices:
            former = self._find_former_gateway(number, gateway)
            if self._interest.includes(number, gateway) or (
                former is not None and self._interest.includes(number, former)
            ):
                self._hub.publish("device", data, device=number, gateway=gateway, former=former)
        self._publish_forgotten(set(numbers), {each.number for each in devices})

    def _find_former_gateway(self, number: int, gateway: int) -> int | None:
        """Return the gateway in the last event of a device if it differs from `gateway`, else None.

        Subscribers with a filter for the former gateway get the next event, too.
        """
        if not self._interest.gateways:
            self._published_gateway.clear()
            return None
        former = self._published_gateway.pop(number, gateway)
        self._published_gateway[number] = gateway
        if len(self._published_gateway) > _MAX_PUBLISHED_GATEWAYS:
            del self._published_gateway[next(iter(self._published_gateway))]
        return None if former == gateway else former

    def _publish_forgotten(self, numbers: set[int], existing: set[int]) -> None:
        """Publish the deletion of those devices of `numbers` that were deleted and are not in `existing`."""
        deleted = self._forgotten & numbers
        self._forgotten -= numbers
        for number in deleted - existing:
            event = ForgottenDevice(id=to_device_id(mac_from_int(number)))
            self._hub.publish("device", event, device=number)


def _load_devices(connection: Connection, numbers: list[int]) -> list[_EncodedDevice]:
    """Load devices as in the REST list, and encode them as JSON already in this worker thread."""
    device_filter = DeviceFilter(ids=tuple(map(mac_from_int, numbers)))
    found = listing.list_devices(
        connection, device_filter, SortOrder(), after=None, limit=len(numbers), live=True
    )
    return [
        _EncodedDevice(
            mac_to_int(Mac(each.id.removeprefix("bmac-"))),
            NO_GATEWAY if not each.live or each.live.gateway is None else mac_to_int(Mac(each.live.gateway)),
            msgspec.Raw(_encode(each)),
        )
        for each in found.devices
    ]


def _load_gateways(connection: Connection, numbers: list[int]) -> list[tuple[int, Gateway | None]]:
    """Load gateways with their MACs as integers; None for a gateway that is not claimed."""
    return [(number, _find_gateway(connection, number)) for number in numbers]


def _find_gateway(connection: Connection, number: int) -> Gateway | None:
    try:
        return gateways.load_gateway(connection, mac_from_int(number))
    except NotFound:
        return None


def _build_gateway_scope(number: int) -> dict[str, int]:
    """Return the filter fields of a gateway's events. A gateway counts as a device of itself."""
    return {"device": number, "gateway": number}
