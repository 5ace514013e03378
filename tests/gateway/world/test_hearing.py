"""Who hears whom, how well, and through whom unconnected devices are reached."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from meshfleet.gateway.world.hearing import MAX_HEARERS
from meshfleet.gateway.world.layout import generate
from meshfleet.gateway.world.mesh import Mesh
from meshfleet.gateway.world.products import Role
from meshfleet.gateway.world.radio import SLOW, USABLE, mean
from tests.gateway.world.trees import GATEWAY, mac, mesh_of, put

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac


def test_those_that_hear_a_node_are_few_and_the_strongest_comes_first() -> None:
    site = generate(GATEWAY, devices=200, seed=2)
    mesh = Mesh(site)
    for node in mesh.nodes.values():
        assert len(node.hearers) == len(node.means) <= MAX_HEARERS
        assert list(node.means) == sorted(node.means, reverse=True)
        assert all(hearer.role is not Role.LEAF and hearer is not node for hearer in node.hearers)
        for hearer, level in zip(node.hearers, node.means, strict=True):
            assert level == pytest.approx(mean(node.place, hearer.place, site.walls), abs=1e-4)


def test_a_wished_parent_is_among_those_that_hear_a_node_if_it_hears_it_at_all() -> None:
    crowd = [put(number, 20.0 + number, code="0040") for number in range(1, 13)]

    def hearers(wished: int | None) -> list[Mac]:
        mesh = mesh_of(*crowd, put(50, 20.0, parent=None if wished is None else mac(wished)), put(60, 900.0))
        node = mesh.nodes[mac(50)]
        assert list(node.means) == sorted(node.means, reverse=True)
        return [each.mac for each in node.hearers]

    usual = hearers(None)
    assert len(usual) == MAX_HEARERS
    assert mac(12) not in usual
    assert hearers(12) == [*usual[:-1], mac(12)]
    assert hearers(60) == hearers(1) == usual


def test_a_gateway_without_extenders_is_heard_by_its_connected_leaves() -> None:
    mesh = mesh_of(put(1, 9.0), put(2, 3.0), put(3, 1.0, code="000F"))
    assert [each.mac for each in mesh.root.hearers] == [mac(2), mac(1)]


@pytest.mark.rule("gateway-22")
def test_readings_have_the_mean_of_the_formula() -> None:
    mesh = mesh_of(put(1, 10.0))
    node = mesh.nodes[mac(1)]
    readings = [mesh.reading(node, 0, 600.0 * n, n) for n in range(20_000)]
    assert fmean(readings) == pytest.approx(-81.0, abs=0.3)
    assert len(set(readings)) > 10
    node.gain = -8.0
    assert fmean(mesh.reading(node, 0, 600.0 * n, n) for n in range(20_000)) == pytest.approx(-89.0, abs=0.3)


def test_readings_do_not_leave_what_a_byte_can_say() -> None:
    mesh = mesh_of(put(1, 0.0))
    node = mesh.nodes[mac(1)]
    node.gain = 100.0
    assert mesh.reading(node, 0, 0.0, 0) == -20
    node.gain = -200.0
    assert mesh.reading(node, 0, 0.0, 0) == -127


def test_slow_fading_alone_decides_how_a_link_changes() -> None:
    mesh = mesh_of(put(1, 10.0))
    node = mesh.nodes[mac(1)]
    levels = [mesh.rssi(node, 0, 60.0 * minute) for minute in range(600)]
    assert max(map(abs, (level - node.means[0] for level in levels))) <= SLOW
    assert max(levels) - min(levels) > SLOW


@pytest.mark.rule("gateway-20")
def test_an_unconnected_device_is_reached_through_whoever_hears_it_best() -> None:
    mesh = mesh_of(put(1, 20.0, code="0040"), put(2, 21.0, code="000F"), put(3, 0.0, 1.0, code="000F"))
    extender, far, near = (mesh.nodes[mac(n)] for n in (1, 2, 3))
    extender.gain = 10.0
    assert mesh.join(extender, 0.0)
    assert mesh.reacher(far, 0.0) is extender
    assert mesh.reacher(near, 0.0) is mesh.root
    mesh.leave(extender)
    assert mesh.reacher(far, 0.0) is not extender
    far.gain = -60.0
    assert mesh.reacher(far, 0.0) is None


def test_the_best_reacher_is_the_strongest_of_all_at_any_time() -> None:
    mesh = Mesh(generate(GATEWAY, devices=60, seed=4))
    for t in range(0, 7200, 600):
        for node in mesh.nodes.values():
            levels = {
                mesh.rssi(node, i, t): hearer for i, hearer in enumerate(node.hearers) if hearer.depth >= 0
            }
            strongest = max(levels, default=-200.0)
            assert mesh.reacher(node, t) is (levels[strongest] if strongest >= USABLE else None)


def test_a_named_extender_reaches_a_device_when_it_hears_it_at_all() -> None:
    mesh = mesh_of(put(1, 8.0, code="0040"), put(2, 2.0, code="000F"))
    clip = mesh.nodes[mac(2)]
    assert mesh.reacher_named(clip, mac(1), 0.0) is mesh.nodes[mac(1)]
    assert mesh.reacher_named(clip, mac(9), 0.0) is None
    clip.gain = -60.0
    assert mesh.reacher_named(clip, mac(1), 0.0) is None
    clip.gain = 0.0
    mesh.leave(mesh.nodes[mac(1)])
    assert mesh.reacher_named(clip, mac(1), 0.0) is None
