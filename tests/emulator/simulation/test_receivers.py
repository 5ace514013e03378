"""Receivers of nodes, their RSSI, and the relays of unconnected devices."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.products import NodeRole
from meshfleet.emulator.simulation.radio import (
    FAST_FADING_DB,
    MIN_AUDIBLE_DBM,
    MIN_USABLE_DBM,
    SLOW_FADING_DB,
    estimate_mean_rssi,
)
from meshfleet.emulator.simulation.receivers import MAX_RECEIVERS
from meshfleet.emulator.simulation.site import Site
from meshfleet.emulator.simulation.site_generator import generate_site
from meshfleet.protocol.codes import Kind
from tests.emulator.simulated_gateway import MINUTE, SimulatedGateway, select_reports
from tests.emulator.simulation.sites import GATEWAY, build_mesh, device_mac, place_device
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac


def test_a_node_has_few_receivers_and_the_strongest_comes_first() -> None:
    site = generate_site(GATEWAY, devices=200, seed=2)
    mesh = SimulatedMesh(site)
    for node in mesh.nodes.values():
        assert len(node.receivers) == len(node.mean_rssi) <= MAX_RECEIVERS
        assert list(node.mean_rssi) == sorted(node.mean_rssi, reverse=True)
        assert all(receiver.role is not NodeRole.LEAF and receiver is not node for receiver in node.receivers)
        for receiver, level in zip(node.receivers, node.mean_rssi, strict=True):
            assert level == pytest.approx(
                estimate_mean_rssi(node.position, receiver.position, site.walls), abs=1e-4
            )


def test_a_preferred_parent_is_a_receiver_if_it_is_in_range() -> None:
    extenders = [place_device(number, 20.0 + number, code="0040") for number in range(1, 13)]

    def find_receivers(preferred: int | None) -> list[Mac]:
        mesh = build_mesh(
            *extenders,
            place_device(50, 20.0, parent=None if preferred is None else device_mac(preferred)),
            place_device(60, 900.0),
        )
        node = mesh.nodes[device_mac(50)]
        assert list(node.mean_rssi) == sorted(node.mean_rssi, reverse=True)
        return [receiver.mac for receiver in node.receivers]

    default_receivers = find_receivers(None)
    assert len(default_receivers) == MAX_RECEIVERS
    assert device_mac(12) not in default_receivers
    assert find_receivers(12) == [*default_receivers[:-1], device_mac(12)]
    assert find_receivers(60) == find_receivers(1) == default_receivers


@pytest.mark.rule("gateway-48")
@each_row("limit", [6, 9, 100])
def test_a_site_may_have_more_receivers_without_other_parents(limit: int) -> None:
    site = generate_site(GATEWAY, devices=200, seed=2)
    few, many = SimulatedMesh(site), SimulatedMesh(replace(site, receivers=limit))
    relays = [each for each in many.nodes.values() if each.role is not NodeRole.LEAF]
    lengths = set()
    for node in many.nodes.values():
        in_range = {
            each
            for each in relays
            if each is not node
            and estimate_mean_rssi(node.position, each.position, site.walls)
            >= MIN_AUDIBLE_DBM - SLOW_FADING_DB - FAST_FADING_DB
        }
        if node is not many.root:  # the gateway has connected extenders only
            assert len(node.receivers) == min(len(in_range), limit)
        assert set(node.receivers) <= in_range
        assert len(node.mean_rssi) == len(node.receivers)
        lengths.add(len(node.receivers))
        other = few.nodes[node.mac]
        parents, rest = len(other.receivers), list(node.mean_rssi)[len(other.receivers) :]
        assert [each.mac for each in node.receivers[:parents]] == [each.mac for each in other.receivers]
        assert rest == sorted(rest, reverse=True)
        for t in range(0, 7200, 900):
            many.reselect_parent(node, t)
            few.reselect_parent(other, t)
            assert (node.parent and node.parent.mac) == (other.parent and other.parent.mac)
    assert max(lengths) == limit or limit == 100


@pytest.mark.rule("gateway-48")
def test_every_receiver_of_a_site_with_more_receivers_reports_the_rssi() -> None:
    extenders = [place_device(number, 3.0 * number, code="0040") for number in range(1, 10)]
    site = Site(gateway=GATEWAY, seed=1, devices=(*extenders, place_device(20, 5.0, 4.0)))
    counts = []
    for receivers in (None, 8, 100):
        observed = SimulatedGateway(replace(site, receivers=receivers)).advance(MINUTE)
        counts.append(len(select_reports(observed, device_mac(20), Kind.RSSI)))
    assert counts[0] in {4, 5}
    assert counts[1:] == [8, 10]


@pytest.mark.rule("gateway-49")
def test_a_gain_changes_what_a_node_hears_and_how_it_is_heard() -> None:
    site = Site(
        gateway=GATEWAY, seed=1, devices=(place_device(1, 8.0, code="0040"), place_device(2, 4.0, 5.0))
    )
    plain = SimulatedMesh(site)
    changed = SimulatedMesh(replace(site, gains={device_mac(1): 5.0, device_mac(2): -2.0}))

    def list_levels(mesh: SimulatedMesh) -> dict[tuple[Mac, Mac], float]:
        return {
            (node.mac, receiver.mac): level
            for node in mesh.nodes.values()
            for receiver, level in zip(node.receivers, node.mean_rssi, strict=True)
        }

    one, other, root = device_mac(1), device_mac(2), GATEWAY
    before, after = list_levels(plain), list_levels(changed)
    differences = {pair: round(after[pair] - before[pair], 3) for pair in before}
    assert differences == {(root, one): 5.0, (one, root): 5.0, (other, one): 3.0, (other, root): -2.0}


@pytest.mark.rule("gateway-49")
def test_a_power_is_the_property_of_a_device_at_the_start() -> None:
    site = Site(gateway=GATEWAY, seed=1, devices=(place_device(1, 2.0, code="0040"),))
    simulation = SimulatedGateway(replace(site, powers={device_mac(1): -8}))
    assert simulation.device(device_mac(1)).node.tx_gain == -12.0
    assert simulation.read(device_mac(1), "9802") == b"\xf8"


def test_a_node_with_a_high_gain_is_received_from_farther_away() -> None:
    site = Site(gateway=GATEWAY, seed=1, devices=(place_device(1, 70.0),))
    assert not SimulatedMesh(site).nodes[device_mac(1)].receivers
    assert SimulatedMesh(replace(site, gains={device_mac(1): 10.0})).nodes[device_mac(1)].receivers


def test_a_gateway_without_extenders_is_received_by_its_connected_leaves() -> None:
    mesh = build_mesh(place_device(1, 9.0), place_device(2, 3.0), place_device(3, 1.0, code="000F"))
    assert [receiver.mac for receiver in mesh.root.receivers] == [device_mac(2), device_mac(1)]


@pytest.mark.rule("gateway-22")
def test_rssi_readings_have_the_estimated_mean() -> None:
    mesh = build_mesh(place_device(1, 10.0))
    node = mesh.nodes[device_mac(1)]
    readings = [mesh.measure_rssi(node, 0, 600.0 * n, n) for n in range(20_000)]
    assert fmean(readings) == pytest.approx(-81.0, abs=0.3)
    assert len(set(readings)) > 10
    node.tx_gain = -8.0
    assert fmean(mesh.measure_rssi(node, 0, 600.0 * n, n) for n in range(20_000)) == pytest.approx(
        -89.0, abs=0.3
    )


def test_rssi_readings_stay_in_their_limits() -> None:
    mesh = build_mesh(place_device(1, 0.0))
    node = mesh.nodes[device_mac(1)]
    node.tx_gain = 100.0
    assert mesh.measure_rssi(node, 0, 0.0, 0) == -20
    node.tx_gain = -200.0
    assert mesh.measure_rssi(node, 0, 0.0, 0) == -127


def test_a_link_changes_by_slow_fading_alone() -> None:
    mesh = build_mesh(place_device(1, 10.0))
    node = mesh.nodes[device_mac(1)]
    levels = [mesh.compute_link_rssi(node, 0, 60.0 * minute) for minute in range(600)]
    assert max(map(abs, (level - node.mean_rssi[0] for level in levels))) <= SLOW_FADING_DB
    assert max(levels) - min(levels) > SLOW_FADING_DB


@pytest.mark.rule("gateway-20")
def test_an_unconnected_device_is_reached_through_the_node_that_receives_it_best() -> None:
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


def test_the_relay_is_always_the_strongest_receiver() -> None:
    mesh = SimulatedMesh(generate_site(GATEWAY, devices=60, seed=4))
    for t in range(0, 7200, 600):
        for node in mesh.nodes.values():
            levels = {
                mesh.compute_link_rssi(node, i, t): receiver
                for i, receiver in enumerate(node.receivers)
                if receiver.depth >= 0
            }
            strongest = max(levels, default=-200.0)
            assert mesh.find_relay(node, t) is (levels[strongest] if strongest >= MIN_USABLE_DBM else None)


def test_a_requested_extender_is_the_relay_if_it_receives_the_device() -> None:
    mesh = build_mesh(place_device(1, 8.0, code="0040"), place_device(2, 2.0, code="000F"))
    clip = mesh.nodes[device_mac(2)]
    assert mesh.find_relay_by_mac(clip, device_mac(1), 0.0) is mesh.nodes[device_mac(1)]
    assert mesh.find_relay_by_mac(clip, device_mac(9), 0.0) is None
    clip.tx_gain = -60.0
    assert mesh.find_relay_by_mac(clip, device_mac(1), 0.0) is None
    clip.tx_gain = 0.0
    mesh.leave(mesh.nodes[device_mac(1)])
    assert mesh.find_relay_by_mac(clip, device_mac(1), 0.0) is None
