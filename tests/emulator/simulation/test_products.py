"""What can be bought."""

from __future__ import annotations

import pytest

from meshfleet.emulator.simulation import properties
from meshfleet.emulator.simulation.device import SimulatedDevice
from meshfleet.emulator.simulation.mesh import MAX_CHILDREN
from meshfleet.emulator.simulation.products import (
    GATEWAY_PRODUCT,
    PRODUCTS,
    PRODUCTS_BY_CODE,
    Chip,
    DeviceMode,
    NodeRole,
    ProductProfile,
)
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierAccess
from meshfleet.protocol.ids import Identifier
from meshfleet.protocol.products import UpdateMethod
from tests.emulator.simulation.sites import build_mesh, place_device
from tests.row_tables import each_row

EVERY = (*PRODUCTS, GATEWAY_PRODUCT)
every_product = each_row("product", EVERY)

CONNECTED, UNCONNECTED, STORAGE, DFU = (
    DeviceMode.CONNECTED,
    DeviceMode.UNCONNECTED,
    DeviceMode.STORAGE,
    DeviceMode.DFU,
)


@each_row(
    ("code", "name", "modes"),
    [
        ("0005", "MT MultiTracker 11x", {CONNECTED, STORAGE, UNCONNECTED, DFU}),
        ("000F", "MT PocketClip 231", {STORAGE, UNCONNECTED, DFU}),
        ("0011-01", "BlueUp SafeX BLE", {STORAGE, UNCONNECTED, DFU}),
        ("0011-04", "KKM B1", {STORAGE, UNCONNECTED, DFU}),
        ("0018", "MT MotionSensor 15x", {CONNECTED, STORAGE, UNCONNECTED, DFU}),
        ("0040", "Raytac MDBT50Q-RX", {CONNECTED, STORAGE}),
        ("0043", "Minew MBM01", {CONNECTED, STORAGE}),
        ("0050", "MOKOSmart S03D", {CONNECTED, STORAGE}),
        ("0060", "BlueUp SafeX", {STORAGE, UNCONNECTED}),
        ("2011", "MT MeshConnect 2011", {CONNECTED}),
    ],
)
def test_products_have_the_modes_of_the_real_ones(code: str, name: str, modes: set[DeviceMode]) -> None:
    assert PRODUCTS_BY_CODE[code].name == name
    assert PRODUCTS_BY_CODE[code].modes == modes
    assert PRODUCTS_BY_CODE[code].default_mode in modes - {STORAGE, DFU}


@every_product
def test_every_product_can_be_told_from_the_others_by_model_and_variant(product: ProductProfile) -> None:
    assert [each for each in EVERY if (each.model, each.variant) == (product.model, product.variant)] == [
        product
    ]


@every_product
def test_every_identifier_of_a_product_is_in_the_catalogue(product: ProductProfile) -> None:
    assert [
        each for each in (*product.identifiers, *product.events) if BUILTIN_CATALOGUE.find(each) is None
    ] == []


@every_product
def test_what_is_reported_can_be_read_and_what_commands_can_only_be_written(product: ProductProfile) -> None:
    readable = (IdentifierAccess.READ, IdentifierAccess.READ_WRITE)
    told = (*product.measurements, *product.reported_properties, *product.unreported_properties)
    assert [each for each in told if BUILTIN_CATALOGUE[each].access not in readable] == []
    assert [
        each for each in product.commands if BUILTIN_CATALOGUE[each].access is not IdentifierAccess.WRITE
    ] == []


@every_product
def test_every_series_that_a_product_reports_has_a_counter_of_its_own(product: ProductProfile) -> None:
    places = list(product.series_index.values())
    assert sorted(places) == list(range(len(places)))
    wanted: set[tuple[Kind, Identifier | None]] = {(Kind.HEARTBEAT, None), (Kind.RSSI, None)}
    wanted |= {
        (Kind.PROPERTY, each) for each in (*product.reported_properties, *product.unreported_properties)
    }
    wanted |= {(Kind.MEASUREMENT, each) for each in product.measurements}
    wanted |= {(Kind.EVENT, each) for each in product.events}
    assert wanted <= set(product.series_index)


