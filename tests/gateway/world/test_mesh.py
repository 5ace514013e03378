"""The tree: its limits, how it forms, and how it changes while links fade."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import cos, sin
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.gateway.world.layout import generate
from meshfleet.gateway.world.mesh import MAX_DEPTH, PER_HOP, WORTH_MOVING, Mesh
from meshfleet.gateway.world.places import Walls
from meshfleet.gateway.world.products import Mode, Role
from meshfleet.gateway.world.radio import USABLE
from meshfleet.gateway.world.site import Site
from tests.examples import examples
from tests.gateway.world.trees import GATEWAY, mac, mesh_of, put
from tests.tables import each_row

if TYPE_CHECKING:
    from meshfleet.gateway.world.node import Node
    from meshfleet.wire.ids import Mac


def check(mesh: Mesh) -> None:
    """What holds of every tree, whatever happened to it."""
    for node in mesh.nodes.values():
        held = [each for each in mesh.nodes.values() if each.parent is node]
        assert node.children == len(held)
        assert node.role is not Role.LEAF or not held
        assert node.depth <= MAX_DEPTH
        if node is mesh.root:
            assert (node.parent, node.depth) == (None, 0)
        elif node.parent is None or node.parent.depth < 0:
            assert node.depth == -1
            assert mesh.route(node) is None
        else:
            assert node.joined
            assert node.depth == node.parent.depth + 1
            route = mesh.route(node)
            assert route is not None
            assert (len(route), route[-1], route[0].parent) == (node.depth, node, mesh.root)
            assert all(below.parent is above for above, below in pairwise(route))


def calm(mesh: Mesh, t: float) -> None:
    """Let everybody look around until nobody moves."""
    for _ in range(30):
        if not sum(mesh.reconsider(node, t) for node in mesh.nodes.values()):
            return
    raise AssertionError("they never settle")


def moved(mesh: Mesh, t: float) -> list[Node]:
    return [node for node in mesh.nodes.values() if mesh.reconsider(node, t)]


@pytest.mark.rule("gateway-17")
def test_the_last_of_fifteen_extenders_in_a_row_cannot_join() -> None:
    row = [put(n, 5.0 * n, code="0040") for n in range(1, 16)]
    # Three walls between neighbours, six to the next but one: it is not heard at all.
    walls = Walls(x=tuple(5.0 * n + step for n in range(15) for step in (1.0, 2.0, 3.0)))
    mesh = Mesh(Site(gateway=GATEWAY, seed=1, devices=tuple(reversed(row)), walls=walls))
    assert [mesh.nodes[each.mac].depth for each in row] == [*range(1, 12), -1, -1, -1, -1]
    check(mesh)


@pytest.mark.rule("gateway-17")
def test_a_subtree_that_would_become_too_deep_does_not_move() -> None:
    chain = [put(n, 1.0, 0.1 * n, code="0040", parent=mac(n - 1) if n > 1 else GATEWAY) for n in range(1, 9)]
    twig = [
        put(n, -1.0, 0.1 * n, code="0040", parent=mac(n - 1) if n > 20 else GATEWAY) for n in range(20, 24)
    ]
    mesh = mesh_of(*chain, *twig)
    assert [mesh.nodes[mac(n)].depth for n in (8, 23)] == [8, 4]
    first = mesh.nodes[mac(20)]
    first.hearers, first.means = (mesh.nodes[mac(8)], mesh.root), array("f", [-40.0, -99.0])
    assert mesh.reconsider(first, 0.0)
    assert first.parent is None, "four levels do not fit below depth 8"
    mesh.leave(mesh.nodes[mac(23)])
    assert mesh.reconsider(first, 0.0)
    assert mesh.nodes[mac(22)].depth == MAX_DEPTH
    check(mesh)


@pytest.mark.rule("gateway-18")
def test_of_thirty_leaves_around_a_gateway_eighteen_join() -> None:
    leaves = [put(n, 3 * cos(n), 3 * sin(n)) for n in range(1, 31)]
    mesh = mesh_of(*leaves)
    assert mesh.root.children == 18
    assert sum(mesh.nodes[each.mac].depth == 1 for each in leaves) == 18
    check(mesh)


@pytest.mark.rule("gateway-18")
def test_leaves_hold_nobody() -> None:
    mesh = mesh_of(put(1, 10.0), put(2, 45.0), put(3, 30.0, code="000F"))
    assert mesh.nodes[mac(2)].parent is None
    assert mesh.nodes[mac(2)].hearers == (mesh.root,)
    check(mesh)


@pytest.mark.rule("gateway-19")
def test_every_connected_device_of_a_usual_site_holds_a_link_and_no_other_does() -> None:
    site = generate(GATEWAY, devices=50, seed=1)
    mesh = Mesh(site)
    for each in site.devices:
        assert (mesh.nodes[each.mac].parent is not None) == (each.mode is Mode.CONNECTED)
    check(mesh)
    assert max(node.depth for node in mesh.nodes.values()) >= 3


@each_row("devices", [0, 1, 10, 60, 61, 400])
def test_nearly_everybody_joins_whatever_the_size(devices: int) -> None:
    mesh = Mesh(generate(GATEWAY, devices=devices, seed=3))
    check(mesh)
    wanting = [node for node in mesh.nodes.values() if node.joined]
    assert sum(node.depth < 0 for node in wanting) <= len(wanting) // 50


def test_the_same_seed_gives_the_same_tree_and_another_one_another() -> None:
    def tree(seed: int) -> list[tuple[Mac, Mac | None, list[float]]]:
        mesh = Mesh(generate(GATEWAY, devices=50, seed=seed))
        return [
            (each.mac, each.parent.mac if each.parent else None, list(each.means))
            for each in mesh.nodes.values()
        ]

    assert tree(5) == tree(5)
    assert tree(5) != tree(6)


def test_a_wished_parent_is_taken_though_another_is_stronger_and_kept() -> None:
    mesh = mesh_of(put(1, 6.0, code="0040"), put(2, 7.0, parent=GATEWAY))
    leaf = mesh.nodes[mac(2)]
    assert leaf.parent is mesh.root
    assert not mesh.reconsider(leaf, 0.0)


def test_a_wish_is_granted_in_whatever_order_devices_are_listed() -> None:
    mesh = mesh_of(
        put(1, 9.0, parent=mac(2)),
        put(2, 8.0, code="0040", parent=mac(3)),
        put(3, 4.0, code="0040"),
    )
    assert [mesh.nodes[mac(n)].depth for n in (1, 2, 3)] == [3, 2, 1]


def test_wishes_that_cannot_be_granted_keep_nobody_out() -> None:
    mesh = mesh_of(
        put(1, 4.0, code="0040", parent=mac(2)),
        put(2, 8.0, code="0040", parent=mac(1)),
        put(3, 3.0, parent=mac(4)),
        put(4, 90.0, code="0040"),
    )
    assert all(mesh.nodes[mac(n)].depth > 0 for n in (1, 2, 3))
    assert mesh.nodes[mac(4)].depth == -1
    check(mesh)


def test_a_link_that_fades_is_given_up_for_a_usable_one() -> None:
    mesh = mesh_of(put(1, 10.0, code="0040"), put(2, 12.0, parent=GATEWAY))
    leaf = mesh.nodes[mac(2)]
    leaf.gain = -20.0
    assert mesh.reconsider(leaf, 0.0)
    assert leaf.parent is mesh.nodes[mac(1)]
    assert mesh.root.children == 1


def test_a_link_that_fades_without_another_breaks_and_heals() -> None:
    mesh = mesh_of(put(1, 5.0))
    leaf = mesh.nodes[mac(1)]
    leaf.gain = -40.0
    assert mesh.reconsider(leaf, 0.0)
    assert (leaf.parent, leaf.depth, leaf.joined, mesh.root.children) == (None, -1, True, 0)
    assert not mesh.reconsider(leaf, 0.0)
    leaf.gain = 0.0
    assert mesh.reconsider(leaf, 0.0)
    assert leaf.parent is mesh.root


def test_a_link_just_below_usable_is_held_but_not_made() -> None:
    mesh = mesh_of(put(1, 5.0))
    leaf = mesh.nodes[mac(1)]
    leaf.gain = USABLE - 1.0 - mesh.rssi(leaf, 0, 0.0)
    assert not mesh.reconsider(leaf, 0.0)
    mesh.leave(leaf)
    assert not mesh.join(leaf, 0.0)


def test_a_much_better_parent_is_taken() -> None:
    mesh = mesh_of(put(1, 13.0, code="0040"), put(2, 14.0))
    leaf, extender = mesh.nodes[mac(2)], mesh.nodes[mac(1)]
    assert leaf.parent is extender
    mesh.leave(extender)
    assert mesh.reconsider(leaf, 0.0) or leaf.parent is mesh.root
    assert mesh.join(extender, 0.0)
    assert mesh.reconsider(leaf, 0.0)
    assert leaf.parent is extender


@each_row("n", range(2, 30))
def test_a_sound_link_is_left_for_one_that_is_better_by_enough_and_for_no_other(n: int) -> None:
    mesh = mesh_of(put(1, 6.0, code="0040"), put(n, 9.0))
    leaf, extender = mesh.nodes[mac(n)], mesh.nodes[mac(1)]
    mesh.leave(extender)
    mesh.leave(leaf)
    assert mesh.join(leaf, 0.0)
    assert mesh.join(extender, 0.0)
    assert leaf.parent is mesh.root  # where nothing holds it but its own inertia
    level = {hearer.mac: mesh.rssi(leaf, i, 0.0) for i, hearer in enumerate(leaf.hearers)}
    gained = level[mac(1)] - PER_HOP - level[GATEWAY]
    assert mesh.reconsider(leaf, 0.0) is (gained >= WORTH_MOVING)


def test_too_many_children_go_until_the_rest_has_room() -> None:
    leaves = [put(n, 3 * cos(n), 3 * sin(n)) for n in range(1, 11)]
    mesh = mesh_of(*leaves)
    mesh.root.capacity = 4
    calm(mesh, 0.0)
    assert mesh.root.children == 4
    check(mesh)
    mesh.root.capacity = 18
    calm(mesh, 0.0)
    assert mesh.root.children == 10


def test_who_leaves_orphans_its_children_and_cuts_off_all_below() -> None:
    mesh = mesh_of(
        put(1, 8.0, code="0040", parent=GATEWAY),
        put(2, 16.0, code="0040", parent=mac(1)),
        put(3, 17.0, parent=mac(2)),
    )
    first, second, leaf = (mesh.nodes[mac(n)] for n in (1, 2, 3))
    assert leaf.depth == 3
    mesh.leave(first)
    assert (first.joined, second.parent, second.depth, leaf.parent, leaf.depth) == (
        False,
        None,
        -1,
        second,
        -1,
    )
    check(mesh)
    assert mesh.join(second, 0.0)
    assert leaf.depth == 2
    check(mesh)


def test_a_gateway_cannot_leave_and_never_moves() -> None:
    mesh = mesh_of()
    assert not mesh.reconsider(mesh.root, 0.0)
    assert mesh.route(mesh.root) == ()
    with pytest.raises(ValueError, match="gateway"):
        mesh.leave(mesh.root)


def test_an_extender_never_hangs_itself_on_its_own_subtree() -> None:
    mesh = mesh_of(
        put(1, 12.0, code="0040", parent=GATEWAY), put(2, 13.0, code="0040", parent=mac(1)), put(3, 13.5)
    )
    first = mesh.nodes[mac(1)]
    first.gain = -100.0 - mesh.rssi(first, first.hearers.index(mesh.root), 0.0)
    child = first.hearers.index(mesh.nodes[mac(2)])
    assert mesh.rssi(first, child, 0.0) > USABLE, "its child hears it still"
    assert mesh.reconsider(first, 0.0)
    check(mesh)
    assert first.parent is None


happenings = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "look", "capacity", "gain", "time"]),
        st.integers(0, 59),
        st.integers(0, 20),
    ),
    max_size=60,
)


@pytest.mark.rule("gateway-17", "gateway-18")
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 5), st.integers(1, 60), happenings)
def test_the_tree_stays_a_tree_whatever_happens(
    seed: int, devices: int, story: list[tuple[str, int, int]]
) -> None:
    mesh = Mesh(generate(GATEWAY, devices=devices, seed=seed))
    nodes, t = list(mesh.nodes.values()), 0.0
    for deed, which, much in story:
        node = nodes[which % len(nodes)]
        before = node.parent
        match deed:
            case "join":
                assert mesh.join(node, t) == (node.depth >= 0)
            case "leave" if node is not mesh.root:
                mesh.leave(node)
            case "look":
                assert mesh.reconsider(node, t) == (node.parent is not before)
            case "capacity" if node.role is not Role.LEAF:
                node.capacity = min(much, 18)
            case "gain":
                node.gain = float(much - 15)
            case _:
                t += 600.0 * much
        check(mesh)
    for _ in range(3):
        moved(mesh, t)
    check(mesh)


def test_hours_of_fading_move_some_devices_and_never_many() -> None:
    mesh = Mesh(generate(GATEWAY, devices=50, seed=1))
    moves = []
    for minute in range(6 * 60):
        moves += moved(mesh, 60.0 * minute)
        if minute % 20 == 0:
            check(mesh)
    wanting = [node for node in mesh.nodes.values() if node.joined]
    assert 0 < len(moves) < 6 * len(wanting)


def test_nobody_runs_to_and_fro_while_nothing_changes() -> None:
    for seed in range(20):
        mesh = Mesh(generate(GATEWAY, devices=50, seed=seed))
        calm(mesh, 5000.0)
        assert not moved(mesh, 5000.0)
