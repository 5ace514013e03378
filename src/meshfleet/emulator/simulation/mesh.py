"""Mesh of one gateway: a tree of radio links.

Every connected device has a link to the gateway or to an extender that receives it well enough (gateway-19).
Links fade, so nodes look for a better parent from time to time (`reselect_parent`). A node without a route to
the gateway has depth -1, and so have all nodes below that node, until it finds a parent again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.mesh_node import (
    DISCONNECTED_DEPTH,
    MAX_DEPTH,
    MeshNode,
    compute_child_depth,
    is_descendant,
)
from meshfleet.emulator.simulation.noise import derive_noise_key
from meshfleet.emulator.simulation.products import DeviceMode, NodeRole
from meshfleet.emulator.simulation.radio import MIN_USABLE_DBM, SLOW_FADING_DB
from meshfleet.emulator.simulation.receivers import MAX_RECEIVERS, ReceiverIndex
from meshfleet.emulator.simulation.site import SitePosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.emulator.simulation.site import Site
    from meshfleet.protocol.ids import Mac


SWITCH_MARGIN_DB: Final = 8.0
"""Minimum dB by which another parent must be better to replace a usable mesh link."""

FADED_SWITCH_MARGIN_DB: Final = 3.0
"""Minimum dB by which another parent must be better to replace a link that is no longer usable.

