"""Builds the tree of a mesh from the links that its gateway reported. Pure, and nearly linear in the links.

1. From the gateway, established links lead to the next nodes, hop by hop. So the direction of a link follows
   from the distance to the gateway, and links that go round in circles cannot trap anything.
2. Devices without an established link hang on the node with the best signal that has a path.
3. What is left was heard, but has no path: orphans.
4. A node cuts off what it dominates, in the graph of all links that are good enough to take over.
"""

from __future__ import annotations

from collections.abc import Mapping  # msgspec reads it
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.rest.topology import SIGNAL_CLASSES
from meshfleet.service.ingest.recent_links import LinkState  # msgspec reads it
from meshfleet.service.topology.dominators import count_dominated
from meshfleet.service.topology.link_choice import STAY_DB, LinkChoice

if TYPE_CHECKING:
    from collections.abc import Iterable

_MIN_ALTERNATIVE_DBM: Final = SIGNAL_CLASSES["weak"]
"""Lowest signal at which another parent can take over a device whose parent has failed."""


class HeardDevice(Struct, gc=False):
    """Device of a gateway that was heard recently."""

    device: int
    choice: LinkChoice
    known_parent: int | None = None
    """Parent of the device until now; it stays the parent as long as its link is established."""
    rate: float = 0.0
    """RSSI readings and heartbeats per minute."""


class TreeNode(Struct, gc=False):
    """Node of a mesh."""

    device: int
    parent: int | None = None
    depth: int | None = None
    """Hops to the gateway; None for an orphan."""
    link: LinkState | None = None
    """Link to the parent; without a parent, the newest reading of the node, if there is one."""
    children: int = 0
    descendants: int = 0
    cuts_off: int = 0
    load: float = 0.0


class Tree(Struct):
    """Mesh of a gateway at one time."""

    gateway: int
    nodes: dict[int, TreeNode]
    choices: Mapping[int, LinkChoice]
    """Links of the devices by device."""

    def has_path_without(self, node: int, avoided: int) -> bool:
        """Return whether a node has a path to the gateway that does not lead through another node."""
        found = self.nodes.get(node)
        while found is not None and found.depth is not None and found.device != avoided:
            if found.parent is None:
                return True
            found = self.nodes.get(found.parent)
        return False


def build_tree(gateway: int, devices: Iterable[HeardDevice]) -> Tree:
    """Build the mesh of a gateway from the devices that belong to it."""
    heard = {each.device: each for each in devices if each.device != gateway}
    builder = _TreeBuilder(gateway, heard)
    builder.attach_established([gateway])
    builder.attach_heard()
    builder.add_orphans()
    _count_descendants(builder.nodes, heard)
    _count_cut_off(gateway, builder.nodes, heard)
    return Tree(gateway, builder.nodes, {each.device: each.choice for each in heard.values()})


