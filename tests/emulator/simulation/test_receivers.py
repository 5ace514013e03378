"""Who hears whom, how well, and through whom unconnected devices are reached."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator.simulation.mesh import MAX_RECEIVERS, SimulatedMesh
from meshfleet.emulator.simulation.products import NodeRole
from meshfleet.emulator.simulation.radio import MIN_USABLE_DBM, SLOW_FADING_DB, estimate_mean_rssi
from meshfleet.emulator.simulation.site_generator import generate_site
from tests.emulator.simulation.sites import GATEWAY, build_mesh, device_mac, place_device

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac


def test_those_that_hear_a_node_are_few_and_the_strongest_comes_first() -> None:
    site = generate_site(GATEWAY, devices=200, seed=2)
    mesh = SimulatedMesh(site)
    for node in mesh.nodes.values():
        assert len(node.receivers) == len(node.mean_rssi) <= MAX_RECEIVERS
        assert list(node.mean_rssi) == sorted(node.mean_rssi, reverse=True)
        assert all(hearer.role is not NodeRole.LEAF and hearer is not node for hearer in node.receivers)
        for hearer, level in zip(node.receivers, node.mean_rssi, strict=True):
            assert level == pytest.approx(
                estimate_mean_rssi(node.position, hearer.position, site.walls), abs=1e-4
            )


def test_a_wished_parent_is_among_those_that_hear_a_node_if_it_hears_it_at_all() -> None:
    crowd = [place_device(number, 20.0 + number, code="0040") for number in range(1, 13)]

    def hearers(wished: int | None) -> list[Mac]:
        mesh = build_mesh(
            *crowd,
            place_device(50, 20.0, parent=None if wished is None else device_mac(wished)),
            place_device(60, 900.0),
        )
        node = mesh.nodes[device_mac(50)]
        assert list(node.mean_rssi) == sorted(node.mean_rssi, reverse=True)
        return [each.mac for each in node.receivers]

    usual = hearers(None)
    assert len(usual) == MAX_RECEIVERS
    assert device_mac(12) not in usual
    assert hearers(12) == [*usual[:-1], device_mac(12)]
    assert hearers(60) == hearers(1) == usual


def test_a_gateway_without_extenders_is_heard_by_its_connected_leaves() -> None:
    mesh = build_mesh(place_device(1, 9.0), place_device(2, 3.0), place_device(3, 1.0, code="000F"))
    assert [each.mac for each in mesh.root.receivers] == [device_mac(2), device_mac(1)]


@pytest.mark.rule("gateway-22")
def test_readings_have_the_mean_of_the_formula() -> None:
    mesh = build_mesh(place_device(1, 10.0))
    node = mesh.nodes[device_mac(1)]
    readings = [mesh.measure_rssi(node, 0, 600.0 * n, n) for n in range(20_000)]
    assert fmean(readings) == pytest.approx(-81.0, abs=0.3)
    assert len(set(readings)) > 10
    node.tx_gain = -8.0
    assert fmean(mesh.measure_rssi(node, 0, 600.0 * n, n) for n in range(20_000)) == pytest.approx(
        -89.0, abs=0.3
    )


def test_readings_do_not_leave_what_a_byte_can_say() -> None:
    mesh = build_mesh(place_device(1, 0.0))
    node = mesh.nodes[device_mac(1)]
    node.tx_gain = 100.0
    assert mesh.measure_rssi(node, 0, 0.0, 0) == -20
    node.tx_gain = -200.0
    assert mesh.measure_rssi(node, 0, 0.0, 0) == -127


def test_slow_fading_alone_decides_how_a_link_changes() -> None:
    mesh = build_mesh(place_device(1, 10.0))
    node = mesh.nodes[device_mac(1)]
    levels = [mesh.link_rssi(node, 0, 60.0 * minute) for minute in range(600)]
    assert max(map(abs, (level - node.mean_rssi[0] for level in levels))) <= SLOW_FADING_DB
    assert max(levels) - min(levels) > SLOW_FADING_DB


@pytest.mark.rule("gateway-20")
def test_an_unconnected_device_is_reached_through_whoever_hears_it_best() -> None:
    mesh = build_mesh(
        place_device(1, 20.0, code="0040"),
        place_device(2, 21.0, code="000F"),
        place_device(3, 0.0, 1.0, code="000F"),
    )
    extender, far, near = (mesh.nodes[device_mac(n)] for n in (1, 2, 3))
    extender.tx_gain = 10.0
    assert mesh.join(extender, 0.0)
    assert mesh.find_relay(far, 0.0) is extender
    assert mesh.find_relay(near, 0.0) is mesh.root
    mesh.leave(extender)
    assert mesh.find_relay(far, 0.0) is not extender
    far.tx_gain = -60.0
    assert mesh.find_relay(far, 0.0) is None


def test_the_best_reacher_is_the_strongest_of_all_at_any_time() -> None:
    mesh = SimulatedMesh(generate_site(GATEWAY, devices=60, seed=4))
    for t in range(0, 7200, 600):
        for node in mesh.nodes.values():
            levels = {
                mesh.link_rssi(node, i, t): hearer
                for i, hearer in enumerate(node.receivers)
                if hearer.depth >= 0
            }
            strongest = max(levels, default=-200.0)
            assert mesh.find_relay(node, t) is (levels[strongest] if strongest >= MIN_USABLE_DBM else None)


def test_a_named_extender_reaches_a_device_when_it_hears_it_at_all() -> None:
    mesh = build_mesh(place_device(1, 8.0, code="0040"), place_device(2, 2.0, code="000F"))
    clip = mesh.nodes[device_mac(2)]
    assert mesh.find_relay_by_mac(clip, device_mac(1), 0.0) is mesh.nodes[device_mac(1)]
    assert mesh.find_relay_by_mac(clip, device_mac(9), 0.0) is None
    clip.tx_gain = -60.0
    assert mesh.find_relay_by_mac(clip, device_mac(1), 0.0) is None
    clip.tx_gain = 0.0
    mesh.leave(mesh.nodes[device_mac(1)])
    assert mesh.find_relay_by_mac(clip, device_mac(1), 0.0) is None
