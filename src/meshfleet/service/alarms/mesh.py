"""Mesh behind a gateway: which devices are silent, and which lost extender explains that. Pure, and its SQL.

From a silent device the parents are followed upward while they are silent, too: the topmost silent node is
the root. A parent that was still heard when the device was silent already is no explanation. The tree comes
from the stored parent changes, because a device is also heard by its own children; the parent of its last
radio reading is used only where no change is stored.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.service.alarms.diagnosis import UPDATE_MS
from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS, MISSED_HEARTBEATS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.alarms.rules import AlarmTimes

_MAX_HOPS: Final = 11
"""Maximum number of hops in the mesh of a gateway."""
MIN_SILENT_CHILDREN: Final = 3
SILENT_CHILDREN_PERCENT: Final = 50
"""A parent that still counts as connected may be lost if at least three of its children, and half, are
silent: its own interval may be much longer than theirs."""
MIN_BURST: Final = 10
BURST_PERCENT: Final = 10
"""Devices stopped together if at least ten, and a tenth of all behind their gateway, did within the time."""
_CHANGE_TOLERANCE_MS: Final = 2 * 60_000
"""A child may have changed its parent that much before its former parent was heard last: two parents report
it for a while, and the times of changes are those of minutes."""

_NODE_COLUMNS: Final = """
    SELECT device.id, device.gateway, coalesce(parent_change.parent, device_state.parent), parent_change.time,
        device.connected, device.connected_at, device_state.rhythm, device_state.reported_at,
        device_state.boot_mode, upstream.connected, upstream.connected_at, claim.device IS NOT NULL
    FROM device
    LEFT JOIN device_state ON device_state.device = device.id
    LEFT JOIN device AS upstream ON upstream.id = device.gateway
    LEFT JOIN gateway AS claim ON claim.device = device.id
    LEFT JOIN parent_change ON parent_change.id = (
        SELECT newest.id FROM parent_change AS newest
        WHERE newest.device = device.id ORDER BY newest.id DESC LIMIT 1)
