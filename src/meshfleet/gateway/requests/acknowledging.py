"""Acks: samples that somebody has in safety, and older ones that somebody misses (ack-18 to ack-23)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import WireError
from meshfleet.wire import requests
from meshfleet.wire.codes import AckType, Kind
from meshfleet.wire.ids import Identifier
from meshfleet.wire.requests import Ack
from meshfleet.wire.times import to_millis

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core
    from meshfleet.gateway.world.device import Device
    from meshfleet.gateway.world.samples import Samples
    from meshfleet.wire.topics import RequestTopic

_PAUSE: Final = 0.05
"""Seconds between two samples of a backfill."""

_KINDS: Final = (Kind.MEASUREMENT, Kind.EVENT)


class _Series(NamedTuple):
    device: Device
    kind: Kind
    identifier: Identifier
    samples: Samples


class Acknowledging:
    """Takes acks to the devices of one gateway. Nobody ever hears whether one was of use (ack-5)."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, topic: RequestTopic, payload: bytes) -> None:
        """Send an ack on its way; what is malformed or concerns nobody is dropped."""
        device = self._core.devices.get(topic.device)
        entry = self._core.catalogue.find(topic.identifier or "")
        try:
            ack = requests.decode(topic.operation, payload, version=self._core.settings.api_version)
        except WireError:
            return
        if topic.operation.decoded:
            identifier = entry.id if entry is not None and entry.name == topic.identifier else None
        else:
            identifier = Identifier(topic.identifier or "")
        if isinstance(ack, Ack) and device is not None and identifier is not None:
            self._send(device, identifier, ack)

    def _send(self, device: Device, identifier: Identifier, ack: Ack) -> None:
        mesh = self._core.mesh
        relay = device.node if device.is_connected else mesh.reacher(device.node, self._core.agenda.now)
        route = mesh.route(relay) if relay is not None else None
        if route is not None:
            arrived = partial(self._arrived, device, identifier, ack)
            self._core.traffic.send((mesh.root, *route), priority=ack.priority, arrived=arrived)

    def _arrived(self, device: Device, identifier: Identifier, ack: Ack, _t: float) -> None:
        if not device.is_reachable:
            return
        for kind in _KINDS:
            samples = (device.samples or {}).get((kind, identifier))
            if samples is not None:
                self._take_effect(_Series(device, kind, identifier, samples), ack.type, to_millis(ack.time))

    def _take_effect(self, series: _Series, type_: AckType, millis: int) -> None:
        samples = series.samples
        if type_ is AckType.ERASE_ALL:
            samples.erase()
            return
        samples.drop(millis)
        if type_ is AckType.BACKFILL and not samples.backfilling:
            samples.backfilling = True
            self._backfill(series, (millis, 0), self._core.agenda.now)

    def _backfill(self, series: _Series, before: tuple[int, int], _t: float) -> None:
        """Send the next older sample, and so on until there is none (ack-20)."""
        device, kind, identifier, samples = series
        sample = samples.newest_before(*before)
        if sample is None or not device.is_reachable or self._core.is_down:
            samples.backfilling = False
            return
        self._core.report.sample(device, kind, identifier, sample)
        self._core.agenda.after(_PAUSE, partial(self._backfill, series, sample[:2]))
