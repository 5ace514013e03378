"""Which links of a device count, and which parent they speak for. Pure; times are Unix milliseconds.

Gateways send a reading without `channel` for an established mesh link, and one with `channel` for an
advertisement that a node heard. An established link is reported from both ends: a node is heard by its parent
and by its children. So the links of a device do not say which of them is the parent; the tree does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.ingest.recent_links import HEARTBEATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.ingest.recent_links import Links, LinkState

HEARD_INTERVALS: Final = 3
"""Number of usual heartbeat intervals for which a reading counts."""

TOGETHER_MS: Final = 90_000
"""Milliseconds between the newest readings of two established links that exist at the same time.

Devices report every minute. A parent that has lost a device misses the next report; until then, the device
keeps the parent, so that two parents that both report it do not take turns.
"""

_DECAY_DB_PER_MINUTE: Final = 4.0
"""Decibels that are subtracted from a signal per minute of its age, as in the selection of a gateway."""

STAY_DB: Final = 6.0
"""Decibels by which another signal must be better before a device that is only heard changes its parent."""


class LinkChoice(NamedTuple):
    """Links of a device that count at one time."""

    usable: Mapping[int, LinkState]
    """Recent links over which the device can be reached, by parent."""
    established: tuple[int, ...]
    """Parents with an established link; one of them is the parent, others may be children."""
    scores: Mapping[int, float]
    """Mean signal in dBm by usable parent, lower the older it is."""
    newest: LinkState
    """Newest reading or heartbeat of the device, whether usable or not."""

    @property
    def home(self) -> int:
        """Gateway to which the device belongs: that of its newest established link or of its best signal."""
        if self.established:
            return max(
                (self.usable[each] for each in self.established), key=lambda link: link.linked_at
            ).gateway
        if self.scores:
            return self.usable[max(self.scores, key=self.scores.__getitem__)].gateway
        return self.newest.gateway


def choose_links(device: int, links: Links, *, now: int, interval: int) -> LinkChoice | None:
    """Choose the links of a device that count; None if the device was not heard for three intervals."""
    oldest = now - HEARD_INTERVALS * interval
    recent = {parent: link for parent, link in links.items() if link.seen_at >= oldest}
    if not recent:
        return None
    usable = {
        parent: link
        for parent, link in recent.items()
        if parent not in {HEARTBEATS, device} and not link.unreachable
    }
    linked = {parent: link.linked_at for parent, link in usable.items() if link.linked_at >= oldest}
    newest = max(linked.values(), default=0)
    scores = {
        parent: link.mean - _DECAY_DB_PER_MINUTE * max(now - link.seen_at, 0) / 60_000
        for parent, link in usable.items()
    }
    return LinkChoice(
        usable,
        tuple(parent for parent, at in linked.items() if at >= newest - TOGETHER_MS),
        scores,
        max(recent.values(), key=lambda link: link.seen_at),
    )
