"""Every product tells what it has, and takes only what is a value of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.emulator.simulation.products import GATEWAY_PRODUCT as OWN
from meshfleet.emulator.simulation.products import PRODUCTS, PRODUCTS_BY_CODE
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

CHANGING = {"8100", "8101", "8103", "8800", "8801", "8802", "8803", "8810", "8813", "8831"}


def devices() -> list[Any]:
    return [*PRODUCTS, OWN]


def home(product: ProductProfile) -> tuple[RequestDriver, Mac]:
    """A desk with one device of a product; the gateway is its own."""
    if product is OWN:
        return RequestDriver(), GATEWAY
    code = next(code for code, each in PRODUCTS_BY_CODE.items() if each is product)
    return RequestDriver(place_device(1, 3.0, code=code)), device_mac(1)


def expected(product: ProductProfile, entry: IdentifierDefinition, allowed: IdentifierAccess) -> set[int]:
    if entry.id not in product.identifiers:
        return {Status.UNKNOWN_IDENTIFIER, Status.NOT_SUPPORTED}
    return {
        Status.OK if entry.access in (allowed, IdentifierAccess.READ_WRITE) else Status.ACCESS_NOT_ALLOWED
    }


@pytest.mark.rule("response-28", "response-26", "gateway-26")
@each_row("product", devices())
def test_every_product_tells_what_it_has(product: ProductProfile) -> None:
    asked, device = home(product)
    assert {entry.id for entry in BUILTIN_CATALOGUE} >= product.identifiers
    for entry in BUILTIN_CATALOGUE:
        raw = asked.request_and_wait(device, f"read/{entry.id}")
        assert raw["status"] in expected(product, entry, IdentifierAccess.READ), entry
        named = asked.request_and_wait(device, f"read-decoded/{entry.name}")
        if entry.layout is None:
            assert named["status"] == Status.NOT_SUPPORTED
        elif raw["status"] == Status.OK:
            decoded = entry.decode(bytes.fromhex(raw["value"]))
            assert named["status"] == Status.OK
            assert named.get("ext", {}).keys() == (decoded.ext or {}).keys()
            assert entry.id in CHANGING or (named["value"], named.get("ext")) == (decoded.value, decoded.ext)
        else:
            assert named["status"] == raw["status"]


TRIGGERS = {"8300", "8301", "8302"}
SIZES = {"8150": {1}, "8204": {2}, "8210": {1}, "9820": set(range(1, 201))}
"""Of values whose layout the catalogue does not know."""


def is_value(entry: IdentifierDefinition, raw: bytes) -> bool:
    """Whether the catalogue can read these bytes, and all of them."""
    if entry.layout is None:
        return len(raw) in SIZES.get(entry.id, set())
    try:
        return entry.decode(raw).ext is None
    except UndecodableValue:
        return False


def wrong_values(entry: IdentifierDefinition) -> list[bytes]:
    """NULL, where it is no command, and zeros that are too few or too many."""
    zeros = [bytes(size) for size in (*range(1, 20), 64, 66, 300)]
    wrong = [raw for raw in zeros if not is_value(entry, raw)]
    return wrong if entry.id in TRIGGERS else [b"", *wrong]


@pytest.mark.rule("response-23", "response-28")
@each_row("product", devices())
def test_no_product_takes_values_of_a_wrong_size(product: ProductProfile) -> None:
    asked, device = home(product)
    for entry in BUILTIN_CATALOGUE:
        allowed = expected(product, entry, IdentifierAccess.WRITE)
        refused = {Status.INVALID_VALUE} if allowed == {Status.OK} else allowed
        # What cannot be written at all is refused before its size is looked at.
        for raw in wrong_values(entry)[: None if allowed == {Status.OK} else 2]:
            assert (
                asked.request_and_wait(device, f"write/{entry.id}", value=raw.hex())["status"] in refused
            ), (
                entry.id,
                raw,
            )


@pytest.mark.rule("response-23", "value-37", "value-44")
@each_row(
    ("what", "value"),
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
def test_a_value_that_cannot_be_written_is_invalid(what: str, value: object) -> None:
    asked = RequestDriver(place_device(1, 3.0, code="000F"))
    assert asked.request_and_wait(device_mac(1), what, value=value)["status"] == Status.INVALID_VALUE
    assert asked.request_and_wait(device_mac(1), "read/9802")["value"] == "04"


@pytest.mark.rule("value-44")
@each_row(
    ("code", "what", "value"),
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
    code: str, what: str, value: str
) -> None:
    asked = RequestDriver(place_device(1, 2.0, code=code))
    assert asked.request_and_wait(device_mac(1), what, value=value)["status"] == Status.INVALID_VALUE