A link that is more than this many dB below the usable level breaks.
"""

HOP_PENALTY_DB: Final = 3.0
"""dB by which a parent must be stronger to justify one more hop, which adds latency and packet loss."""

_MIN_READING_DBM: Final = -127
"""Lowest RSSI reading in dBm (inclusive)."""
_MAX_READING_DBM: Final = -20
"""Highest RSSI reading in dBm (inclusive)."""


class SimulatedMesh:
    """Simulated mesh of a site. At time 0, every node in connected mode that finds a parent has joined."""

    __slots__ = ("_preferred_parents", "_relay_index", "nodes", "root")

    def __init__(self, site: Site) -> None:
        self.root = MeshNode(
            site.gateway,
            NodeRole.GATEWAY,
            SitePosition(0, 0.0, 0.0),
            noise_key=derive_noise_key(site.seed, site.gateway),
        )
        self.root.wants_link, self.root.depth = True, 0
        self.nodes: dict[Mac, MeshNode] = {site.gateway: self.root}
        self._preferred_parents: dict[Mac, Mac] = {}
        """MAC of the preferred parent of a node, by the MAC of the node."""
        for site_device in site.devices:
            node = MeshNode(
                site_device.mac,
                site_device.product.role,
                site_device.position,
                noise_key=derive_noise_key(site.seed, site_device.mac),
            )
            node.wants_link = site_device.mode is DeviceMode.CONNECTED
            if node.mac in site.powers:
                node.tx_gain = float(site.powers[node.mac] - radio.DEFAULT_POWER_DBM)
            self.nodes[node.mac] = node
            if site_device.parent is not None:
                self._preferred_parents[node.mac] = site_device.parent
        self._relay_index: ReceiverIndex | None = None
        """Index of the gateway and the extenders, kept if devices of the site move."""
        self._index_receivers(site)
        self._join_all()

    def compute_link_rssi(self, node: MeshNode, i: int, sim_time: float) -> float:
        """Return the RSSI in dBm of a node at the receiver with the index `i`, without fast fading."""
        return (
            node.mean_rssi[i]
            + node.tx_gain
            + radio.compute_slow_fading(node.noise_key ^ node.receivers[i].noise_key, sim_time)
        )

    def measure_rssi(self, node: MeshNode, i: int, sim_time: float, n: int) -> int:
        """Return the `n`th RSSI reading in dBm of a node at the receiver with the index `i`.

        The reading includes fast fading.
        """
        pair = node.noise_key ^ node.receivers[i].noise_key
        level = round(
            node.mean_rssi[i]
            + node.tx_gain
            + radio.compute_slow_fading(pair, sim_time)
            + radio.compute_fast_fading(pair, n)
        )
        return _MIN_READING_DBM if level < _MIN_READING_DBM else min(level, _MAX_READING_DBM)

    def find_route(self, node: MeshNode) -> tuple[MeshNode, ...] | None:
        """Return the nodes from the first hop below the gateway to `node`, or None without a route."""
        if node.depth == DISCONNECTED_DEPTH:
            return None
        hops = []
        ancestor: MeshNode | None = node
        while ancestor is not None and ancestor is not self.root:
            hops.append(ancestor)
            ancestor = ancestor.parent
        return tuple(reversed(hops))

    def find_relay(self, node: MeshNode, sim_time: float) -> MeshNode | None:
        """Return the mesh node that receives an unconnected node best; None if the signal is too weak."""
        best, strongest = None, MIN_USABLE_DBM
        means, gain = node.mean_rssi, node.tx_gain
        for i, receiver in enumerate(node.receivers[:MAX_RECEIVERS]):
            if means[i] + gain + SLOW_FADING_DB < strongest:
                break  # the remaining receivers are weaker even with the best fading
            if (
                receiver.depth != DISCONNECTED_DEPTH
                and (level := self.compute_link_rssi(node, i, sim_time)) >= strongest
            ):
                best, strongest = receiver, level
        return best

    def find_relay_by_mac(self, node: MeshNode, mac: Mac, sim_time: float) -> MeshNode | None:
        """Return the mesh node with MAC `mac` if it has a route and receives `node`, otherwise None."""
        for i, receiver in enumerate(node.receivers):
            if receiver.mac == mac:
                is_received = (
                    receiver.depth != DISCONNECTED_DEPTH
                    and self.compute_link_rssi(node, i, sim_time) >= radio.MIN_AUDIBLE_DBM
                )
                return receiver if is_received else None
        return None

    def join(self, node: MeshNode, sim_time: float) -> bool:
        """Let a node seek a mesh link from now on. Return whether the node has a route to the gateway."""
        node.wants_link = True
        self.reselect_parent(node, sim_time)
        return node.depth != DISCONNECTED_DEPTH

    def leave(self, node: MeshNode) -> None:
        """Remove the mesh link of a node. Its children lose their parent and must select another parent."""
        if node is self.root:
            raise ValueError("the gateway cannot leave its mesh")
        node.wants_link = False
        orphans = self._find_children(node)
        self._set_parent(node, None)
        for orphan in orphans:
            self._set_parent(orphan, None)

    def move(self, node: MeshNode, position: SitePosition, sim_time: float) -> None:
        """Move a leaf of a site with moving devices: find its receivers and, if it seeks a link, its parent.

        The link to its parent breaks if the parent no longer receives the node.
        """
        if self._relay_index is None:
            raise ValueError("the site of this mesh has no moving devices")
        parent = node.parent
        node.position = position
        node.receivers, node.mean_rssi = self._relay_index.find_receivers(
            node, preferred=self._preferred_parents.get(node.mac) if parent is None else parent.mac
        )
        if parent is not None and parent not in node.receivers:
            self._set_parent(node, None)
        self.reselect_parent(node, sim_time)

    def reselect_parent(self, node: MeshNode, sim_time: float) -> bool:
        """Look for a better parent, or for any parent if the node has none.

        Return whether the parent has changed.
        """
        if node is self.root or not node.wants_link:
            return False
        parent = node.parent
        if parent is None or parent.depth == DISCONNECTED_DEPTH or parent.child_count > parent.capacity:
            chosen = self._find_preferred_parent(node, sim_time) or self._find_best_parent(
                node, sim_time, merit=-inf
            )
        else:
            chosen = self._select_parent(node, parent, sim_time)
        if chosen is not parent:
            self._set_parent(node, chosen)
        return chosen is not parent

    def _select_parent(self, node: MeshNode, parent: MeshNode, sim_time: float) -> MeshNode | None:
        """Return the best parent for a node. Margins favor the current parent, to avoid flapping."""
        level = self.compute_link_rssi(node, node.receivers.index(parent), sim_time)
        merit = level - HOP_PENALTY_DB * parent.depth
        if level < MIN_USABLE_DBM:
            fallback = parent if level >= MIN_USABLE_DBM - FADED_SWITCH_MARGIN_DB else None
            return (
                self._find_best_parent(
                    node, sim_time, merit=merit + FADED_SWITCH_MARGIN_DB if fallback else -inf
                )
                or fallback
            )
        if self._preferred_parents.get(node.mac) == parent.mac:
            return parent
        return self._find_best_parent(node, sim_time, merit=merit + SWITCH_MARGIN_DB) or parent

    def _find_preferred_parent(self, node: MeshNode, sim_time: float) -> MeshNode | None:
        """Return the preferred parent of a node, or None if it cannot be the parent now."""
        preferred_mac = self._preferred_parents.get(node.mac)
        if preferred_mac is not None:
            for i, receiver in enumerate(node.receivers):
                if receiver.mac == preferred_mac and self._can_adopt(receiver, node, self._get_height(node)):
                    return receiver if self.compute_link_rssi(node, i, sim_time) >= MIN_USABLE_DBM else None
        return None

    def _find_best_parent(self, node: MeshNode, sim_time: float, *, merit: float) -> MeshNode | None:
        """Return the best new parent for a node, or None if no parent has at least the merit `merit`.

        The merit of a parent is the RSSI in dBm minus the penalty for its hops.
        """
        best, height = None, self._get_height(node)
        for i, receiver in enumerate(node.receivers[:MAX_RECEIVERS]):
            if node.mean_rssi[i] + node.tx_gain + SLOW_FADING_DB < max(merit, MIN_USABLE_DBM):
                break  # the remaining receivers are weaker even with the best fading
            if (
                self._can_adopt(receiver, node, height)
                and (level := self.compute_link_rssi(node, i, sim_time)) >= MIN_USABLE_DBM
            ):
                new_merit = level - HOP_PENALTY_DB * receiver.depth
                if new_merit >= merit:
                    best, merit = receiver, new_merit
        return best

    def _can_adopt(self, receiver: MeshNode, node: MeshNode, height: int) -> bool:
        """Return whether `receiver` may become the parent of `node`, which has `height` levels below it.

        This depends on the depth of the mesh tree and on the children of `receiver`. Loops are not allowed.
        """
        return (
            receiver is not node.parent
            and receiver.depth != DISCONNECTED_DEPTH
            and receiver.depth + 1 + height <= MAX_DEPTH
            and receiver.child_count < receiver.capacity
            and not (node.child_count and is_descendant(receiver, node))
        )

    def _set_parent(self, node: MeshNode, parent: MeshNode | None) -> None:
        """Set or remove the parent of a node, and update the depths of all nodes below the node."""
        if node.parent is not None:
            node.parent.child_count -= 1
        node.parent = parent
        if parent is not None:
            parent.child_count += 1
        node.depth = compute_child_depth(parent)
        for level in self._iterate_levels(node):
            for child in level:
                child.depth = compute_child_depth(child.parent)

    def _iterate_levels(self, node: MeshNode) -> Iterator[list[MeshNode]]:
        """Yield the nodes below a node level by level: its children, their children, and so on."""
        level = self._find_children(node)
        while level:
            yield level
            level = [child for parent in level for child in self._find_children(parent)]

    def _find_children(self, node: MeshNode) -> list[MeshNode]:
        """Return the nodes whose parent is `node`."""
        # Searched, not stored: extenders rarely change parents, and 250,000 lists would need much memory.
        return [child for child in self.nodes.values() if child.parent is node] if node.child_count else []

    def _get_height(self, node: MeshNode) -> int:
        """Return the number of levels of the mesh tree below a node."""
        return sum(1 for _ in self._iterate_levels(node))

    def _index_receivers(self, site: Site) -> None:
        """Find and store the receivers of every node."""
        relays = [node for node in self.nodes.values() if node.role is not NodeRole.LEAF]
        index = ReceiverIndex(relays, site)
        for node in self.nodes.values():
            node.receivers, node.mean_rssi = index.find_receivers(
                node, preferred=self._preferred_parents.get(node.mac)
            )
        root = self.root
        linked_nodes = [
            node
            for node in self.nodes.values()
            if node.wants_link and node is not root and node.mac not in site.movements
        ]
        extenders = [node for node in linked_nodes if node.role is NodeRole.EXTENDER]
        root.receivers, root.mean_rssi = ReceiverIndex(extenders, site).find_receivers(root)
        if not root.receivers:
            root.receivers, root.mean_rssi = ReceiverIndex(linked_nodes, site).find_receivers(root)
        if site.movements:
            self._relay_index = index

    def _join_all(self) -> None:
        """Join all nodes that seek a mesh link: extenders before leaves, preferred parents first."""
        extenders = [
            node for node in self.nodes.values() if node.wants_link and node.role is NodeRole.EXTENDER
        ]
        self._join_nodes(extenders)
        for node in extenders:
            self.reselect_parent(node, 0.0)  # the first extenders had few parents to choose from
        self._join_nodes(
            [node for node in self.nodes.values() if node.wants_link and node.role is NodeRole.LEAF]
        )

    def _join_nodes(self, waiting: list[MeshNode]) -> None:
        """Let the waiting nodes join the mesh, until none of the remaining nodes can join."""
        while any(sum(self.join(node, 0.0) for node in tier) for tier in self._iterate_tiers(waiting)):
            waiting = [node for node in waiting if node.depth == DISCONNECTED_DEPTH]

    def _iterate_tiers(self, waiting: list[MeshNode]) -> Iterator[list[MeshNode]]:
        """Yield the waiting nodes in groups, in the order in which the groups should join the mesh.

        The groups are: nodes whose preferred parent has joined, nodes without a preferred parent, and all
        nodes with a preferred parent.
        """
        preferences = {
            node: self.nodes.get(self._preferred_parents[node.mac])
            for node in waiting
            if node.mac in self._preferred_parents
        }
        yield [
            node
            for node, preferred in preferences.items()
            if preferred and preferred.depth != DISCONNECTED_DEPTH
        ]
        yield [node for node in waiting if node not in preferences]
        yield list(preferences)
