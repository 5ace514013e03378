"""Builds the REST bodies of topologies and paths from trees. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.protocol.ids import DeviceId, mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.topology import (
    AlternativeParent,
    DevicePath,
    Hop,
    SinglePoint,
    Topology,
    TopologyNode,
    WeakLink,
    classify_signal,
)
from meshfleet.service.ingest.recent_links import HEARTBEATS

if TYPE_CHECKING:
    from meshfleet.service.ingest.recent_links import LinkState
    from meshfleet.service.topology.tree import Tree, TreeNode


def build_topology(tree: Tree, at: int) -> Topology:
    """Build the REST body of a topology."""
    nodes = [_build_node(each) for each in sorted(tree.nodes.values(), key=_get_order)]
    weak_links = [
        WeakLink(device=each.device, parent=each.parent, rssi=each.rssi, signal=each.signal)
        for each in sorted(nodes, key=lambda node: node.rssi or 0)
        if each.parent is not None
        and each.rssi is not None
        and each.signal in {"weak", "very-weak"}
        and not each.orphan
    ]
    single_points = [
        SinglePoint(device=each.device, cuts_off=each.cuts_off)
        for each in sorted(nodes, key=lambda node: -node.cuts_off)
        if each.cuts_off and each.depth
    ]
    return Topology(
        gateway=mac_from_int(tree.gateway),
        at=format_millis(at),
        nodes=nodes,
        weak_links=weak_links,
        orphans=[each.device for each in nodes if each.orphan],
        single_points=single_points,
    )


def build_path(tree: Tree, device: int, now: int) -> DevicePath:
    """Build the REST body of the way of a device to the gateway of a tree."""
    hops: list[Hop] = []
    node = tree.nodes.get(device)
    alternatives = [] if node is None else _list_alternatives(tree, node)
    while node is not None and node.parent is not None and node.link is not None:
        hops.append(_build_hop(node.device, node.parent, node.link, now))
        node = tree.nodes.get(node.parent)
    return DevicePath(
        device=_to_device_id(device),
        gateway=mac_from_int(tree.gateway),
        at=format_millis(now),
        complete=node is not None and node.device == tree.gateway,
        hops=hops,
        alternatives=alternatives,
    )


def build_unknown_path(device: int, now: int) -> DevicePath:
    """Build the REST body of the path of a device that was not heard recently."""
    return DevicePath(
        device=_to_device_id(device),
        gateway=None,
        at=format_millis(now),
        complete=False,
        hops=[],
        alternatives=[],
    )


def _list_alternatives(tree: Tree, node: TreeNode) -> list[AlternativeParent]:
    """Return the other parents of a device, those with a path first, then the best signal first."""
    choice = tree.choices.get(node.device)
    if choice is None:
        return []
    present = choice.usable.get(node.parent) if node.parent is not None else None
    found = []
    for parent, link in choice.usable.items():
        if parent in {node.parent, HEARTBEATS}:
            continue
        is_here = parent in tree.nodes
        above = tree.nodes[parent].depth if is_here else None
        found.append(
            AlternativeParent(
                parent=mac_from_int(parent),
                gateway=mac_from_int(link.gateway),
                rssi=link.rssi,
                signal=classify_signal(link.rssi),
                seen_at=format_millis(link.seen_at),
                difference=None if present is None else round(link.mean - present.mean, 1),
                # A node that another gateway has just reported has a path there.
                has_path=tree.has_path_without(parent, node.device)
                if is_here
                else link.gateway != tree.gateway,
                depth=None if above is None else above + 1,
            )
        )
    return sorted(found, key=lambda each: (not each.has_path, -each.rssi))


def _get_order(node: TreeNode) -> tuple[bool, int, int]:
    return node.depth is None, node.depth or 0, node.device


def _build_node(node: TreeNode) -> TopologyNode:
    link = node.link
    rssi = None if link is None or not link.rssi else link.rssi
    return TopologyNode(
        device=_to_device_id(node.device),
        parent=None if node.parent is None else mac_from_int(node.parent),
        depth=node.depth,
        rssi=rssi,
        seen_at=None if link is None else format_millis(link.seen_at),
        children=node.children,
        descendants=node.descendants,
        signal=None if rssi is None else classify_signal(rssi),
        orphan=node.depth is None,
        cuts_off=node.cuts_off,
        load=round(node.load, 2),
    )


def _build_hop(device: int, parent: int, link: LinkState, now: int) -> Hop:
    return Hop(
        device=_to_device_id(device),
        parent=mac_from_int(parent),
        rssi=link.rssi,
        signal=classify_signal(link.rssi),
        seen_at=format_millis(link.seen_at),
        age=round(max(now - link.seen_at, 0) / 1000, 1),
    )


def _to_device_id(device: int) -> DeviceId:
    return DeviceId(f"bmac-{device:012x}")