class _TreeBuilder:
    """Attaches devices to the tree, the nearest to the gateway first."""

    def __init__(self, gateway: int, heard: Mapping[int, HeardDevice]) -> None:
        self._heard = heard
        self.nodes = {gateway: TreeNode(gateway, depth=0)}
        self._linked: dict[int, list[int]] = {}
        """Devices by the parents with which they have an established link."""
        self._audible: dict[int, list[int]] = {}
        """Devices without an established link by the parents that hear them."""
        for device, each in heard.items():
            choice = each.choice
            index, parents = (
                (self._linked, choice.established) if choice.established else (self._audible, choice.usable)
            )
            for parent in parents:
                index.setdefault(parent, []).append(device)

    def attach_established(self, level: list[int]) -> list[int]:
        """Attach all devices that established links connect to the nodes of `level`. Return the new nodes."""
        attached: list[int] = []
        deferred: dict[int, int] = {}
        while level:
            level = self._attach_level(level, deferred)
            if not level:  # parents that stay are preferred, but only if they have a path
                left = {device: parent for device, parent in deferred.items() if device not in self.nodes}
                for device, parent in left.items():
                    self._attach(device, parent)
                level = list(left)
                deferred.clear()
            attached += level
        return attached

    def _attach_level(self, level: list[int], deferred: dict[int, int]) -> list[int]:
        """Attach the devices one hop below the nodes of `level`. Return them.

        Devices that prefer another parent are added to `deferred`, with the first parent that was found.
        """
        found: dict[int, int] = {}
        for parent in level:
            for device in self._linked.get(parent, ()):
                if device in self.nodes:
                    continue
                if self._prefers_other(device, parent):
                    deferred.setdefault(device, parent)
                elif device not in found or self._is_newer(device, parent, found[device]):
                    found[device] = parent
        for device, parent in found.items():
            self._attach(device, parent)
        return list(found)

    def attach_heard(self) -> None:
        """Attach devices without an established link to the best node with a path that hears them."""
        heap = [
            (-self._score(device, parent), device, parent)
            for parent in self.nodes
            for device in self._audible.get(parent, ())
        ]
        heapify(heap)
        while heap:
            _, device, parent = heappop(heap)
            if device in self.nodes:
                continue
            self._attach(device, parent)
            for node in (device, *self.attach_established([device])):
                for each in self._audible.get(node, ()):
                    if each not in self.nodes:
                        heappush(heap, (-self._score(each, node), each, node))

    def add_orphans(self) -> None:
        """Add the devices without a path. Their parents are also orphans, and never lead in a circle."""
        orphans = [device for device in self._heard if device not in self.nodes]
        roots: dict[int, int] = {}
        for device in orphans:
            choice = self._heard[device].choice
            parents = choice.established or tuple(choice.usable)
            parent = max(parents, key=lambda each: choice.usable[each].seen_at, default=None)
            if parent is not None and _find_root(roots, parent) == device:
                parent = None
            self.nodes[device] = TreeNode(
                device, parent, link=choice.newest if parent is None else choice.usable[parent]
            )
            if parent is not None:
                roots[device] = _find_root(roots, parent)
        for device in orphans:
            parent = self.nodes[device].parent
            if parent is not None and parent not in self.nodes:  # a node that no gateway has reported itself
                self.nodes[parent] = TreeNode(parent)

    def _attach(self, device: int, parent: int) -> None:
        depth = self.nodes[parent].depth
        assert depth is not None  # noqa: S101 # only nodes with a path get devices
        link = self._heard[device].choice.usable[parent]
        self.nodes[device] = TreeNode(device, parent, depth + 1, link)

    def _prefers_other(self, device: int, parent: int) -> bool:
        """Return whether the known parent of a device is another one, and its link is still established."""
        each = self._heard[device]
        return each.known_parent not in {None, parent} and each.known_parent in each.choice.established

    def _is_newer(self, device: int, parent: int, other: int) -> bool:
        usable = self._heard[device].choice.usable
        one, two = usable[parent], usable[other]
        return (one.linked_at, one.rssi) > (two.linked_at, two.rssi)

    def _score(self, device: int, parent: int) -> float:
        each = self._heard[device]
        return each.choice.scores[parent] + (STAY_DB if parent == each.known_parent else 0)


def _find_root(roots: dict[int, int], node: int) -> int:
    """Return the end of the chain of parents of an orphan, and shorten the chain."""
    path = []
    while (above := roots.get(node)) is not None:
        path.append(node)
        node = above
    for each in path:
        roots[each] = node
    return node


def _count_descendants(nodes: Mapping[int, TreeNode], heard: Mapping[int, HeardDevice]) -> None:
    """Set the number of children and descendants and the load of all nodes, from the leaves up."""
    open_children = dict.fromkeys(nodes, 0)
    for node in nodes.values():
        node.load = heard[node.device].rate if node.device in heard else 0.0
        if node.parent is not None:
            nodes[node.parent].children += 1
            open_children[node.parent] += 1
    ready = [node for node in nodes.values() if not open_children[node.device]]
    while ready:
        node = ready.pop()
        if node.parent is None:
            continue
        above = nodes[node.parent]
        above.descendants += 1 + node.descendants
        above.load += node.load
        open_children[above.device] -= 1
        if not open_children[above.device]:
            ready.append(above)


def _count_cut_off(gateway: int, nodes: Mapping[int, TreeNode], heard: Mapping[int, HeardDevice]) -> None:
    """Set how many devices lose their way if a node fails.

    The root of the graph is the outside: a device that nodes of another gateway hear does not depend on this
    gateway.
    """
    reached = [node for node in nodes.values() if node.depth is not None]
    indexes = {node.device: index for index, node in enumerate(reached, 1)}
    successors: list[list[int]] = [[] for _ in range(len(reached) + 1)]
    successors[0].append(indexes[gateway])
    for device, index in indexes.items():
        if (each := heard.get(device)) is None:
            continue
        for parent, link in each.choice.usable.items():
            if not (
                parent == nodes[device].parent
                or parent in each.choice.established
                or link.mean >= _MIN_ALTERNATIVE_DBM
            ):
                continue
            if parent in indexes:
                successors[indexes[parent]].append(index)
            elif link.gateway != gateway:
                successors[0].append(index)
    for node, count in zip(reached, count_dominated(successors)[1:], strict=True):
        node.cuts_off = count
