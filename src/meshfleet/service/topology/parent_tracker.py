"""Follows the parents of all devices, and stores when a device changes its parent (rest-241 to rest-243).

A device is examined only when a link reports it that may not be the one to its parent, which is rare: ingest
marks it as suspect when it opens the minute of such a link.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS
from meshfleet.service.topology import store
from meshfleet.service.topology.link_choice import STAY_DB, choose_links
from meshfleet.service.topology.store import KnownParent, ParentChangeRow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.rollups import Rollups
    from meshfleet.service.topology.link_choice import LinkChoice

    class ParentSubscriber(Protocol):
        """Receiver of parent changes after they were stored."""

        def on_parents_changed(self, changes: Sequence[ParentChangeRow]) -> None:
            """Handle changes of the parents of devices."""


_MAX_EXAMINED: Final = 5_000
"""Maximum number of devices examined in one flush, so that the event loop is not blocked."""

_MAX_HOPS: Final = 64
"""Maximum number of hops to a gateway that are followed; the mesh of a gateway has eleven at most."""


class ParentFlush:
    """Stores parent changes as part of an ingest flush, and notifies the subscriber after the commit."""

    def __init__(
        self, changes: Sequence[ParentChangeRow], cutoff: int | None, subscriber: ParentSubscriber | None
    ) -> None:
        self._changes = changes
        self._cutoff = cutoff
        self._subscriber = subscriber

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # changes need no device
        """Store the parent changes, and delete those whose retention has ended."""
        if self._changes:
            store.insert_parent_changes(connection, self._changes)
        if self._cutoff is not None:
            store.delete_parent_changes(connection, self._cutoff)

    def on_flushed(self) -> None:
        """Notify the subscriber of the stored changes."""
        if self._changes and self._subscriber is not None:
            self._subscriber.on_parents_changed(self._changes)


class ParentTracker:
    """Knows the parent of each device in the mesh. The class is a `CommitSubscriber` of ingest."""

    def __init__(self, rollups: Rollups, subscriber: ParentSubscriber | None = None) -> None:
        """Create a tracker that is told by `rollups` which devices to examine."""
        self._rollups = rollups
        self.retention_ms: int | None = None
        """Milliseconds for which changes are kept; None keeps them forever."""
        self._subscriber = subscriber
        self.parents: dict[int, int] = {}
        """Parent by device."""
        self._linked_parents: dict[int, int] = {}
        """Parent by device, for devices with an established link."""
        self._gateways: set[int] = set()
        self._waiting: set[int] = set()
        """Devices whose established links lead nowhere yet, examined again when another gets a parent."""
        rollups.linked_parents = self._linked_parents

    def restore(self, known: Mapping[int, KnownParent]) -> None:
        """Restore the parents that the previous process stored."""
        for device, (parent, gateway, established) in known.items():
            self._set_parent(device, parent, gateway, established=established)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Do nothing: the roll-ups have marked the devices to examine."""

    def prepare_flush(self, states: PendingStates, now: int) -> ParentFlush:  # noqa: ARG002 # links decide
        """Find parent changes since the last flush. Return the flush part that stores them."""
        changes: list[ParentChangeRow] = []
        suspects = self._take_suspects()
        while suspects:
            found = [change for device in suspects if (change := self._examine(device, now)) is not None]
            if not found:
                break
            changes += found
            suspects, self._waiting = self._waiting, set()
        cutoff = None if self.retention_ms is None else now - self.retention_ms
        return ParentFlush(changes, cutoff, self._subscriber)

    def _take_suspects(self) -> set[int]:
        """Return up to 5,000 devices to examine, and keep the others for the next flush."""
        suspects = self._rollups.suspects
        if len(suspects) <= _MAX_EXAMINED:
            self._rollups.suspects = set()
            return suspects
        return {suspects.pop() for _ in range(_MAX_EXAMINED)}

    def _examine(self, device: int, now: int) -> ParentChangeRow | None:
        """Apply and return the parent change of a device, if there is one."""
        choice = choose_links(device, self._rollups.get_links(device), now=now, interval=DEFAULT_INTERVAL_MS)
        if choice is None:
            return None
        self._gateways.update(link.gateway for link in choice.usable.values())
        if device in self._gateways:  # its children hear it, but it has no parent
            return None
        parent = self._find_parent(device, choice)
        if parent is None and choice.established and len(self._waiting) < _MAX_EXAMINED:
            self._waiting.add(device)
        known = self.parents.get(device)
        established = bool(choice.established)
        if parent is None or parent == known:
            if parent is not None and established:
                self._linked_parents[device] = parent
            return None
        link = choice.usable[parent]
        self._set_parent(device, parent, link.gateway, established=established)
        time = min(link.linked_at if established else link.seen_at, now)
        return ParentChangeRow(device, time, parent, known, link.gateway, established)

    def _find_parent(self, device: int, choice: LinkChoice) -> int | None:
        """Return the parent that the links of a device show; None if they show none, or no other."""
        known = self.parents.get(device)
        if choice.established:
            if device in self._linked_parents and known in choice.established:
                return known
            usable = choice.usable
            return max(
                (each for each in choice.established if self._has_path(each, device)),
                key=lambda each: (usable[each].linked_at, usable[each].rssi),
                default=None,
            )
        if device in self._linked_parents:
            return None  # a lost link is not a change: the device may only be silent
        scores = choice.scores
        best = max(
            (each for each in scores if self._has_path(each, device)), key=scores.__getitem__, default=None
        )
        if best is not None and known is not None and scores[best] < scores.get(known, -inf) + STAY_DB:
            return known
        return best

    def _has_path(self, node: int, avoided: int) -> bool:
        """Return whether the known parents of a node lead to a gateway, and not through another node."""
        for _ in range(_MAX_HOPS):
            if node in self._gateways:
                return True
            above = self.parents.get(node)
            if above is None or node == avoided:
                return False
            node = above
        return False

    def _set_parent(self, device: int, parent: int, gateway: int, *, established: bool) -> None:
        self.parents[device] = parent
        self._gateways.add(gateway)
        if established:
            self._linked_parents[device] = parent