"""
_SELECT_BEHIND: Final = f"{_NODE_COLUMNS} WHERE device.gateway = ?"
_SELECT_NODES: Final = f"{_NODE_COLUMNS} WHERE device.id IN numbers"
_SELECT_UPDATED: Final = (
    f"SELECT device FROM execution WHERE device IN numbers AND {active_condition()}"  # noqa: S608 # constants only
    " AND state IN ('APPLYING', 'CONFIRMING') AND updated_at > :since"
)
_SELECT_MOVED: Final = (
    "SELECT DISTINCT device FROM parent_change"
    " WHERE device IN numbers AND previous = :relay AND time >= :since"
)


class NodeState(Enum):
    """State of a device of a mesh."""

    CONNECTED = "connected"
    SILENT = "silent"
    RETURNING = "returning"
    """Its gateway was away and is back; the device still has time to report."""
    UPDATING = "updating"
    """The device installs an image and restarts."""
    DFU = "dfu"
    """The device waits in DFU mode: it passes nothing on, but is not lost."""
    UNKNOWN = "unknown"
    """Its gateway is away."""
    GATEWAY = "gateway"


_DOWN: Final = frozenset({NodeState.SILENT, NodeState.UPDATING, NodeState.DFU})
"""States in which a device passes nothing on for others."""


class MeshNode(NamedTuple):
    """Device of a mesh. Times are Unix times in milliseconds."""

    device: int
    gateway: int | None
    parent: int | None
    state: NodeState
    silent_since: int
    """When it was found silent. While it is connected: when it connected; 0 if that was together with its
    gateway, which does not show that it was heard."""
    heard_at: int
    """When it was heard last; 0 if that is not known."""
    parent_changed_at: int = 0
    interval: int = DEFAULT_INTERVAL_MS
    """Usual time between two heartbeats in milliseconds."""


class Root(NamedTuple):
    """Topmost silent node above a device, or the device itself."""

    device: int
    is_updating: bool = False
    """Whether an update of a node above it explains the silence for now."""


class Mesh:
    """Devices behind a gateway, with those that are lost."""

    def __init__(self, gateway: int, nodes: Iterable[MeshNode], now: int, lost: Collection[int] = ()) -> None:
        """Create from nodes. `lost` are devices that pass nothing on, although they count as connected."""
        self.gateway = gateway
        self.nodes: Mapping[int, MeshNode] = {each.device: each for each in nodes}
        self._now = now
        self._lost = set(lost)
        self._children: dict[int, list[MeshNode]] = {}
        for each in self.nodes.values():
            if each.parent is not None:
                self._children.setdefault(each.parent, []).append(each)
        self._members: dict[int, list[int]] | None = None
        """Silent devices by root, without the root."""
        self._alone: dict[int, int] | None = None

    def add_lost(self, device: int) -> None:
        """Record that a device passes nothing on, although it counts as connected."""
        self._lost.add(device)
        self._members = self._alone = None

    def is_lost(self, device: int) -> bool:
        """Return whether a device is known to pass nothing on, although it may count as connected."""
        return device in self._lost

    def find_root(self, device: int) -> Root:
        """Return the topmost silent node above a silent device, which may be the device itself."""
        node = self.nodes[device]
        path, root, is_updating = [node], node, False
        for _ in range(_MAX_HOPS):
            above = self.nodes.get(node.parent) if node.parent is not None else None
            if above is None or not self._is_down(above) or self._was_heard_after(above, node):
                break
            if above in path:
                return Root(self._choose_in_circle(path[path.index(above) :]) or root.device)
            node = above
            path.append(node)
            if self._is_at_fault(node):
                root, is_updating = node, False
            else:
                is_updating = is_updating or node.state is NodeState.UPDATING
        return Root(root.device, is_updating)

    def list_cut_off(self, root: int) -> list[int]:
        """List the silent devices of which a node is the root, without the root itself."""
        if self._members is None:
            self._members = {}
            for each in self.nodes.values():
                if (
                    each.state is NodeState.SILENT
                    and (above := self.find_root(each.device).device) != each.device
                ):
                    self._members.setdefault(above, []).append(each.device)
        return self._members.get(root, [])

    def find_suspect(self, root: int) -> int | None:
        """Return the parent of a root if it may be lost although it is not silent: its children are."""
        parent = self.nodes[root].parent
        suspect = None if parent is None else self.nodes.get(parent)
        if (
            suspect is None
            or suspect.state not in {NodeState.CONNECTED, NodeState.RETURNING}
            or suspect.device in self._lost
        ):
            return None
        silent, connected = self._count_children(suspect)
        is_likely = silent >= MIN_SILENT_CHILDREN and 100 * silent >= SILENT_CHILDREN_PERCENT * (
            silent + connected
        )
        return suspect.device if is_likely else None

    def compute_silent_percent(self, relay: int) -> int | None:
        """Return the share of silent devices among those last heard by a relay; None if there are none."""
        silent, connected = self._count_children(self.nodes[relay])
        return 100 * silent // (silent + connected) if silent + connected else None

    def list_alone(self) -> dict[int, int]:
        """Return when the silent devices of the gateway that no other explains became silent, by device."""
        if self._alone is None:
            self._alone = {
                each.device: each.silent_since
                for each in self.nodes.values()
                if each.state is NodeState.SILENT
                and each.gateway == self.gateway
                and self.find_root(each.device) == Root(each.device)
                and not self.list_cut_off(each.device)
            }
        return self._alone

    def count_connected(self) -> int:
        """Count the connected devices behind the gateway."""
        return sum(
            each.state is NodeState.CONNECTED and each.gateway == self.gateway for each in self.nodes.values()
        )

    # Internals

    def _is_at_fault(self, node: MeshNode) -> bool:
        return node.state is NodeState.SILENT or node.device in self._lost

    def _is_down(self, node: MeshNode) -> bool:
        return node.state in _DOWN or node.device in self._lost

    def _was_heard_after(self, above: MeshNode, node: MeshNode) -> bool:
        """Return whether a parent was still heard when a child was silent already."""
        # A time in the future is of before the clock was set back, and says nothing.
        return node.state is NodeState.SILENT and node.silent_since < above.heard_at <= self._now

    def _choose_in_circle(self, circle: Sequence[MeshNode]) -> int | None:
        """Choose the same root for all nodes whose parents lead in a circle: the one with most children."""
        at_fault = (each for each in circle if self._is_at_fault(each))
        best = max(
            at_fault, key=lambda each: (len(self._children.get(each.device, ())), -each.device), default=None
        )
        return None if best is None else best.device

    def _count_children(self, relay: MeshNode) -> tuple[int, int]:
        """Count the children of a relay that are silent since it was heard, and those that are connected."""
        silent = connected = 0
        for each in self._children.get(relay.device, ()):
            if self._is_at_fault(each):
                silent += not self._was_heard_after(relay, each)
            else:
                connected += each.state is NodeState.CONNECTED
        return silent, connected


def find_burst(times: Mapping[int, int], device: int, window: int) -> list[int]:
    """Return the most devices that stopped together with one of them, within a window of time."""
    ordered = sorted((time, each) for each, time in times.items())
    best: list[int] = []
    start = 0
    for end, (time, _) in enumerate(ordered):
        while time - ordered[start][0] > window:
            start += 1
        if ordered[start][0] <= times[device] <= time and end - start >= len(best):
            best = [each for _, each in ordered[start : end + 1]]
    return best


# SQL


def load_mesh(
    connection: Connection, gateway: int, now: int, times: AlarmTimes, lost: Collection[int]
) -> Mesh:
    """Load the mesh of a gateway that is connected, and parents of silent devices behind other gateways."""
    rows = list(bulk.query_rows(connection, _SELECT_BEHIND, (gateway,)))
    known = {row[0] for row in rows}
    newest = rows
    for _ in range(_MAX_HOPS):
        parents = {row[2] for row in newest if row[2] is not None and not row[4]} - known
        if not parents:
            break
        newest = list(bulk.query_in(connection, _SELECT_NODES, sorted(parents)))
        known |= parents
        rows += newest
    return Mesh(gateway, _build_nodes(connection, rows, now, times), now, lost)


def load_nodes(
    connection: Connection, devices: Collection[int], now: int, times: AlarmTimes
) -> dict[int, MeshNode]:
    """Load single devices of meshes."""
    rows = bulk.query_in(connection, _SELECT_NODES, sorted(devices))
    return {each.device: each for each in _build_nodes(connection, rows, now, times)}


def count_moved(connection: Connection, mesh: Mesh, relay: int) -> int:
    """Count the connected devices that have left a relay for another parent since it was heard last."""
    since = mesh.nodes[relay].heard_at - _CHANGE_TOLERANCE_MS
    candidates = [
        each.device
        for each in mesh.nodes.values()
        if each.state is NodeState.CONNECTED and each.parent != relay and each.parent_changed_at >= since
    ]
    if not candidates:
        return 0
    return len(bulk.query_in(connection, _SELECT_MOVED, candidates, relay=relay, since=since))


def _build_nodes(
    connection: Connection, rows: Sequence[Sequence[Any]], now: int, times: AlarmTimes
) -> Iterator[MeshNode]:
    silent = [row[0] for row in rows if not row[4]]
    updated = (
        {row[0] for row in bulk.query_in(connection, _SELECT_UPDATED, silent, since=now - UPDATE_MS)}
        if silent
        else set()
    )
    for row in rows:
        yield _build_node(row, now, times, is_updated=row[0] in updated)


def _build_node(row: Sequence[Any], now: int, times: AlarmTimes, *, is_updated: bool) -> MeshNode:
    device, gateway, parent, changed_at, connected, since, rhythm, reported_at, *others = row
    boot_mode, is_gateway_connected, gateway_since, is_gateway = others
    interval = rhythm or DEFAULT_INTERVAL_MS
    if is_gateway:
        state = NodeState.GATEWAY
    elif connected:
        state = NodeState.CONNECTED
    elif not is_gateway_connected:
        state = NodeState.UNKNOWN
    elif boot_mode == "dfu":
        state = NodeState.DFU
    elif is_updated:
        state = NodeState.UPDATING
    else:
        grace = max(times.return_check, min(MISSED_HEARTBEATS * interval, times.return_max))
        is_returning = since < gateway_since <= now < gateway_since + grace
        state = NodeState.RETURNING if is_returning else NodeState.SILENT
    heard_at = reported_at or 0
    if connected:
        since = 0 if since == gateway_since else since
    else:
        silent_from = since - MISSED_HEARTBEATS * interval
        heard_at = silent_from if reported_at is None else min(reported_at, silent_from)
    return MeshNode(device, gateway, parent, state, since, heard_at, changed_at or 0, interval)
