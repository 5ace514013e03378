"""The tree of the mesh: its limits, how it forms, and how it changes while links fade."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import cos, sin
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.emulator.simulation.mesh import HOP_PENALTY_DB, SWITCH_MARGIN_DB, SimulatedMesh
from meshfleet.emulator.simulation.mesh_node import MAX_DEPTH
from meshfleet.emulator.simulation.products import DeviceMode, NodeRole
from meshfleet.emulator.simulation.radio import MIN_USABLE_DBM
from meshfleet.emulator.simulation.site import Site, Walls
from meshfleet.emulator.simulation.site_generator import generate_site
from tests.emulator.simulation.sites import GATEWAY, build_mesh, device_mac, place_device
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.protocol.ids import Mac


def check_tree(mesh: SimulatedMesh) -> None:
    """Check the invariants of a tree."""
    for node in mesh.nodes.values():
        children = [each for each in mesh.nodes.values() if each.parent is node]
        assert node.child_count == len(children)
        assert node.role is not NodeRole.LEAF or not children
        assert node.depth <= MAX_DEPTH
        if node is mesh.root:
            assert (node.parent, node.depth) == (None, 0)
        elif node.parent is None or node.parent.depth < 0:
            assert node.depth == -1
            assert mesh.find_route(node) is None
        else:
            assert node.wants_link
            assert node.depth == node.parent.depth + 1
            route = mesh.find_route(node)
            assert route is not None
            assert (len(route), route[-1], route[0].parent) == (node.depth, node, mesh.root)
            assert all(child.parent is parent for parent, child in pairwise(route))


def settle(mesh: SimulatedMesh, t: float) -> None:
    """Reselect parents until none changes."""
    for _ in range(30):
        if not sum(mesh.reselect_parent(node, t) for node in mesh.nodes.values()):
            return
    raise AssertionError("the tree does not settle")


def reselect_all(mesh: SimulatedMesh, t: float) -> list[MeshNode]:
    return [node for node in mesh.nodes.values() if mesh.reselect_parent(node, t)]


@pytest.mark.rule("gateway-17")
def test_the_last_of_fifteen_extenders_in_a_chain_cannot_join() -> None:
    chain = [place_device(n, 5.0 * n, code="0040") for n in range(1, 16)]
    # Three walls between neighbors, six to the next but one, which is out of range.
    walls = Walls(x=tuple(5.0 * n + step for n in range(15) for step in (1.0, 2.0, 3.0)))
    mesh = SimulatedMesh(Site(gateway=GATEWAY, seed=1, devices=tuple(reversed(chain)), walls=walls))
    assert [mesh.nodes[each.mac].depth for each in chain] == [*range(1, 12), -1, -1, -1, -1]
    check_tree(mesh)


@pytest.mark.rule("gateway-17")
def test_a_subtree_that_would_become_too_deep_does_not_move() -> None:
    chain = [
        place_device(n, 1.0, 0.1 * n, code="0040", parent=device_mac(n - 1) if n > 1 else GATEWAY)
        for n in range(1, 9)
    ]
    branch = [
        place_device(n, -1.0, 0.1 * n, code="0040", parent=device_mac(n - 1) if n > 20 else GATEWAY)
        for n in range(20, 24)
    ]
    mesh = build_mesh(*chain, *branch)
    assert [mesh.nodes[device_mac(n)].depth for n in (8, 23)] == [8, 4]
    first = mesh.nodes[device_mac(20)]
    first.receivers, first.mean_rssi = (mesh.nodes[device_mac(8)], mesh.root), array("f", [-40.0, -99.0])
    assert mesh.reselect_parent(first, 0.0)
    assert first.parent is None, "four levels do not fit below depth 8"
    mesh.leave(mesh.nodes[device_mac(23)])
    assert mesh.reselect_parent(first, 0.0)
    assert mesh.nodes[device_mac(22)].depth == MAX_DEPTH
    check_tree(mesh)


@pytest.mark.rule("gateway-18")
def test_of_thirty_leaves_around_a_gateway_eighteen_join() -> None:
    leaves = [place_device(n, 3 * cos(n), 3 * sin(n)) for n in range(1, 31)]
    mesh = build_mesh(*leaves)
    assert mesh.root.child_count == 18
    assert sum(mesh.nodes[each.mac].depth == 1 for each in leaves) == 18
    check_tree(mesh)


@pytest.mark.rule("gateway-18")
def test_leaves_have_no_children() -> None:
    mesh = build_mesh(place_device(1, 10.0), place_device(2, 45.0), place_device(3, 30.0, code="000F"))
    assert mesh.nodes[device_mac(2)].parent is None
    assert mesh.nodes[device_mac(2)].receivers == (mesh.root,)
    check_tree(mesh)


@pytest.mark.rule("gateway-19")
def test_exactly_the_connected_devices_of_a_typical_site_have_a_link() -> None:
    site = generate_site(GATEWAY, devices=50, seed=1)
    mesh = SimulatedMesh(site)
    for each in site.devices:
        assert (mesh.nodes[each.mac].parent is not None) == (each.mode is DeviceMode.CONNECTED)
    check_tree(mesh)
    assert max(node.depth for node in mesh.nodes.values()) >= 3


@each_row("devices", [0, 1, 10, 60, 61, 400])
def test_nearly_all_nodes_join_at_any_site_size(devices: int) -> None:
    mesh = SimulatedMesh(generate_site(GATEWAY, devices=devices, seed=3))
    check_tree(mesh)
    seeking = [node for node in mesh.nodes.values() if node.wants_link]
    assert sum(node.depth < 0 for node in seeking) <= len(seeking) // 50


def test_the_tree_depends_on_the_seed_alone() -> None:
    def tree(seed: int) -> list[tuple[Mac, Mac | None, list[float]]]:
        mesh = SimulatedMesh(generate_site(GATEWAY, devices=50, seed=seed))
        return [
            (each.mac, each.parent.mac if each.parent else None, list(each.mean_rssi))
            for each in mesh.nodes.values()
        ]

    assert tree(5) == tree(5)
    assert tree(5) != tree(6)


def test_a_preferred_parent_is_chosen_and_kept_though_another_is_stronger() -> None:
    mesh = build_mesh(place_device(1, 6.0, code="0040"), place_device(2, 7.0, parent=GATEWAY))
    leaf = mesh.nodes[device_mac(2)]
    assert leaf.parent is mesh.root
    assert not mesh.reselect_parent(leaf, 0.0)


def test_a_preferred_parent_is_chosen_in_any_order_of_the_devices() -> None:
    mesh = build_mesh(
        place_device(1, 9.0, parent=device_mac(2)),
        place_device(2, 8.0, code="0040", parent=device_mac(3)),
        place_device(3, 4.0, code="0040"),
    )
    assert [mesh.nodes[device_mac(n)].depth for n in (1, 2, 3)] == [3, 2, 1]


def test_impossible_preferences_do_not_prevent_a_link() -> None:
    mesh = build_mesh(
        place_device(1, 4.0, code="0040", parent=device_mac(2)),
        place_device(2, 8.0, code="0040", parent=device_mac(1)),
        place_device(3, 3.0, parent=device_mac(4)),
        place_device(4, 90.0, code="0040"),
    )
    assert all(mesh.nodes[device_mac(n)].depth > 0 for n in (1, 2, 3))
    assert mesh.nodes[device_mac(4)].depth == -1
    check_tree(mesh)


def test_a_faded_link_is_replaced_by_a_usable_one() -> None:
    mesh = build_mesh(place_device(1, 10.0, code="0040"), place_device(2, 12.0, parent=GATEWAY))
    leaf = mesh.nodes[device_mac(2)]
    leaf.tx_gain = -20.0
    assert mesh.reselect_parent(leaf, 0.0)
    assert leaf.parent is mesh.nodes[device_mac(1)]
    assert mesh.root.child_count == 1


def test_a_faded_link_without_alternative_breaks_and_recovers() -> None:
    mesh = build_mesh(place_device(1, 5.0))
    leaf = mesh.nodes[device_mac(1)]
    leaf.tx_gain = -40.0
    assert mesh.reselect_parent(leaf, 0.0)
    assert (leaf.parent, leaf.depth, leaf.wants_link, mesh.root.child_count) == (None, -1, True, 0)
    assert not mesh.reselect_parent(leaf, 0.0)
    leaf.tx_gain = 0.0
    assert mesh.reselect_parent(leaf, 0.0)
    assert leaf.parent is mesh.root


def test_a_link_just_below_usable_is_kept_but_not_established() -> None:
    mesh = build_mesh(place_device(1, 5.0))
    leaf = mesh.nodes[device_mac(1)]
    leaf.tx_gain = MIN_USABLE_DBM - 1.0 - mesh.compute_link_rssi(leaf, 0, 0.0)
    assert not mesh.reselect_parent(leaf, 0.0)
    mesh.leave(leaf)
    assert not mesh.join(leaf, 0.0)


def test_a_much_better_parent_is_chosen() -> None:
    mesh = build_mesh(place_device(1, 13.0, code="0040"), place_device(2, 14.0))
    leaf, extender = mesh.nodes[device_mac(2)], mesh.nodes[device_mac(1)]
    assert leaf.parent is extender
    mesh.leave(extender)
    assert mesh.reselect_parent(leaf, 0.0) or leaf.parent is mesh.root
    assert mesh.join(extender, 0.0)
    assert mesh.reselect_parent(leaf, 0.0)
    assert leaf.parent is extender


@each_row("n", range(2, 30))
def test_a_usable_link_is_replaced_only_by_one_that_is_better_by_the_margin(n: int) -> None:
    mesh = build_mesh(place_device(1, 6.0, code="0040"), place_device(n, 9.0))
    leaf, extender = mesh.nodes[device_mac(n)], mesh.nodes[device_mac(1)]
    mesh.leave(extender)
    mesh.leave(leaf)
    assert mesh.join(leaf, 0.0)
    assert mesh.join(extender, 0.0)
    assert leaf.parent is mesh.root  # no preference keeps it there
    level = {receiver.mac: mesh.compute_link_rssi(leaf, i, 0.0) for i, receiver in enumerate(leaf.receivers)}
    gain = level[device_mac(1)] - HOP_PENALTY_DB - level[GATEWAY]
    assert mesh.reselect_parent(leaf, 0.0) is (gain >= SWITCH_MARGIN_DB)


def test_children_leave_a_parent_whose_capacity_is_reduced() -> None:
    leaves = [place_device(n, 3 * cos(n), 3 * sin(n)) for n in range(1, 11)]
    mesh = build_mesh(*leaves)
    mesh.root.capacity = 4
    settle(mesh, 0.0)
    assert mesh.root.child_count == 4
    check_tree(mesh)
    mesh.root.capacity = 18
    settle(mesh, 0.0)
    assert mesh.root.child_count == 10


def test_all_nodes_below_a_node_that_leaves_lose_their_route() -> None:
    mesh = build_mesh(
        place_device(1, 8.0, code="0040", parent=GATEWAY),
        place_device(2, 16.0, code="0040", parent=device_mac(1)),
        place_device(3, 17.0, parent=device_mac(2)),
    )
    first, second, leaf = (mesh.nodes[device_mac(n)] for n in (1, 2, 3))
    assert leaf.depth == 3
    mesh.leave(first)
    assert (first.wants_link, second.parent, second.depth, leaf.parent, leaf.depth) == (
        False,
        None,
        -1,
        second,
        -1,
    )
    check_tree(mesh)
    assert mesh.join(second, 0.0)
    assert leaf.depth == 2
    check_tree(mesh)


def test_a_gateway_cannot_leave_and_has_no_parent() -> None:
    mesh = build_mesh()
    assert not mesh.reselect_parent(mesh.root, 0.0)
    assert mesh.find_route(mesh.root) == ()
    with pytest.raises(ValueError, match="gateway"):
        mesh.leave(mesh.root)


def test_an_extender_never_chooses_a_parent_in_its_own_subtree() -> None:
    mesh = build_mesh(
        place_device(1, 12.0, code="0040", parent=GATEWAY),
        place_device(2, 13.0, code="0040", parent=device_mac(1)),
        place_device(3, 13.5),
    )
    first = mesh.nodes[device_mac(1)]
    first.tx_gain = -100.0 - mesh.compute_link_rssi(first, first.receivers.index(mesh.root), 0.0)
    child = first.receivers.index(mesh.nodes[device_mac(2)])
    assert mesh.compute_link_rssi(first, child, 0.0) > MIN_USABLE_DBM, "its child still receives it"
    assert mesh.reselect_parent(first, 0.0)
    check_tree(mesh)
    assert first.parent is None


operations = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "look", "capacity", "gain", "time"]),
        st.integers(0, 59),
        st.integers(0, 20),
    ),
    max_size=60,
)


@pytest.mark.rule("gateway-17", "gateway-18")
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 5), st.integers(1, 60), operations)
def test_the_tree_stays_valid_after_any_operations(
    seed: int, devices: int, steps: list[tuple[str, int, int]]
) -> None:
    mesh = SimulatedMesh(generate_site(GATEWAY, devices=devices, seed=seed))
    nodes, t = list(mesh.nodes.values()), 0.0
    for operation, index, amount in steps:
        node = nodes[index % len(nodes)]
        before = node.parent
        match operation:
            case "join":
                assert mesh.join(node, t) == (node.depth >= 0)
            case "leave" if node is not mesh.root:
                mesh.leave(node)
            case "look":
                assert mesh.reselect_parent(node, t) == (node.parent is not before)
            case "capacity" if node.role is not NodeRole.LEAF:
                node.capacity = min(amount, 18)
            case "gain":
                node.tx_gain = float(amount - 15)
            case _:
                t += 600.0 * amount
        check_tree(mesh)
    for _ in range(3):
        reselect_all(mesh, t)
    check_tree(mesh)


def test_fading_changes_some_parents_and_never_many() -> None:
    mesh = SimulatedMesh(generate_site(GATEWAY, devices=50, seed=1))
    changes = []
    for minute in range(6 * 60):
        changes += reselect_all(mesh, 60.0 * minute)
        if minute % 20 == 0:
            check_tree(mesh)
    seeking = [node for node in mesh.nodes.values() if node.wants_link]
    assert 0 < len(changes) < 6 * len(seeking)


def test_no_parent_changes_while_links_are_unchanged() -> None:
    for seed in range(20):
        mesh = SimulatedMesh(generate_site(GATEWAY, devices=50, seed=seed))
        settle(mesh, 5000.0)
        assert not reselect_all(mesh, 5000.0)
