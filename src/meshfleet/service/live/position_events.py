"""Publishes positions of devices, and their entries into zones and departures, as live events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.live import LivePosition, LiveZoneChange
from meshfleet.rest.sites import format_site_id, format_zone_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.service.live.hub import EventHub
    from meshfleet.service.positions.tracker import TrackedPosition
    from meshfleet.service.positions.zone_presence import ZoneChange

_MAX_EVENTS: Final = 2_000
"""Maximum number of events published at once; if there are more, subscribers get a `resync`."""


class PositionEvents:
    """Publishes positions and changes of zones. The class is a subscriber of the position tracker."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._positions = hub.interest["position"]
        self._zones = hub.interest["zone"]

    def on_positions(self, positions: Sequence[TrackedPosition]) -> None:
        """Publish the positions that a filter may match (rest-262)."""
        wanted = [each for each in positions if self._positions.includes(each.device, None)]
        if len(wanted) > _MAX_EVENTS:
            self._hub.publish_loss("position", "too many devices have new positions at once")
            return
        for each in wanted:
            data = LivePosition(
                device=to_device_id(mac_from_int(each.device)),
                site=format_site_id(each.site),
                floor=each.estimate.floor,
                x=round(each.estimate.x, 3),
                y=round(each.estimate.y, 3),
                radius=round(each.estimate.radius, 2),
                time=format_millis(each.time),
            )
            self._hub.publish("position", data, device=each.device)

    def on_zone_changes(self, changes: Sequence[ZoneChange]) -> None:
        """Publish the entries and departures that a filter may match (rest-263)."""
        wanted = [each for each in changes if self._zones.includes(each.stay.device, None)]
        if len(wanted) > _MAX_EVENTS:
            self._hub.publish_loss("zone", "too many devices entered or left zones at once")
            return
        for each in wanted:
            left_at = each.left_at
            data = LiveZoneChange(
                zone=format_zone_id(each.stay.zone),
                device=to_device_id(mac_from_int(each.stay.device)),
                change="entered" if left_at is None else "left",
                time=format_millis(each.time),
                dwell_seconds=None if left_at is None else (left_at - each.entered_at) / 1000,
            )
            self._hub.publish("zone", data, device=each.stay.device)