@every_product
def test_every_property_has_a_value_from_the_first_day_that_fits_its_layout(product: ProductProfile) -> None:
    fixture = place_device(
        1, 2.0, code=next(code for code, each in PRODUCTS_BY_CODE.items() if each is product)
    )
    new = SimulatedDevice(fixture, build_mesh(fixture).nodes[fixture.mac], 1)
    for identifier in (*product.measurements, *product.reported_properties, *product.unreported_properties):
        raw = properties.read_property(new, identifier, 0.0)
        assert raw, identifier
        if BUILTIN_CATALOGUE[identifier].layout is not None:
            BUILTIN_CATALOGUE.decode(identifier, raw)


@every_product
def test_every_writable_property_is_set_on_a_new_device(product: ProductProfile) -> None:
    stored = {
        each
        for each in (*product.reported_properties, *product.unreported_properties)
        if BUILTIN_CATALOGUE[each].access is IdentifierAccess.READ_WRITE
    }
    assert stored - {Identifier("8110")} <= set(product.default_values)


@each_row(
    ("identifier", "raw"),
    [
        ("9802", "04"),
        ("9803", "02bc"),
        ("9804", "00c80a"),
        ("9805", "00c802"),
        ("9806", "01f401"),
        ("9807", "0bb805"),
        ("9808", "003c"),
        ("9810", "000000000000"),
        ("9821", "00"),
    ],
)
def test_a_new_pocket_clip_is_set_like_a_real_one(identifier: str, raw: str) -> None:
    assert PRODUCTS_BY_CODE["000F"].default_values[Identifier(identifier)].hex() == raw


@each_row(
    ("chip", "powers"),
    [
        (Chip.NRF51822, {-30, -20, -16, -12, -8, -4, 0, 4}),
        (Chip.NRF52832, {-40, -20, -16, -12, -8, -4, 0, 4}),
        (Chip.NRF52840, {-40, -20, -16, -12, -8, -4, 0, 2, 3, 4, 5, 6, 7, 8}),
    ],
)
def test_chips_have_the_power_steps_of_the_real_ones(chip: Chip, powers: set[int]) -> None:
    assert set(chip.value) == powers
    assert chip.is_nrf52 == (-40 in powers)


@pytest.mark.rule("gateway-18")
def test_gateways_and_extenders_are_the_ones_that_have_children() -> None:
    relays = {each for each in EVERY if each.role is not NodeRole.LEAF}
    assert {each.model for each in relays} == {"0040", "0043", "2011"}
    assert {each for each in EVERY if Identifier("8210") in each.default_values} == relays
    assert {each.default_values[Identifier("8210")][0] for each in relays} == {MAX_CHILDREN}


@each_row("code", ["000F"])
def test_some_products_are_updated_by_nordic_dfu_only(code: str) -> None:
    assert PRODUCTS_BY_CODE[code].update_methods == {UpdateMethod.NORDIC_DFU}
    assert not {"8120", "8121", "8122"} & PRODUCTS_BY_CODE[code].identifiers


def test_only_products_with_dfu_mode_are_updated_in_it() -> None:
    assert [
        each.name
        for each in PRODUCTS
        if (UpdateMethod.NORDIC_DFU in each.update_methods) != (DFU in each.modes)
    ] == []


@pytest.mark.rule("gateway-31")
def test_products_include_an_identifier_that_no_gateway_can_decode() -> None:
    raw_only = {
        each
        for product in PRODUCTS
        for each in product.reported_properties
        if BUILTIN_CATALOGUE[each].layout is None
    }
    assert "8831" in raw_only


@pytest.mark.rule("value-42")
def test_no_product_has_what_is_used_inside_the_mesh_only() -> None:
    for product in (*PRODUCTS, GATEWAY_PRODUCT):
        told = {identifier for _, identifier in product.series_index if identifier is not None}
        assert not [each for each in (*told, *product.identifiers) if each.startswith("ff")]
