"""The tree of a mesh, built from links."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.ingest.recent_links import HEARTBEATS, LinkState
from meshfleet.service.topology.dominators import count_dominated
from meshfleet.service.topology.link_choice import choose_links
from meshfleet.service.topology.tree import HeardDevice, build_tree
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.topology.tree import Tree

NOW = 1_700_000_000_000
MINUTE = 60_000
G, H = 1, 2
"""Gateways."""


def linked(rssi: float = -60, *, age: int = 0, gateway: int = G, unreachable: bool = False) -> LinkState:
    """Build an established link whose last reading is `age` milliseconds old."""
    at = NOW - age
    return LinkState(gateway, at, int(rssi), rssi, unreachable=unreachable, linked_at=at, count=1)


def heard(rssi: float = -60, *, age: int = 0, gateway: int = G, unreachable: bool = False) -> LinkState:
    """Build a link of which only advertisements were heard."""
    return LinkState(gateway, NOW - age, int(rssi), rssi, unreachable=unreachable, linked_at=0, count=1)


def grow(devices: Mapping[int, Mapping[int, LinkState]], known: Mapping[int, int] | None = None) -> Tree:
    """Build the tree of gateway G from the links of devices by parent, with known parents."""
    found = []
    for device, links in devices.items():
        choice = choose_links(device, dict(links), now=NOW, interval=MINUTE)
        if choice is not None and choice.home == G:
            found.append(HeardDevice(device, choice, (known or {}).get(device), rate=1.0))
    return build_tree(G, found)


def shape(tree: Tree) -> dict[int, tuple[int | None, int | None]]:
    """Return the parent and the depth of each node except the gateway."""
    return {node.device: (node.parent, node.depth) for node in tree.nodes.values() if node.device != G}


@each_row(
    ("devices", "known", "expected"),
    [
        # A gateway without devices.
        ({}, {}, {}),
        # Established links are reported from both ends; the direction follows from the gateway.
        (
            {10: {G: linked(), 11: linked()}, 11: {10: linked(), 12: linked()}, 12: {11: linked()}},
            {},
            {10: (G, 1), 11: (10, 2), 12: (11, 3)},
        ),
        # An established link wins over a better signal; without one, the best signal wins.
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: linked(-85), 11: heard(-40)}},
            {},
            {10: (G, 1), 11: (G, 1), 12: (10, 2)},
        ),
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: heard(-85), 11: heard(-40)}},
            {},
            {10: (G, 1), 11: (G, 1), 12: (11, 2)},
        ),
        # Old signals count less: 4 dB per minute.
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: heard(-60), 11: heard(-55, age=2 * MINUTE)}},
            {},
            {10: (G, 1), 11: (G, 1), 12: (10, 2)},
        ),
        # Two established links: the known parent stays until it has missed a report.
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: linked(), 11: linked(age=MINUTE)}},
            {12: 11},
            {10: (G, 1), 11: (G, 1), 12: (11, 2)},
        ),
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: linked(), 11: linked(age=2 * MINUTE)}},
            {12: 11},
            {10: (G, 1), 11: (G, 1), 12: (10, 2)},
        ),
        # A known parent without a path is no reason to be an orphan.
        (
            {10: {G: linked()}, 12: {10: linked(), 11: linked()}},
            {12: 11},
            {10: (G, 1), 12: (10, 2)},
        ),
        # Two devices that name each other have no path, and the answer has no circle.
        (
            {10: {G: linked()}, 11: {12: linked()}, 12: {11: linked()}},
            {},
            {10: (G, 1), 11: (12, None), 12: (None, None)},
        ),
        # A device that is its own parent.
        ({10: {10: linked()}}, {}, {10: (None, None)}),
        # A parent that no gateway has reported itself is a node without a path.
        ({10: {11: linked()}, 12: {11: heard()}}, {}, {10: (11, None), 11: (None, None), 12: (11, None)}),
        # A link that is only unreachable is no way.
        ({10: {G: linked(unreachable=True)}}, {}, {10: (None, None)}),
        # Heartbeats without a link: heard, but by an unknown node.
        ({10: {HEARTBEATS: heard()}}, {}, {10: (None, None)}),
        # Links older than three intervals do not count, nor do devices that only those links heard.
        (
            {10: {G: linked(age=4 * MINUTE)}, 11: {G: linked(age=4 * MINUTE), HEARTBEATS: heard()}},
            {},
            {11: (None, None)},
        ),
        # A device that two gateways hear belongs to that of its established link, or of its best signal.
        (
            {10: {G: heard(-40), 20: linked(-80, gateway=H)}, 11: {G: heard(-50), 20: heard(-60, gateway=H)}},
            {},
            {11: (G, 1)},
        ),
    ],
)
def test_parents_follow_the_links_from_the_gateway(devices: Any, known: Any, expected: Any) -> None:
    assert shape(grow(devices, known)) == expected


@each_row(
    ("devices", "expected"),
    [
        # A chain: each node cuts off those below it.
        ({10: {G: linked()}, 11: {10: linked()}, 12: {11: linked()}}, {G: 3, 10: 2, 11: 1, 12: 0}),
        # A device with another usable parent is not cut off, and neither are those below it.
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: linked(), 11: heard(-88)}, 13: {12: linked()}},
            {G: 4, 10: 0, 11: 0, 12: 1, 13: 0},
        ),
        # A very weak signal, and a parent that depends on the failed node itself, are no help.
        (
            {10: {G: linked()}, 11: {G: linked()}, 12: {10: linked(), 11: heard(-89)}, 13: {12: linked()}},
            {G: 4, 10: 2, 11: 0, 12: 1, 13: 0},
        ),
        (
            {10: {G: linked()}, 11: {10: linked()}, 12: {10: linked(), 11: heard()}},
            {G: 3, 10: 2, 11: 0, 12: 0},
        ),
        # A node of another gateway helps as well, even if this gateway fails.
        ({10: {G: linked()}, 11: {10: linked(), 20: heard(gateway=H)}}, {G: 1, 10: 0, 11: 0}),
        # Orphans have lost their way already.
        ({10: {G: linked()}, 11: {12: linked()}}, {G: 1, 10: 0, 11: 0, 12: 0}),
    ],
)
def test_a_node_cuts_off_the_devices_without_another_way(devices: Any, expected: Any) -> None:
    tree = grow(devices)
    assert {node.device: node.cuts_off for node in tree.nodes.values()} == expected


def test_a_node_counts_the_nodes_below_it_and_their_reports() -> None:
    tree = grow({10: {G: linked()}, 11: {10: linked()}, 12: {10: linked()}, 13: {12: linked()}})
    counts = {node.device: (node.children, node.descendants, node.load) for node in tree.nodes.values()}
    assert counts == {G: (1, 4, 4.0), 10: (2, 3, 4.0), 11: (0, 0, 1.0), 12: (1, 1, 2.0), 13: (0, 0, 1.0)}


_LINKS = st.dictionaries(
    st.integers(0, 12),
    st.builds(
        LinkState,
        st.sampled_from([G, H]),
        st.integers(NOW - 4 * MINUTE, NOW),
        st.integers(-100, -30),
        st.integers(-100, -30),
        unreachable=st.booleans(),
        linked_at=st.one_of(st.just(0), st.integers(NOW - 4 * MINUTE, NOW)),
        count=st.integers(1, 9),
    ),
    max_size=4,
)


@given(
    st.dictionaries(st.integers(1, 12), _LINKS, max_size=12),
    st.dictionaries(_DEVICES := st.integers(1, 12), _DEVICES),
)
def test_whatever_is_reported_the_result_is_a_tree(devices: Any, known: Any) -> None:
    tree = grow(devices, known)
    for node in tree.nodes.values():
        seen, above = {node.device}, node
        while above.parent is not None:
            below, above = above, tree.nodes[above.parent]
            assert above.device not in seen
            seen.add(above.device)
            assert (below.depth is None) == (above.depth is None)
            assert below.depth is None or above.depth is None or below.depth == above.depth + 1
        assert (above.device == G) == (node.depth is not None)
    total = sum(node.children for node in tree.nodes.values())
    assert total == sum(node.parent is not None for node in tree.nodes.values())


def test_dominated_nodes_are_those_that_only_one_node_reaches() -> None:
    for seed in range(200):
        numbers = random.Random(seed)  # noqa: S311 # not a secret
        count = numbers.randint(1, 12)
        successors = [[numbers.randrange(count) for _ in range(numbers.randint(0, 3))] for _ in range(count)]
        reached = find_reachable(successors, None)
        assert count_dominated(successors) == [
            len(reached - find_reachable(successors, node) - {node}) if node in reached else 0
            for node in range(count)
        ]


def find_reachable(successors: list[list[int]], removed: int | None) -> set[int]:
    """Return the nodes that the root reaches without a removed node."""
    stack = [0] if removed != 0 else []
    found = set(stack)
    while stack:
        new = {each for each in successors[stack.pop()] if each != removed} - found
        found |= new
        stack += new
    return found
