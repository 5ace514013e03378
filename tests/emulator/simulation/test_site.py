"""Generated sites, descriptions of sites, and site files with all their problems."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from math import hypot
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE, DeviceMode, NodeRole
from meshfleet.emulator.simulation.site import (
    DEFAULT_NETWORK_KEY,
    MAX_DEVICES,
    FloorArea,
    Site,
    SitePosition,
    Survey,
    Walk,
    Walls,
    WallSegment,
    derive_public_key,
)
from meshfleet.emulator.simulation.site_file import describe_site, parse_site
from meshfleet.emulator.simulation.site_generator import generate_site
from meshfleet.errors.emulator import MalformedSite
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import Mac, parse_mac
from tests.examples import examples
from tests.row_tables import each_row

GATEWAY = Mac("d0cf5e000001")
SENSOR = {"mac": "c00000000002", "model": "0018", "x": 3, "y": -4.5}
EXTENDER = {"mac": "c00000000004", "model": "0040", "x": 5, "y": 0}
SEGMENT = {"floor": 0, "x1": 0, "y1": 0, "x2": 1, "y2": 1, "loss": 3}
AREA = {"floor": 0, "minX": 0, "minY": 0, "maxX": 4, "maxY": 3}


def parse(content: Any) -> Site:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return parse_site(data, source="my.json", gateway=GATEWAY, seed=7)


def build_site(**fields: Any) -> Any:
    """Return a site file with a valid device, changed by these fields, and an extender."""
    return {"devices": [SENSOR | fields, EXTENDER]}


def find_problems(content: Any) -> list[tuple[str, str]]:
    with pytest.raises(MalformedSite) as caught:
        parse(content)
    assert caught.value.source == "my.json"
    assert all(f"my.json: {path}: {reason}" in str(caught.value) for path, reason in caught.value.faults)
    return list(caught.value.faults)


# --- Generated sites ---


def test_a_site_depends_on_seed_and_gateway() -> None:
    one = generate_site(GATEWAY, devices=50, seed=1)
    assert one == generate_site(GATEWAY, devices=50, seed=1)
    for other in (
        generate_site(GATEWAY, devices=50, seed=2),
        generate_site(Mac("d0cf5e000002"), devices=50, seed=1),
    ):
        assert [each.position for each in one.devices] != [each.position for each in other.devices]
        assert not {each.mac for each in one.devices} & {each.mac for each in other.devices}


def test_twenty_devices_include_every_product_in_its_default_mode() -> None:
    site = generate_site(GATEWAY, devices=20, seed=1)
    assert {each.product.name for each in site.devices} == {
        each.name for each in PRODUCTS_BY_CODE.values() if each.role is not NodeRole.GATEWAY
    }
    assert all(each.mode is each.product.default_mode for each in site.devices)
    assert [each.product.model for each in site.devices[:8]] == [
        *("0043", "0018", "0005", "000F", "0050", "0018", "0011", "0040")
    ]


@each_row("devices", [10, 11, 50, 200])
def test_one_device_is_legacy_and_one_is_unprovisioned(devices: int) -> None:
    site = generate_site(GATEWAY, devices=devices, seed=1)
    assert Counter(each.access for each in site.devices) == {
        None: devices - 2,
        AccessType.LEGACY: 1,
        AccessType.UNPROVISIONED: 1,
    }
    assert [each.product.model for each in site.devices[8:10]] == ["000F", "0063"]
    assert sum(each.product.role is NodeRole.EXTENDER for each in site.devices) >= devices // 5


def test_small_sites_are_all_provisioned() -> None:
    site = generate_site(GATEWAY, devices=9, seed=1)
    assert all(each.access is None for each in site.devices)
    assert site.devices[8].product is PRODUCTS_BY_CODE["0011-04"]


def test_macs_are_even_and_unique_over_many_gateways() -> None:
    gateways = [Mac(f"{start + n:012x}") for start in (0xD0CF5E0000F0, 0xC00000000000) for n in range(100)]
    macs = [each.mac for gateway in gateways for each in generate_site(gateway, devices=30, seed=1).devices]
    assert len({*macs, *gateways}) == len(macs) + len(gateways)
    assert all(int(parse_mac(mac), 16) % 2 == 0 for mac in macs)


@each_row("devices", [10, 60, 400])
def test_every_device_is_near_an_extender_or_the_gateway(devices: int) -> None:
    site = generate_site(GATEWAY, devices=devices, seed=1)
    relay_positions = [
        SitePosition(0, 0.0, 0.0),
        *(each.position for each in site.devices if each.product.role is NodeRole.EXTENDER),
    ]
    for each in site.devices:
        distances = [
            hypot(each.position.x - x, each.position.y - y)
            for floor, x, y in relay_positions
            if abs(floor - each.position.floor) <= 1 and (floor, x, y) != each.position
        ]
        assert min(distances) <= (13 if each.product.role is NodeRole.EXTENDER else 9.1)
    assert (len({each.position.floor for each in site.devices}) == 1) == (devices <= 60)


def test_batteries_and_positions_are_plausible_and_rounded() -> None:
    site = generate_site(GATEWAY, devices=200, seed=1)
    for each in site.devices:
        assert 55 <= each.battery <= 100
        assert (round(each.position.x, 2), round(each.position.y, 2)) == each.position[1:]
    assert {each.battery for each in site.devices if not each.product.has_battery} == {100}
    assert list(site.walls.x) == sorted(site.walls.x)


def test_the_number_of_devices_is_limited() -> None:
    assert len(generate_site(GATEWAY, devices=MAX_DEVICES, seed=1).devices) == MAX_DEVICES
    assert generate_site(GATEWAY, devices=0, seed=1).devices == ()
    for devices in (-1, MAX_DEVICES + 1):
        with pytest.raises(ValueError, match="10000"):
            generate_site(GATEWAY, devices=devices, seed=1)


def test_public_keys_are_unique_and_well_formed() -> None:
    keys = {derive_public_key(each.mac) for each in generate_site(GATEWAY, devices=50, seed=1).devices}
    assert len(keys) == 50
    assert {(len(key), key[0]) for key in keys} == {(65, 4)}


# --- Descriptions ---


def test_a_description_has_exactly_the_documented_fields() -> None:
    site = generate_site(GATEWAY, devices=10, seed=1)
    description = describe_site(site, SimulatedMesh(site))
    assert list(description) == ["gateway", "devices", "walls"]
    common_fields = ["mac", "model", "name", "floor", "x", "y", "parent"]
    assert [list(each) for each in description["devices"]] == [
        *[common_fields] * 8,
        [*common_fields, "access"],
        [*common_fields, "access", "publicKey"],
    ]
    assert description["devices"][6]["model"] == "0011"
    assert description["devices"][9]["publicKey"] == derive_public_key(site.devices[9].mac).hex()


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 70), st.integers(0, 1000))
def test_a_description_is_a_site_file_of_the_same_site(devices: int, seed: int) -> None:
    site = generate_site(GATEWAY, devices=devices, seed=seed)
    description = describe_site(site, SimulatedMesh(site))
    parsed = parse_site(json.dumps(description).encode(), source="-", gateway=GATEWAY, seed=seed)
    for one, other in zip(site.devices, parsed.devices, strict=True):
        assert (one.mac, one.product, one.position, one.mode, one.access) == (
            *(other.mac, other.product, other.position, other.mode, other.access),
        )
    parents = [each["parent"] for each in description["devices"]]
    parsed_parents = [each["parent"] for each in describe_site(parsed, SimulatedMesh(parsed))["devices"]]
    assert [new for old, new in zip(parents, parsed_parents, strict=True) if old] == [
        old for old in parents if old
    ]


# --- Site files ---


def test_optional_fields_have_default_values() -> None:
    site = parse({"devices": [SENSOR]})
    assert (site.gateway, site.seed, site.walls, site.network_key) == (
        GATEWAY,
        7,
        Walls(),
        DEFAULT_NETWORK_KEY,
    )
    (sensor,) = site.devices
    assert (sensor.mac, sensor.product, sensor.position) == (
        SENSOR["mac"],
        PRODUCTS_BY_CODE["0018"],
        SitePosition(0, 3.0, -4.5),
    )
    assert (sensor.mode, sensor.access, sensor.battery, sensor.parent) == (
        DeviceMode.CONNECTED,
        None,
        90,
        None,
    )


def test_optional_fields_are_read() -> None:
    fields = {"floor": -1, "mode": "storage", "access": "legacy", "battery": 12, "parent": EXTENDER["mac"]}
    site = parse(
        build_site(**fields) | {"gateway": GATEWAY, "walls": {"x": [4, -4.5], "y": []}, "key": "ff" * 16}
    )
    sensor = site.devices[0]
    assert (sensor.position.floor, sensor.mode, sensor.access) == (-1, DeviceMode.STORAGE, AccessType.LEGACY)
    assert (sensor.battery, sensor.parent) == (12, EXTENDER["mac"])
    assert (site.walls, site.network_key) == (Walls(x=(-4.5, 4.0)), b"\xff" * 16)


@pytest.mark.rule("gateway-48", "gateway-49", "gateway-50", "gateway-51")
def test_fields_for_positioning_are_read() -> None:
    segment = {"floor": 1, "x1": 0, "y1": 1.5, "x2": 4, "y2": 1.5, "loss": 6}
    floor = {"floor": 1, "minX": -1, "minY": -2, "maxX": 10, "maxY": 5}
    survey = {"points": [{"x": 1, "y": 2}, {"floor": 1, "x": 3, "y": 4}], "seconds": 30}
    third = {"mac": "c00000000006", "model": "000F", "x": 0, "y": 0, "survey": survey}
    site = parse(
        {
            "devices": [
                SENSOR | {"floor": 1, "walk": {"speed": 1.5, "pause": 0, "path": [[1, 2], [3, 4.5]]}},
                EXTENDER | {"gain": -2.5, "power": 8},
                third,
            ],
            "walls": {"segments": [segment]},
            "floors": [floor],
            "receivers": 20,
            "interval": 1,
        }
    )
    assert site.walls == Walls(segments=(WallSegment(1, 0.0, 1.5, 4.0, 1.5, 6.0),))
    assert site.areas == (FloorArea(1, -1.0, -2.0, 10.0, 5.0),)
    assert (site.receivers, site.interval, site.gains) == (20, 1.0, {EXTENDER["mac"]: -2.5})
    assert site.powers == {EXTENDER["mac"]: 8}
    path = (SitePosition(1, 1.0, 2.0), SitePosition(1, 3.0, 4.5))
    assert site.movements == {
        SENSOR["mac"]: Walk(speed=1.5, pause=0.0, path=path),
        third["mac"]: Survey(points=(SitePosition(0, 1.0, 2.0), SitePosition(1, 3.0, 4.0)), seconds=30.0),
    }
    assert site.devices[0].position == path[0]  # where the walk begins, not the x and y of the device
    assert site.get_area(1) == site.areas[0]
    assert site.get_area(0) == FloorArea(0, 0.0, 0.0, 5.0, 0.0)


@each_row(
    ("fields", "code"),
    [
        ({"model": "0011-04"}, "0011-04"),
        ({"model": "0011", "name": "KKM B1"}, "0011-04"),
        ({"model": "0011", "name": "BlueUp SafeX BLE"}, "0011-01"),
        ({"model": "000f"}, "000F"),
        ({"model": "0018", "name": "MT MotionSensor 15x"}, "0018"),
    ],
)
def test_a_product_is_identified_by_model_variant_or_name(fields: dict[str, str], code: str) -> None:
    assert parse(build_site(**fields)).devices[0].product is PRODUCTS_BY_CODE[code]


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    assert parse(b"\xef\xbb\xbf" + json.dumps(build_site()).encode()) == parse(build_site())


@each_row(
    ("fields", "path", "reason"),
    [
        ({"mac": "C00000000002"}, "mac", "not 12 lowercase hex digits"),
        ({"mac": 12}, "mac", "12 is not a string"),
        ({"mac": GATEWAY}, "mac", "is the gateway's"),
        ({"mac": "ffffffffffff"}, "mac", "reserved for all gateways"),
        ({"model": "0011"}, "model", "0011-01, 0011-04"),
        ({"model": "2011"}, "model", "is not one of"),
        ({"model": "0018-04"}, "model", "is not one of"),
        ({"model": None}, "model", "is not a string"),
        ({"name": "KKM B1"}, "name", "is not a product with this model number"),
        ({"name": 1}, "name", "is not a string"),
        ({"floor": 201}, "floor", "from -20 to 200"),
        ({"floor": 1.5}, "floor", "is not a whole number"),
        ({"floor": True}, "floor", "is not a whole number"),
        ({"x": 10_000.5}, "x", "from -10000 to 10000"),
        ({"x": "3"}, "x", "is not a number"),
        ({"x": None}, "x", "is not a number"),
        ({"y": False}, "y", "is not a number"),
        ({"y": 10**400}, "y", "a very large number is not a number"),
        ({"y": -(10**30)}, "y", "is not a number"),
        ({"parent": "c000000000aa"}, "parent", "is not in this file"),
        ({"parent": SENSOR["mac"]}, "parent", "is not an extender"),
        ({"parent": 4}, "parent", "is not a string"),
        ({"mode": "dfu"}, "mode", "is not one of connected, unconnected, storage"),
        ({"model": "0050", "mode": "unconnected"}, "mode", "does not support it"),
        ({"mode": []}, "mode", "an array is not a string"),
        ({"access": "open"}, "access", "is not one of unprovisioned, legacy"),
        ({"battery": 101}, "battery", "from 0 to 100"),
        ({"publicKey": "04" * 65}, "publicKey", "is not the public key of this MAC"),
        ({"publicKey": "04"}, "publicKey", "hex of 65 bytes"),
        ({"gain": 41}, "gain", "from -40 to 40"),
        ({"power": 9}, "power", "from -40 to 8"),
        ({"power": 8}, "power", "MT MotionSensor 15x does not support it"),
        ({"walk": 3}, "walk", "is not an object"),
        ({"walk": {"speed": 0}}, "walk.speed", "from 0.01 to 50"),
        ({"walk": {"pause": -1}}, "walk.pause", "from 0 to 86400"),
        ({"walk": {"path": []}}, "walk.path", "has no points"),
        ({"walk": {"path": [[1, 2], [3]]}}, "walk.path", "[1] is not [x, y]"),
        ({"walk": {"path": [[1, "2"]]}}, "walk.path", "[0]: '2' is not a number"),
        ({"walk": {"route": 1}}, "walk.route", "is not a field here"),
        ({"walk": {}, "survey": {"points": [{"x": 1, "y": 1}]}}, "survey", "cannot be combined with walk"),
        ({"model": "0040", "walk": {}}, "walk", "extenders do not move"),
        ({"survey": {}}, "survey.points", "is missing"),
        ({"survey": {"points": [{"x": 1}]}}, "survey.points[0].y", "is missing"),
        ({"survey": {"points": [{"x": 1, "y": 1}], "seconds": 0}}, "survey.seconds", "from 1 to 86400"),
        ({"flor": 3}, "flor", "is not a field here"),
        ({"a\nb": 3}, "'a\\nb'", "is not a field here"),
    ],
)
def test_a_problem_of_a_device_is_reported_with_its_path(
    fields: dict[str, Any], path: str, reason: str
) -> None:
    ((actual_path, actual_reason),) = find_problems(build_site(**fields))
    assert actual_path == f"devices[0].{path}"
    assert reason in actual_reason


@each_row(
    ("content", "path", "reason"),
    [
        (b"", "file", "cannot be read as JSON"),
        (b'{"devices": [NaN]}', "file", "cannot be read as JSON"),
        (b'{"devices": [1e999]}', "file", "cannot be read as JSON"),
        (b'{"devices": "\xff"}', "file", "is not UTF-8"),
        (b"[" * 100_000, "file", "nested too deeply"),
        ([], "file", "an array is not an object"),
        ({}, "devices", "is missing"),
        ({"devices": {}}, "devices", "an object is not an array"),
        ({"devices": [3]}, "devices[0]", "3 is not an object"),
        ({"devices": [SENSOR, SENSOR]}, "devices[1].mac", "is the MAC of devices[0]"),
        ({"devices": [SENSOR] * 10_001}, "devices", "10000 are allowed"),
        ({"devices": [EXTENDER | {"parent": EXTENDER["mac"]}]}, "devices[0].parent", "is the device itself"),
        ({"devices": [], "gateway": "d0cf5e000002"}, "gateway", "the emulated gateway is d0cf5e000001"),
        ({"devices": [], "gateway": None}, "gateway", "None is not a string"),
        ({"devices": [], "wals": {}}, "wals", "is not a field here"),
        ({"devices": [], "walls": []}, "walls", "is not an object"),
        ({"devices": [], "walls": {"x": 4}}, "walls.x", "is not an array"),
        ({"devices": [], "walls": {"x": ["4"]}}, "walls.x", "is not a number"),
        ({"devices": [], "walls": {"z": []}}, "walls.z", "is not a field here"),
        ({"devices": [], "walls": {"segments": [{}] * 1001}}, "walls.segments", "1000 are allowed"),
        (
            {"devices": [], "walls": {"segments": [SEGMENT | {"x2": None}]}},
            "walls.segments[0].x2",
            "not a number",
        ),
        (
            {"devices": [], "walls": {"segments": [SEGMENT | {"loss": -1}]}},
            "walls.segments[0].loss",
            "from 0",
        ),
        ({"devices": [], "floors": [AREA, AREA]}, "floors[1].floor", "0 is in another entry too"),
        ({"devices": [], "floors": [AREA | {"maxY": 0}]}, "floors[0].maxY", "0 is not more than minY"),
        ({"devices": [], "receivers": 5}, "receivers", "from 6 to 100"),
        ({"devices": [], "receivers": 101}, "receivers", "from 6 to 100"),
        ({"devices": [], "interval": 0}, "interval", "from 0.1 to 3600"),
        ({"devices": [], "key": "00"}, "key", "hex of 16 bytes"),
        ({"devices": [], "key": 5}, "key", "hex of 16 bytes"),
    ],
)
def test_a_problem_of_a_file_is_reported_with_its_path(content: Any, path: str, reason: str) -> None:
    ((actual_path, actual_reason),) = find_problems(content)
    assert actual_path == path
    assert reason in actual_reason


def test_all_problems_are_reported_at_once() -> None:
    problems = find_problems(
        {
            "devices": [{"mac": "x", "colour": 1}, SENSOR | {"y": "1", "parent": "c0000000000a"}, 7],
            "walls": {"y": [None]},
            "name": "home",
        }
    )
    assert sorted(path for path, _ in problems) == [
        *("devices[0].colour", "devices[0].mac", "devices[0].model", "devices[0].x", "devices[0].y"),
        *("devices[1].parent", "devices[1].y", "devices[2]", "name", "walls.y"),
    ]


def test_an_invalid_key_is_not_quoted() -> None:
    assert "5ec2e7" not in str(find_problems({"devices": [], "key": "5ec2e7"}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *(*SENSOR, "name", "floor", "parent", "mode", "access", "publicKey", "battery", "colour"),
        *("gain", "power", "walk", "survey"),
    ]
)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.dictionaries(names, json_values, max_size=4),
    st.dictionaries(st.text(max_size=6), json_values, max_size=2),
)
def test_arbitrary_values_give_a_site_or_malformed_site(
    fields: dict[str, Any], other_fields: dict[str, Any]
) -> None:
    data = json.dumps(build_site(**fields) | other_fields).encode("utf-8", "surrogatepass")
    with suppress(MalformedSite):
        assert len(parse(data).devices) <= 2


@given(st.binary(max_size=60))
@example(b"null")
def test_arbitrary_bytes_are_rejected(data: bytes) -> None:
    assert find_problems(data)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1000), st.integers(0, 255))
def test_a_damaged_file_gives_a_site_or_malformed_site(index: int, byte: int) -> None:
    data = bytearray(json.dumps(build_site() | {"gateway": GATEWAY, "key": "00" * 16}).encode())
    data[index % len(data)] = byte
    with suppress(MalformedSite):
        assert len(parse(bytes(data)).devices) == 2
