"""Profiles of the products."""

from __future__ import annotations

import pytest

from meshfleet.emulator.simulation import properties
from meshfleet.emulator.simulation.device import SimulatedDevice
from meshfleet.emulator.simulation.mesh_node import MAX_CHILDREN
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

ALL_PRODUCTS = (*PRODUCTS, GATEWAY_PRODUCT)
every_product = each_row("product", ALL_PRODUCTS)

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
def test_model_and_variant_identify_a_product(product: ProductProfile) -> None:
    assert [
        each for each in ALL_PRODUCTS if (each.model, each.variant) == (product.model, product.variant)
    ] == [product]


@every_product
def test_every_identifier_of_a_product_is_in_the_catalogue(product: ProductProfile) -> None:
    assert [
        each for each in (*product.identifiers, *product.events) if BUILTIN_CATALOGUE.find(each) is None
    ] == []


@every_product
def test_reported_identifiers_are_readable_and_commands_are_write_only(product: ProductProfile) -> None:
    readable = (IdentifierAccess.READ, IdentifierAccess.READ_WRITE)
    readable_identifiers = (
        *product.measurements,
        *product.reported_properties,
        *product.unreported_properties,
    )
    assert [each for each in readable_identifiers if BUILTIN_CATALOGUE[each].access not in readable] == []
    assert [
        each for each in product.commands if BUILTIN_CATALOGUE[each].access is not IdentifierAccess.WRITE
    ] == []


@every_product
def test_every_series_of_a_product_has_its_own_sequence_number(product: ProductProfile) -> None:
    indexes = list(product.series_index.values())
    assert sorted(indexes) == list(range(len(indexes)))
    expected: set[tuple[Kind, Identifier | None]] = {(Kind.HEARTBEAT, None), (Kind.RSSI, None)}
    expected |= {
        (Kind.PROPERTY, each) for each in (*product.reported_properties, *product.unreported_properties)
    }
    expected |= {(Kind.MEASUREMENT, each) for each in product.measurements}
    expected |= {(Kind.EVENT, each) for each in product.events}
    assert expected <= set(product.series_index)


@every_product
def test_every_property_of_a_new_device_has_a_valid_value(product: ProductProfile) -> None:
    site_device = place_device(
        1, 2.0, code=next(code for code, each in PRODUCTS_BY_CODE.items() if each is product)
    )
    device = SimulatedDevice(site_device, build_mesh(site_device).nodes[site_device.mac], 1)
    for identifier in (*product.measurements, *product.reported_properties, *product.unreported_properties):
        raw = properties.read_property(device, identifier, 0.0)
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
def test_a_new_pocket_clip_has_the_default_values_of_a_real_one(identifier: str, raw: str) -> None:
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
def test_only_gateways_and_extenders_can_have_children() -> None:
    relays = {each for each in ALL_PRODUCTS if each.role is not NodeRole.LEAF}
    assert {each.model for each in relays} == {"0040", "0043", "2011"}
    assert {each for each in ALL_PRODUCTS if Identifier("8210") in each.default_values} == relays
    assert {each.default_values[Identifier("8210")][0] for each in relays} == {MAX_CHILDREN}


@each_row("code", ["000F"])
def test_some_products_are_updated_by_nordic_dfu_only(code: str) -> None:
    assert PRODUCTS_BY_CODE[code].update_methods == {UpdateMethod.NORDIC_DFU}
    assert not {"8120", "8121", "8122"} & PRODUCTS_BY_CODE[code].identifiers


def test_exactly_the_products_with_dfu_mode_support_nordic_dfu() -> None:
    assert [
        each.name
        for each in PRODUCTS
        if (UpdateMethod.NORDIC_DFU in each.update_methods) != (DFU in each.modes)
    ] == []


@pytest.mark.rule("gateway-31")
def test_products_include_an_identifier_without_a_layout() -> None:
    raw_only = {
        each
        for product in PRODUCTS
        for each in product.reported_properties
        if BUILTIN_CATALOGUE[each].layout is None
    }
    assert "8831" in raw_only


@pytest.mark.rule("value-42")
def test_no_product_has_identifiers_that_are_internal_to_the_mesh() -> None:
    for product in (*PRODUCTS, GATEWAY_PRODUCT):
        reported = {identifier for _, identifier in product.series_index if identifier is not None}
        assert not [each for each in (*reported, *product.identifiers) if each.startswith("ff")]
