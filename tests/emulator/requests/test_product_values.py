"""Every product returns values of its identifiers, and accepts only valid values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.emulator.simulation.products import GATEWAY_PRODUCT, PRODUCTS, PRODUCTS_BY_CODE
from meshfleet.errors.protocol import UndecodableValue
from meshfleet.protocol.codes import Status
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierAccess
from tests.emulator.requests.driver import RequestDriver
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.products import ProductProfile
    from meshfleet.protocol.identifiers import IdentifierDefinition
    from meshfleet.protocol.ids import Mac

VARIABLE_IDENTIFIERS = {"8100", "8101", "8103", "8800", "8801", "8802", "8803", "8810", "8813", "8831"}


def list_products() -> list[Any]:
    return [*PRODUCTS, GATEWAY_PRODUCT]


def create_driver(product: ProductProfile) -> tuple[RequestDriver, Mac]:
    """Return a driver with one device of a product, and its MAC; a gateway product is the gateway itself."""
    if product is GATEWAY_PRODUCT:
        return RequestDriver(), GATEWAY
    code = next(code for code, each in PRODUCTS_BY_CODE.items() if each is product)
    return RequestDriver(place_device(1, 3.0, code=code)), device_mac(1)


def get_expected_statuses(
    product: ProductProfile, definition: IdentifierDefinition, access: IdentifierAccess
) -> set[int]:
    if definition.id not in product.identifiers:
        return {Status.UNKNOWN_IDENTIFIER, Status.NOT_SUPPORTED}
    return {
        Status.OK if definition.access in (access, IdentifierAccess.READ_WRITE) else Status.ACCESS_NOT_ALLOWED
    }


@pytest.mark.rule("response-28", "response-26", "gateway-26")
@each_row("product", list_products())
def test_every_product_responds_to_reads_of_its_identifiers(product: ProductProfile) -> None:
    driver, device = create_driver(product)
    assert {definition.id for definition in BUILTIN_CATALOGUE} >= product.identifiers
    for definition in BUILTIN_CATALOGUE:
        raw_response = driver.request_and_wait(device, f"read/{definition.id}")
        assert raw_response["status"] in get_expected_statuses(product, definition, IdentifierAccess.READ), (
            definition
        )
        decoded_response = driver.request_and_wait(device, f"read-decoded/{definition.name}")
        if definition.layout is None:
            assert decoded_response["status"] == Status.NOT_SUPPORTED
        elif raw_response["status"] == Status.OK:
            decoded = definition.decode(bytes.fromhex(raw_response["value"]))
            assert decoded_response["status"] == Status.OK
            assert decoded_response.get("ext", {}).keys() == (decoded.ext or {}).keys()
            assert definition.id in VARIABLE_IDENTIFIERS or (
                decoded_response["value"],
                decoded_response.get("ext"),
            ) == (decoded.value, decoded.ext)
        else:
            assert decoded_response["status"] == raw_response["status"]


TRIGGERS = {"8300", "8301", "8302"}
SIZES = {"8150": {1}, "8204": {2}, "8210": {1}, "9820": set(range(1, 201))}
"""Sizes of values without a layout in the catalogue."""


def is_valid_value(definition: IdentifierDefinition, raw: bytes) -> bool:
    """Return whether bytes are a complete value of an identifier."""
    if definition.layout is None:
        return len(raw) in SIZES.get(definition.id, set())
    try:
        return definition.decode(raw).ext is None
    except UndecodableValue:
        return False


def list_invalid_values(definition: IdentifierDefinition) -> list[bytes]:
    """Return zeros of wrong sizes, and NULL unless it triggers a command."""
    zeros = [bytes(size) for size in (*range(1, 20), 64, 66, 300)]
    invalid_values = [raw for raw in zeros if not is_valid_value(definition, raw)]
    return invalid_values if definition.id in TRIGGERS else [b"", *invalid_values]


@pytest.mark.rule("response-23", "response-28")
@each_row("product", list_products())
def test_no_product_accepts_values_of_a_wrong_size(product: ProductProfile) -> None:
    driver, device = create_driver(product)
    for definition in BUILTIN_CATALOGUE:
        expected = get_expected_statuses(product, definition, IdentifierAccess.WRITE)
        rejected = {Status.INVALID_VALUE} if expected == {Status.OK} else expected
        # A value that is not writable is rejected before its size is checked.
        for raw in list_invalid_values(definition)[: None if expected == {Status.OK} else 2]:
            assert (
                driver.request_and_wait(device, f"write/{definition.id}", value=raw.hex())["status"]
                in rejected
            ), (
                definition.id,
                raw,
            )


@pytest.mark.rule("response-23", "value-37", "value-44")
@each_row(
    ("operation", "value"),
    [
        ("write/9802", None),
        ("write/9802", ""),
        ("write/9802", "0"),
        ("write/9802", "xy"),
        ("write/9802", 4),
        ("write/9802", "0404"),
        ("write/9802", "01"),
        ("write/9803", "0000"),
        ("write/9803", "0065"),
        ("write/9803", "1f41"),
        ("write/9800", "02"),
        ("write/9804", "000101"),
        ("write/9804", "00c800"),
        ("write/9804", "ffff01"),
        ("write/8110", "00"),
        ("write/8110", "0202"),
        ("write/8300", "00"),
        ("write/9820", ""),
        ("write/9820", "61" * 201),
        ("write-decoded/tx-power", "4"),
        ("write-decoded/tx-power", 4.5),
        ("write-decoded/tx-power", 1),
        ("write-decoded/tx-power", None),
        ("write-decoded/alarm", 1),
        ("write-decoded/device-mode", "asleep"),
        ("write-decoded/soft-reset", ""),
        ("write-decoded/whitelist-key", {"site": 1}),
    ],
)
def test_a_value_that_cannot_be_written_is_invalid(operation: str, value: object) -> None:
    driver = RequestDriver(place_device(1, 3.0, code="000F"))
    assert driver.request_and_wait(device_mac(1), operation, value=value)["status"] == Status.INVALID_VALUE
    assert driver.request_and_wait(device_mac(1), "read/9802")["value"] == "04"


@pytest.mark.rule("value-44")
@each_row(
    ("code", "operation", "value"),
    [
        ("0005", "write/8806", "1001"),
        ("0005", "write/8200", "d3a00003052000"),
        ("0018", "write/8303", "0001000a0002"),
        ("0018", "write/8303", "0001000a0105"),
        ("0018", "write/8121", "001803010000" + "02"),
        ("0018", "write/8122", "02"),
        ("0040", "write/8210", "13"),
    ],
)
def test_a_raw_value_beyond_its_limits_is_as_invalid_as_a_decoded_one(
    code: str, operation: str, value: str
) -> None:
    driver = RequestDriver(place_device(1, 2.0, code=code))
    assert driver.request_and_wait(device_mac(1), operation, value=value)["status"] == Status.INVALID_VALUE
