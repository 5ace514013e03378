"""Publishes the parent changes of devices as live events, after they were stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.live import LiveParentChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.service.live.hub import EventHub
    from meshfleet.service.topology.store import ParentChangeRow

_MAX_CHANGES: Final = 1_000
"""Maximum number of parent changes published at once; if there are more, subscribers get a `resync`."""


class TopologyEvents:
    """Publishes parent changes of devices. The class is a subscriber of the parent tracker."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._interest = hub.interest["topology"]

    def on_parents_changed(self, changes: Sequence[ParentChangeRow]) -> None:
        """Publish the changes that a filter may match."""
        wanted = [each for each in changes if self._interest.includes(each.device, each.gateway)]
        if len(wanted) > _MAX_CHANGES:
            self._hub.publish_loss("topology", "too many devices changed their parents at once")
            return
        for each in wanted:
            data = LiveParentChange(
                device=f"bmac-{each.device:012x}",
                parent=mac_from_int(each.parent),
                previous=None if each.previous is None else mac_from_int(each.previous),
                gateway=mac_from_int(each.gateway),
                time=format_millis(each.time),
            )
            self._hub.publish("topology", data, device=each.device, gateway=each.gateway)
