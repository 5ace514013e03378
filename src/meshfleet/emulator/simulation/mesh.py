"""The tree of radio links below one gateway.

Every connected device holds a link to the gateway or to an extender that hears it well enough (gateway-19).
Links fade, so nodes look around from time to time (`reconsider`) and move. A node that is cut off has depth
-1, and so has all that hangs below it, until somebody takes it in again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from math import hypot, inf
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.noise import derive_noise_key
from meshfleet.emulator.simulation.products import DeviceMode, NodeRole
from meshfleet.emulator.simulation.radio import MIN_USABLE_DBM, SLOW_FADING_DB
from meshfleet.emulator.simulation.site import SitePosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.emulator.simulation.site import Site, Walls
    from meshfleet.protocol.ids import Mac


# Who hears whom: for each node the few that matter, found without looking at all of a large site.

MAX_RECEIVERS: Final = 6
"""Of those that hear a node we follow so many; a choice among more would be no better."""

_HOP_METERS: Final = 12.0
"""Metres that a link spans without trouble."""
_RELIABLE_DBM: Final = -86.0
"""dBm that it has then."""


class ReceiverIndex:
    """The nodes that listen, by floor and from west to east, as most of a large site is too far away."""

    def __init__(self, listeners: Iterable[MeshNode], walls: Walls) -> None:
        self._walls = walls
        self._floors: dict[int, tuple[list[MeshNode], list[float]]] = {}
        for node in sorted(listeners, key=_by_x):
            nodes, xs = self._floors.setdefault(node.position.floor, ([], []))
            nodes.append(node)
            xs.append(node.position.x)

    def find_receivers(
        self, node: MeshNode, *, preferred: Mac | None = None
    ) -> tuple[tuple[MeshNode, ...], array[float]]:
        """Who hears a node and how well; a wished parent is among them when it hears the node at all."""
        heard = [
            (level, hearer)
            for hearer in self._iterate_nearby(node.position)
            if hearer is not node
            and (level := radio.estimate_mean_rssi(node.position, hearer.position, self._walls))
            >= radio.MIN_AUDIBLE_DBM
        ]
        heard.sort(key=_by_strength)
        chosen = _select_receivers(heard) if len(heard) > MAX_RECEIVERS else heard
        if preferred is not None and all(hearer.mac != preferred for _, hearer in chosen):
            chosen[-1:] = [each for each in heard if each[1].mac == preferred] or chosen[-1:]
            chosen.sort(key=_by_strength)
        return tuple(hearer for _, hearer in chosen), array("f", [level for level, _ in chosen])

    def _iterate_nearby(self, place: SitePosition) -> Iterator[MeshNode]:
        for floors, reach in _RANGE_BY_FLOOR:
            nodes, xs = self._floors.get(place.floor + floors, _EMPTY_FLOOR)
            for node in nodes[bisect_left(xs, place.x - reach) : bisect_right(xs, place.x + reach)]:
                if abs(node.position.y - place.y) <= reach:
                    yield node


_RANGE_BY_FLOOR: Final = tuple(
    (floors, radio.compute_range(abs(floors) * radio.FLOOR_LOSS_DB)) for floors in (0, -1, 1)
)
"""Two floors away nobody is heard."""

_EMPTY_FLOOR: Final[tuple[list[MeshNode], list[float]]] = ([], [])


def _by_x(node: MeshNode) -> float:
    return node.position.x


def _by_strength(heard: tuple[float, MeshNode]) -> float:
    return -heard[0]


def _select_receivers(heard: list[tuple[float, MeshNode]]) -> list[tuple[float, MeshNode]]:
    """Half of them the strongest, and half on the way home: a crowd would know only itself."""
    half = MAX_RECEIVERS // 2
    homeward = sorted((each for each in heard[half:] if each[0] >= _RELIABLE_DBM), key=_by_hops_to_gateway)[
        :half
    ]
    rest = [each for each in heard[half:] if each not in homeward]
    return sorted(heard[:half] + homeward + rest[: half - len(homeward)], key=_by_strength)


def _by_hops_to_gateway(heard: tuple[float, MeshNode]) -> float:
    place = heard[1].position
    return hypot(place.x, place.y) / _HOP_METERS + abs(place.floor)


# A place in the tree of a mesh.

MAX_CHILDREN: Final = 18
"""gateway-18."""

DISCONNECTED_DEPTH: Final = -1
"""The depth of what hangs on nobody."""

NO_RSSI: Final = array("f")


class MeshNode:
    """A place in the tree. There may be 250,000 in a process."""

    __slots__ = (
        "capacity",
        "child_count",
        "depth",
        "mac",
        "mean_rssi",
        "noise_key",
        "parent",
        "position",
        "receivers",
        "role",
        "tx_gain",
        "wants_link",
    )

    def __init__(self, mac: Mac, role: NodeRole, position: SitePosition, *, noise_key: int) -> None:
        self.mac = mac
        self.role = role
        self.position = position
        self.noise_key = noise_key
        self.capacity = 0 if role is NodeRole.LEAF else MAX_CHILDREN
        """Children it may have."""
        self.tx_gain = 0.0
        """dB by which it sends louder than usual."""
        self.wants_link = False
        """Whether it holds or wants a link."""
        self.parent: MeshNode | None = None
        self.child_count = 0
        self.depth = DISCONNECTED_DEPTH
        self.receivers: tuple[MeshNode, ...] = ()
        """Who may hear it, the strongest on average first."""
        self.mean_rssi: array[float] = NO_RSSI
        """The mean RSSI at each of them, without gain."""

    def __repr__(self) -> str:
        return f"<{self.role.name.lower()} {self.mac} at depth {self.depth}>"


MAX_DEPTH: Final = 11
"""gateway-17."""

SWITCH_MARGIN_DB: Final = 8.0
"""dB by which another parent must be better before a sound link is given up."""

FADED_SWITCH_MARGIN_DB: Final = 3.0
"""The same for a link that has faded, and how far it may fade below what is usable before it breaks."""

HOP_PENALTY_DB: Final = 3.0
"""dB that a parent must be heard better to make up for another hop, which costs time and may lose packets."""

_MIN_READING_DBM, _MAX_READING_DBM = -127, -20
"""What a reading can say."""


class SimulatedMesh:
    """All nodes of a site. Those in connected mode have joined as far as they could, at t = 0."""

    __slots__ = ("_preferred_parents", "nodes", "root")

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
        """Parents that the site asks for, by the node that shall have them."""
        for fixture in site.devices:
            node = MeshNode(
                fixture.mac,
                fixture.product.role,
                fixture.position,
                noise_key=derive_noise_key(site.seed, fixture.mac),
            )
            node.wants_link = fixture.mode is DeviceMode.CONNECTED
            self.nodes[node.mac] = node
            if fixture.parent is not None:
                self._preferred_parents[node.mac] = fixture.parent
        self._index_receivers(site.walls)
        self._join_all()

    def link_rssi(self, node: MeshNode, i: int, t: float) -> float:
        """How well its i-th hearer hears a node now, in dBm."""
        return (
            node.mean_rssi[i]
            + node.tx_gain
            + radio.slow_fading(node.noise_key ^ node.receivers[i].noise_key, t)
        )

    def measure_rssi(self, node: MeshNode, i: int, t: float, n: int) -> int:
        """The same as its n-th reading has it."""
        pair = node.noise_key ^ node.receivers[i].noise_key
        level = round(
            node.mean_rssi[i] + node.tx_gain + radio.slow_fading(pair, t) + radio.fast_fading(pair, n)
        )
        return _MIN_READING_DBM if level < _MIN_READING_DBM else min(level, _MAX_READING_DBM)

    def find_route(self, node: MeshNode) -> tuple[MeshNode, ...] | None:
        """The way from below the gateway down to a node; None while it is cut off."""
        if node.depth == DISCONNECTED_DEPTH:
            return None
        way = []
        above: MeshNode | None = node
        while above is not None and above is not self.root:
            way.append(above)
            above = above.parent
        return tuple(reversed(way))

    def find_relay(self, node: MeshNode, t: float) -> MeshNode | None:
        """The node of the tree through which an unconnected one is reached best now."""
        best, strongest = None, MIN_USABLE_DBM
        means, gain = node.mean_rssi, node.tx_gain
        for i, hearer in enumerate(node.receivers):
            if means[i] + gain + SLOW_FADING_DB < strongest:
                break  # the others are weaker still, however lucky
            if hearer.depth != DISCONNECTED_DEPTH and (level := self.link_rssi(node, i, t)) >= strongest:
                best, strongest = hearer, level
        return best

    def find_relay_by_mac(self, node: MeshNode, mac: Mac, t: float) -> MeshNode | None:
        """The node with this MAC, when it is in the tree and hears the other one at all."""
        for i, hearer in enumerate(node.receivers):
            if hearer.mac == mac:
                heard = (
                    hearer.depth != DISCONNECTED_DEPTH and self.link_rssi(node, i, t) >= radio.MIN_AUDIBLE_DBM
                )
                return hearer if heard else None
        return None

    def join(self, node: MeshNode, t: float) -> bool:
        """Let a node want a link from now on; whether it has one already."""
        node.wants_link = True
        self.reselect_parent(node, t)
        return node.depth != DISCONNECTED_DEPTH

    def leave(self, node: MeshNode) -> None:
        """Let a node want no link any more. Those that hung on it are orphans and have to reconsider."""
        if node is self.root:
            raise ValueError("the gateway is the tree")
        node.wants_link = False
        orphans = self._children(node)
        self._set_parent(node, None)
        for orphan in orphans:
            self._set_parent(orphan, None)

    def reselect_parent(self, node: MeshNode, t: float) -> bool:
        """Let a node look for a better parent, or for any; whether its parent is another one now."""
        if node is self.root or not node.wants_link:
            return False
        parent = node.parent
        if parent is None or parent.depth == DISCONNECTED_DEPTH or parent.child_count > parent.capacity:
            chosen = self._find_preferred_parent(node, t) or self._find_best_parent(node, t, merit=-inf)
        else:
            chosen = self._select_parent(node, parent, t)
        if chosen is not parent:
            self._set_parent(node, chosen)
        return chosen is not parent

    def _select_parent(self, node: MeshNode, parent: MeshNode, t: float) -> MeshNode | None:
        """The parent that a node should have: mostly the one it has, so that nobody runs to and fro."""
        level = self.link_rssi(node, node.receivers.index(parent), t)
        merit = level - HOP_PENALTY_DB * parent.depth
        if level < MIN_USABLE_DBM:
            kept = parent if level >= MIN_USABLE_DBM - FADED_SWITCH_MARGIN_DB else None
            return (
                self._find_best_parent(node, t, merit=merit + FADED_SWITCH_MARGIN_DB if kept else -inf)
                or kept
            )
        if self._preferred_parents.get(node.mac) == parent.mac:
            return parent
        return self._find_best_parent(node, t, merit=merit + SWITCH_MARGIN_DB) or parent

    def _find_preferred_parent(self, node: MeshNode, t: float) -> MeshNode | None:
        """The parent that the site wants a node to have, if that is possible now."""
        wish = self._preferred_parents.get(node.mac)
        if wish is not None:
            for i, hearer in enumerate(node.receivers):
                if hearer.mac == wish and self._can_adopt(hearer, node, self._height(node)):
                    return hearer if self.link_rssi(node, i, t) >= MIN_USABLE_DBM else None
        return None

    def _find_best_parent(self, node: MeshNode, t: float, *, merit: float) -> MeshNode | None:
        """The best other node that can take in this one with its subtree, if it is as good as that."""
        best, height = None, self._height(node)
        for i, hearer in enumerate(node.receivers):
            if node.mean_rssi[i] + node.tx_gain + SLOW_FADING_DB < max(merit, MIN_USABLE_DBM):
                break  # the others are weaker still, however lucky
            if (
                self._can_adopt(hearer, node, height)
                and (level := self.link_rssi(node, i, t)) >= MIN_USABLE_DBM
            ):
                worth = level - HOP_PENALTY_DB * hearer.depth
                if worth >= merit:
                    best, merit = hearer, worth
        return best

    def _can_adopt(self, hearer: MeshNode, node: MeshNode, height: int) -> bool:
        """Whether the limits of the tree allow a move."""
        return (
            hearer is not node.parent
            and hearer.depth != DISCONNECTED_DEPTH
            and hearer.depth + 1 + height <= MAX_DEPTH
            and hearer.child_count < hearer.capacity
            and not (node.child_count and _is_descendant(hearer, node))
        )

    def _set_parent(self, node: MeshNode, parent: MeshNode | None) -> None:
        """Give a node another parent, or none; the depths below it follow."""
        if node.parent is not None:
            node.parent.child_count -= 1
        node.parent = parent
        if parent is not None:
            parent.child_count += 1
        node.depth = _child_depth(parent)
        for level in self._levels(node):
            for each in level:
                each.depth = _child_depth(each.parent)

    def _levels(self, node: MeshNode) -> Iterator[list[MeshNode]]:
        """What hangs below a node: its children, their children, and so on."""
        level = self._children(node)
        while level:
            yield level
            level = [each for parent in level for each in self._children(parent)]

    def _children(self, node: MeshNode) -> list[MeshNode]:
        # Looked for, not kept: extenders move rarely, and a list for each of 250,000 nodes is dear.
        return [each for each in self.nodes.values() if each.parent is node] if node.child_count else []

    def _height(self, node: MeshNode) -> int:
        return sum(1 for _ in self._levels(node))

    def _index_receivers(self, walls: Walls) -> None:
        """Find out who hears whom."""
        relays = [node for node in self.nodes.values() if node.role is not NodeRole.LEAF]
        ears = ReceiverIndex(relays, walls)
        for node in self.nodes.values():
            node.receivers, node.mean_rssi = ears.find_receivers(
                node, preferred=self._preferred_parents.get(node.mac)
            )
        root = self.root
        present = [node for node in self.nodes.values() if node.wants_link and node is not root]
        extenders = [node for node in present if node.role is NodeRole.EXTENDER]
        root.receivers, root.mean_rssi = ReceiverIndex(extenders, walls).find_receivers(root)
        if not root.receivers:
            root.receivers, root.mean_rssi = ReceiverIndex(present, walls).find_receivers(root)

    def _join_all(self) -> None:
        """Join all who want to: extenders before leaves, and wishes before the rest."""
        extenders = [
            node for node in self.nodes.values() if node.wants_link and node.role is NodeRole.EXTENDER
        ]
        self._join_nodes(extenders)
        for node in extenders:
            self.reselect_parent(node, 0.0)  # the first had little choice
        self._join_nodes(
            [node for node in self.nodes.values() if node.wants_link and node.role is NodeRole.LEAF]
        )

    def _join_nodes(self, waiting: list[MeshNode]) -> None:
        """Join nodes until nobody can be joined any more."""
        while any(sum(self.join(node, 0.0) for node in tier) for tier in self._tiers(waiting)):
            waiting = [node for node in waiting if node.depth == DISCONNECTED_DEPTH]

    def _tiers(self, waiting: list[MeshNode]) -> Iterator[list[MeshNode]]:
        """Who comes first: those whose wish may be granted, those without one, those without hope."""
        wishes = {
            node: self.nodes.get(self._preferred_parents[node.mac])
            for node in waiting
            if node.mac in self._preferred_parents
        }
        yield [node for node, wish in wishes.items() if wish and wish.depth != DISCONNECTED_DEPTH]
        yield [node for node in waiting if node not in wishes]
        yield list(wishes)


def _child_depth(parent: MeshNode | None) -> int:
    return DISCONNECTED_DEPTH if parent is None or parent.depth == DISCONNECTED_DEPTH else parent.depth + 1


def _is_descendant(node: MeshNode, above: MeshNode) -> bool:
    """Whether one node is another, or hangs below it."""
    at: MeshNode | None = node
    while at is not None and at is not above:
        at = at.parent
    return at is above
