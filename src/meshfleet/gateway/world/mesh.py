"""The tree of radio links below one gateway.

Every connected device holds a link to the gateway or to an extender that hears it well enough (gateway-19).
Links fade, so nodes look around from time to time (`reconsider`) and move. A node that is cut off has depth
-1, and so has all that hangs below it, until somebody takes it in again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world import radio
from meshfleet.gateway.world.hearing import Ears
from meshfleet.gateway.world.node import CUT_OFF, Node
from meshfleet.gateway.world.noise import key_of
from meshfleet.gateway.world.places import Place
from meshfleet.gateway.world.products import Mode, Role
from meshfleet.gateway.world.radio import SLOW, USABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.gateway.world.places import Walls
    from meshfleet.gateway.world.site import Site
    from meshfleet.wire.ids import Mac

MAX_DEPTH: Final = 11
"""gateway-17."""

WORTH_MOVING: Final = 8.0
"""dB by which another parent must be better before a sound link is given up."""

WORTH_FLEEING: Final = 3.0
"""The same for a link that has faded, and how far it may fade below what is usable before it breaks."""

PER_HOP: Final = 3.0
"""dB that a parent must be heard better to make up for another hop, which costs time and may lose packets."""

_WEAKEST, _LOUDEST = -127, -20
"""What a reading can say."""


class Mesh:
    """All nodes of a site. Those in connected mode have joined as far as they could, at t = 0."""

    __slots__ = ("_wishes", "nodes", "root")

    def __init__(self, site: Site) -> None:
        self.root = Node(site.gateway, Role.GATEWAY, Place(0, 0.0, 0.0), key=key_of(site.seed, site.gateway))
        self.root.joined, self.root.depth = True, 0
        self.nodes: dict[Mac, Node] = {site.gateway: self.root}
        self._wishes: dict[Mac, Mac] = {}
        """Parents that the site asks for, by the node that shall have them."""
        for fixture in site.devices:
            node = Node(fixture.mac, fixture.product.role, fixture.place, key=key_of(site.seed, fixture.mac))
            node.joined = fixture.mode is Mode.CONNECTED
            self.nodes[node.mac] = node
            if fixture.parent is not None:
                self._wishes[node.mac] = fixture.parent
        self._listen(site.walls)
        self._gather()

    def rssi(self, node: Node, i: int, t: float) -> float:
        """How well its i-th hearer hears a node now, in dBm."""
        return node.means[i] + node.gain + radio.slow(node.key ^ node.hearers[i].key, t)

    def reading(self, node: Node, i: int, t: float, n: int) -> int:
        """The same as its n-th reading has it."""
        pair = node.key ^ node.hearers[i].key
        level = round(node.means[i] + node.gain + radio.slow(pair, t) + radio.fast(pair, n))
        return _WEAKEST if level < _WEAKEST else min(level, _LOUDEST)

    def route(self, node: Node) -> tuple[Node, ...] | None:
        """The way from below the gateway down to a node; None while it is cut off."""
        if node.depth == CUT_OFF:
            return None
        way = []
        above: Node | None = node
        while above is not None and above is not self.root:
            way.append(above)
            above = above.parent
        return tuple(reversed(way))

    def reacher(self, node: Node, t: float) -> Node | None:
        """The node of the tree through which an unconnected one is reached best now."""
        best, strongest = None, USABLE
        means, gain = node.means, node.gain
        for i, hearer in enumerate(node.hearers):
            if means[i] + gain + SLOW < strongest:
                break  # the others are weaker still, however lucky
            if hearer.depth != CUT_OFF and (level := self.rssi(node, i, t)) >= strongest:
                best, strongest = hearer, level
        return best

    def reacher_named(self, node: Node, mac: Mac, t: float) -> Node | None:
        """The node with this MAC, when it is in the tree and hears the other one at all."""
        for i, hearer in enumerate(node.hearers):
            if hearer.mac == mac:
                heard = hearer.depth != CUT_OFF and self.rssi(node, i, t) >= radio.HEARD
                return hearer if heard else None
        return None

    def join(self, node: Node, t: float) -> bool:
        """Let a node want a link from now on; whether it has one already."""
        node.joined = True
        self.reconsider(node, t)
        return node.depth != CUT_OFF

    def leave(self, node: Node) -> None:
        """Let a node want no link any more. Those that hung on it are orphans and have to reconsider."""
        if node is self.root:
            raise ValueError("the gateway is the tree")
        node.joined = False
        orphans = self._children(node)
        self._hang(node, None)
        for orphan in orphans:
            self._hang(orphan, None)

    def reconsider(self, node: Node, t: float) -> bool:
        """Let a node look for a better parent, or for any; whether its parent is another one now."""
        if node is self.root or not node.joined:
            return False
        parent = node.parent
        if parent is None or parent.depth == CUT_OFF or parent.children > parent.capacity:
            chosen = self._wished(node, t) or self._best(node, t, merit=-inf)
        else:
            chosen = self._better(node, parent, t)
        if chosen is not parent:
            self._hang(node, chosen)
        return chosen is not parent

    def _better(self, node: Node, parent: Node, t: float) -> Node | None:
        """The parent that a node should have: mostly the one it has, so that nobody runs to and fro."""
        level = self.rssi(node, node.hearers.index(parent), t)
        merit = level - PER_HOP * parent.depth
        if level < USABLE:
            kept = parent if level >= USABLE - WORTH_FLEEING else None
            return self._best(node, t, merit=merit + WORTH_FLEEING if kept else -inf) or kept
        if self._wishes.get(node.mac) == parent.mac:
            return parent
        return self._best(node, t, merit=merit + WORTH_MOVING) or parent

    def _wished(self, node: Node, t: float) -> Node | None:
        """The parent that the site wants a node to have, if that is possible now."""
        wish = self._wishes.get(node.mac)
        if wish is not None:
            for i, hearer in enumerate(node.hearers):
                if hearer.mac == wish and self._takes(hearer, node, self._height(node)):
                    return hearer if self.rssi(node, i, t) >= USABLE else None
        return None

    def _best(self, node: Node, t: float, *, merit: float) -> Node | None:
        """The best other node that can take in this one with its subtree, if it is as good as that."""
        best, height = None, self._height(node)
        for i, hearer in enumerate(node.hearers):
            if node.means[i] + node.gain + SLOW < max(merit, USABLE):
                break  # the others are weaker still, however lucky
            if self._takes(hearer, node, height) and (level := self.rssi(node, i, t)) >= USABLE:
                worth = level - PER_HOP * hearer.depth
                if worth >= merit:
                    best, merit = hearer, worth
        return best

    def _takes(self, hearer: Node, node: Node, height: int) -> bool:
        """Whether the limits of the tree allow a move."""
        return (
            hearer is not node.parent
            and hearer.depth != CUT_OFF
            and hearer.depth + 1 + height <= MAX_DEPTH
            and hearer.children < hearer.capacity
            and not (node.children and _hangs_below(hearer, node))
        )

    def _hang(self, node: Node, parent: Node | None) -> None:
        """Give a node another parent, or none; the depths below it follow."""
        if node.parent is not None:
            node.parent.children -= 1
        node.parent = parent
        if parent is not None:
            parent.children += 1
        node.depth = _below(parent)
        for level in self._levels(node):
            for each in level:
                each.depth = _below(each.parent)

    def _levels(self, node: Node) -> Iterator[list[Node]]:
        """What hangs below a node: its children, their children, and so on."""
        level = self._children(node)
        while level:
            yield level
            level = [each for parent in level for each in self._children(parent)]

    def _children(self, node: Node) -> list[Node]:
        # Looked for, not kept: extenders move rarely, and a list for each of 250,000 nodes is dear.
        return [each for each in self.nodes.values() if each.parent is node] if node.children else []

    def _height(self, node: Node) -> int:
        return sum(1 for _ in self._levels(node))

    def _listen(self, walls: Walls) -> None:
        """Find out who hears whom."""
        relays = [node for node in self.nodes.values() if node.role is not Role.LEAF]
        ears = Ears(relays, walls)
        for node in self.nodes.values():
            node.hearers, node.means = ears.of(node, wished=self._wishes.get(node.mac))
        root = self.root
        present = [node for node in self.nodes.values() if node.joined and node is not root]
        extenders = [node for node in present if node.role is Role.EXTENDER]
        root.hearers, root.means = Ears(extenders, walls).of(root)
        if not root.hearers:
            root.hearers, root.means = Ears(present, walls).of(root)

    def _gather(self) -> None:
        """Join all who want to: extenders before leaves, and wishes before the rest."""
        extenders = [node for node in self.nodes.values() if node.joined and node.role is Role.EXTENDER]
        self._take_in(extenders)
        for node in extenders:
            self.reconsider(node, 0.0)  # the first had little choice
        self._take_in([node for node in self.nodes.values() if node.joined and node.role is Role.LEAF])

    def _take_in(self, waiting: list[Node]) -> None:
        """Join nodes until nobody can be joined any more."""
        while any(sum(self.join(node, 0.0) for node in tier) for tier in self._tiers(waiting)):
            waiting = [node for node in waiting if node.depth == CUT_OFF]

    def _tiers(self, waiting: list[Node]) -> Iterator[list[Node]]:
        """Who comes first: those whose wish may be granted, those without one, those without hope."""
        wishes = {
            node: self.nodes.get(self._wishes[node.mac]) for node in waiting if node.mac in self._wishes
        }
        yield [node for node, wish in wishes.items() if wish and wish.depth != CUT_OFF]
        yield [node for node in waiting if node not in wishes]
        yield list(wishes)


def _below(parent: Node | None) -> int:
    return CUT_OFF if parent is None or parent.depth == CUT_OFF else parent.depth + 1


def _hangs_below(node: Node, above: Node) -> bool:
    """Whether one node is another, or hangs below it."""
    at: Node | None = node
    while at is not None and at is not above:
        at = at.parent
    return at is above
