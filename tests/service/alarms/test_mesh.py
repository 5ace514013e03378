"""Which lost extender explains that devices are silent: the search in the tree, on any tree."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.alarms.mesh import Mesh, MeshNode, NodeState, Root, find_burst

GATEWAY, NOW = 1000, 10_000_000
SILENT, CONNECTED = NodeState.SILENT, NodeState.CONNECTED


def node(device: int, parent: int | None, state: NodeState = SILENT, *, since: int = 5000) -> MeshNode:
    """Build a device that was heard shortly before it became silent."""
    return MeshNode(device, GATEWAY, parent, state, since, since - 100)


def build(*nodes: MeshNode, lost: tuple[int, ...] = ()) -> Mesh:
    return Mesh(GATEWAY, [node(GATEWAY, None, NodeState.GATEWAY), *nodes], NOW, lost)


@st.composite
def trees(draw: st.DrawFn) -> Mesh:
    """Draw a tree of up to 40 devices with at most eleven hops, some of them silent."""
    depths = {GATEWAY: 0}
    nodes = []
    for device in range(1, draw(st.integers(1, 40)) + 1):
        parent = draw(st.sampled_from([each for each, depth in depths.items() if depth < 11]))
        depths[device] = depths[parent] + 1
        nodes.append(node(device, parent, draw(st.sampled_from([SILENT, SILENT, CONNECTED]))))
    return build(*nodes)


@given(trees())
def test_each_silent_device_belongs_to_its_topmost_silent_ancestor(mesh: Mesh) -> None:
    alarms = defaultdict(list)
    for each in mesh.nodes.values():
        if each.state is SILENT:
            above = each
            while above.parent is not None and mesh.nodes[above.parent].state is SILENT:
                above = mesh.nodes[above.parent]
            assert mesh.find_root(each.device) == Root(above.device)
            alarms[above.device].append(each.device)
    for root, members in alarms.items():
        assert sorted({root, *mesh.list_cut_off(root)}) == members


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(NodeState)), min_size=1, max_size=20))
def test_any_parents_lead_to_one_root(parents: list[tuple[int, NodeState]]) -> None:
    mesh = build(*(node(device, parent, state) for device, (parent, state) in enumerate(parents)))
    silent = [each.device for each in mesh.nodes.values() if each.state is SILENT]
    roots = {each: mesh.find_root(each).device for each in silent}
    found = [device for root in set(roots.values()) for device in {root, *mesh.list_cut_off(root)}]
    assert sorted(found) == sorted({*silent, *roots.values()})


def test_parents_in_a_circle_have_one_root() -> None:
    mesh = build(node(1, 3), node(2, 1), node(3, 2), node(4, 2), node(5, 4))
    assert {mesh.find_root(each).device for each in range(1, 6)} == {2}


def test_unknown_parents_and_those_behind_an_absent_gateway_explain_nothing() -> None:
    mesh = build(
        node(1, 77), node(2, None), node(3, 4), node(4, GATEWAY, NodeState.UNKNOWN), node(5, GATEWAY)
    )
    assert [mesh.find_root(each).device for each in (1, 2, 3, 5)] == [1, 2, 3, 5]


def test_an_extender_that_was_still_heard_does_not_explain_older_silence() -> None:
    mesh = build(node(1, GATEWAY, since=5000), node(2, 1, since=4000), node(3, 1, since=4950), node(4, 2))
    assert [mesh.find_root(each).device for each in (2, 3, 4)] == [2, 1, 2]
    # Before the clock was set back, times were later than now: they say nothing.
    ahead = build(node(1, GATEWAY, since=2 * NOW), node(2, 1, since=4000))
    assert ahead.find_root(2).device == 1


def test_an_extender_that_is_updated_or_waits_in_dfu_mode_is_not_lost() -> None:
    for state, is_updating in ((NodeState.UPDATING, True), (NodeState.DFU, False)):
        mesh = build(node(1, GATEWAY, state), node(2, 1), node(3, 2))
        assert mesh.find_root(3) == Root(2, is_updating)
        below_a_lost_one = build(node(9, GATEWAY), node(1, 9, state), node(2, 1))
        assert below_a_lost_one.find_root(2) == Root(9)


def test_only_an_extender_with_many_silent_children_is_suspected() -> None:
    for silent, connected, is_suspected in ((3, 3, True), (2, 0, False), (3, 4, False), (40, 2, True)):
        children = [
            node(each, 1, SILENT if each < 10 + silent else CONNECTED)
            for each in range(10, 10 + silent + connected)
        ]
        mesh = build(node(1, GATEWAY, CONNECTED), *children)
        assert mesh.find_suspect(10) == (1 if is_suspected else None)
    children = [node(each, 1) for each in range(10, 14)]
    heard_since = node(1, GATEWAY, CONNECTED, since=6000)
    for parent in (heard_since, node(1, GATEWAY, NodeState.UNKNOWN), node(1, None, NodeState.GATEWAY)):
        assert build(parent, *children).find_suspect(10) is None


def test_one_that_is_lost_but_connected_is_a_root_and_can_have_one_above_it() -> None:
    nodes = [
        node(1, GATEWAY, CONNECTED),
        node(2, 1, CONNECTED),
        node(3, 2),
        node(4, 2),
        node(5, 1),
        node(6, 1),
    ]
    mesh = build(*nodes, lost=(2,))
    assert (mesh.find_root(3).device, mesh.find_suspect(2)) == (2, 1)
    mesh.add_lost(1)
    assert (mesh.find_root(3).device, mesh.compute_silent_percent(1)) == (1, 100)


def test_a_burst_is_the_largest_group_around_a_device() -> None:
    times = {each: each * 60 for each in range(20)}
    assert find_burst(times, 0, 600) == list(range(11))
    assert len(find_burst(times, 10, 600)) == 11
    assert find_burst({1: 0, 2: 5000}, 1, 600) == [1]
