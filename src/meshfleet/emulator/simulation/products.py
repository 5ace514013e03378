"""Profiles of the products in a simulated mesh.

Model numbers, roles, chips, modes and update methods are those of the real products. Default property values
are those of MT PocketClip 231, also for related products. Sensors and versions that are not published are
invented.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Identifier, ModelNumber, Version
from meshfleet.protocol.products import (
    UpdateMethod,
    find_product_name,
    format_product_code,
    get_update_methods,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


TX_POWER_ID: Final = Identifier("9802")
"""Property with the transmit power in dBm."""


class NodeRole(Enum):
    """Role of a node in the mesh tree."""

    GATEWAY = auto()
    EXTENDER = auto()
    LEAF = auto()


class DeviceMode(IntEnum):
    """Device mode, with the values of property 8110."""

    DFU = 1
    CONNECTED = 2
    STORAGE = 3
    UNCONNECTED = 4


class Chip(Enum):
    """Radio chip of a device; the value contains the supported transmit powers in dBm."""

    NRF51822 = (-30, -20, -16, -12, -8, -4, 0, 4)
    NRF52832 = (-40, -20, -16, -12, -8, -4, 0, 4)
    NRF52840 = (-40, -20, -16, -12, -8, -4, 0, 2, 3, 4, 5, 6, 7, 8)

    @property
    def is_nrf52(self) -> bool:
        """Whether the chip is an nRF52, which uses another MAC in DFU mode (firmware-14)."""
        return self is not Chip.NRF51822


class ProductProfile(Struct, frozen=True, kw_only=True, dict=True):
    """Characteristics that all devices of a product share."""

    model: ModelNumber
    variant: int = 0
    chip: Chip
    role: NodeRole = NodeRole.LEAF
    modes: frozenset[DeviceMode]
    firmware: Version
    hardware: tuple[int, int] = (1, 0)
    has_battery: bool = True
    has_button: bool = False
    """Whether the device has a button that raises an alarm."""
    motion_code: int = 0
    """First byte of property 8810 during motion; 0 if the device cannot detect motion."""
    has_sensor_number: bool = False
    """Whether the raw value of a temperature (8800) ends with one more byte, the index of the sensor."""
    measurements: tuple[Identifier, ...] = ()
    own_reported: tuple[Identifier, ...] = ()
    """Product-specific properties that the device reports without a request."""
    own_readable: tuple[Identifier, ...] = ()
    """Product-specific properties that the device sends only when they are read."""
    own_commands: tuple[Identifier, ...] = ()
    """Product-specific commands: properties that trigger an action when they are written."""

    @cached_property
    def default_mode(self) -> DeviceMode:
        """Device mode in normal use: connected if the product has this mode, else unconnected."""
        return DeviceMode.CONNECTED if DeviceMode.CONNECTED in self.modes else DeviceMode.UNCONNECTED

    @cached_property
    def powers(self) -> tuple[int, ...]:
        """Transmit powers in dBm that can be set; empty if the product cannot change it."""
        return self.chip.value if TX_POWER_ID in self.default_values else ()

    @cached_property
    def name(self) -> str:
        """Product name, or model number and variant for a product without a name."""
        return find_product_name(self.model, self.variant) or format_product_code(self.model, self.variant)

    @cached_property
    def update_methods(self) -> frozenset[UpdateMethod]:
        """Firmware update methods that the product supports."""
        return get_update_methods(self.model)

    @cached_property
    def reported_properties(self) -> tuple[Identifier, ...]:
        """Properties that the device reports without a request."""
        battery = _BATTERY if self.has_battery else ()
        updates = _UPDATE_STATE if UpdateMethod.DOWNLOAD in self.update_methods else ()
        return (*_IDENTITY, *_HEALTH, *battery, *self.own_reported, *updates)

    @cached_property
    def unreported_properties(self) -> tuple[Identifier, ...]:
        """Properties that the device sends only when they are read (gateway-26)."""
        return (*_PRODUCTION, *_COUNTER, *self.own_readable)

    @cached_property
    def commands(self) -> tuple[Identifier, ...]:
        """Properties that trigger an action when they are written."""
        updates = _UPDATE_COMMANDS if UpdateMethod.DOWNLOAD in self.update_methods else ()
        return (*_COMMANDS, *self.own_commands, *updates)

    @cached_property
    def events(self) -> tuple[Identifier, ...]:
        """Identifiers that the device reports as events."""
        return (*_RESETS, *(each for each in self.own_reported if each in _EVENT_PROPERTIES))

    @cached_property
    def default_values(self) -> Mapping[Identifier, bytes]:
        """Initial raw values of the stored properties, by identifier."""
        own = (*self.own_reported, *self.own_readable)
        return {each: _DEFAULT_VALUES[each] for each in own if each in _DEFAULT_VALUES}

    @cached_property
    def identifiers(self) -> frozenset[Identifier]:
        """Identifiers that requests can read or write."""
        return frozenset(
            (*self.measurements, *self.reported_properties, *self.unreported_properties, *self.commands)
        )

    @cached_property
    def series_index(self) -> Mapping[tuple[Kind, Identifier | None], int]:
        """Index into `SimulatedDevice.seqs` of each report series with its own sequence numbers."""
        series_list: list[tuple[Kind, Identifier | None]] = [(Kind.HEARTBEAT, None), (Kind.RSSI, None)]
        for kind, identifiers in (
            (Kind.PROPERTY, (*self.reported_properties, *self.unreported_properties)),
            (Kind.MEASUREMENT, self.measurements),
            (Kind.MEASUREMENT_ERROR, self.measurements),
            (Kind.EVENT, self.events),
        ):
            series_list += ((kind, each) for each in identifiers)
        return {series: index for index, series in enumerate(series_list)}


def _parse_ids(text: str) -> tuple[Identifier, ...]:
    """Return the identifiers in a string, which are separated by spaces."""
    return tuple(map(Identifier, text.split()))


_IDENTITY = _parse_ids("8000 8007 8001 8002")
_PRODUCTION = _parse_ids("8003 8005 8006 8008")
_HEALTH = _parse_ids("8101 8102 8110")
_BATTERY = _parse_ids("8100 8103")
_COMMANDS = _parse_ids("8300 8301 8302 8303")
_UPDATE_STATE = _parse_ids("8120")
_UPDATE_COMMANDS = _parse_ids("8121 8122")
_COUNTER = _parse_ids("8305")
_RESETS = _parse_ids("8112 8113")
_EVENT_PROPERTIES = _parse_ids("8810 9800 9809")
"""Properties whose changes are also reported as events."""

_DEFAULT_VALUES: Final = {
    Identifier(identifier): bytes.fromhex(value)
    for identifier, value in {
        "8009": "00" * 65,
        "8150": "02",
        "8200": "d3200003052000",
        "8204": "003c",
        "8210": "12",
        "8806": "0000",
        "9800": "00",
        "9801": "00",
        "9802": "04",
        "9803": "02bc",
        "9804": "00c80a",
        "9805": "00c802",
        "9806": "01f401",
        "9807": "0bb805",
        "9808": "003c",
        "9809": "00",
        "9810": "000000000000",
        "9821": "00",
    }.items()
}
"""Raw values of stored properties in a new device, by identifier."""

_ALL_MODES = frozenset(DeviceMode)
_CONNECTED_MODES = frozenset({DeviceMode.CONNECTED, DeviceMode.STORAGE})
_UNCONNECTED_MODES = frozenset({DeviceMode.STORAGE, DeviceMode.UNCONNECTED, DeviceMode.DFU})


_WEARABLE = "9801 9802 9803 9804 9805 9806 9807 9808 9810"

GATEWAY_PRODUCT: Final = ProductProfile(
    model=ModelNumber("2011"),
    chip=Chip.NRF52840,
    role=NodeRole.GATEWAY,
    modes=frozenset({DeviceMode.CONNECTED}),
    firmware=Version.parse("2.6.0"),
    hardware=(1, 2),
    has_battery=False,
    measurements=_parse_ids("8800"),
    own_reported=_parse_ids("9802 8125 8130"),
    own_readable=_parse_ids("8009 8210"),
    own_commands=_parse_ids("8111 8124 8126 8131 8304"),
)

PRODUCTS: Final = (
    ProductProfile(
        model=ModelNumber("0005"),
        chip=Chip.NRF52832,
        modes=_ALL_MODES,
        firmware=Version.parse("3.1.4"),
        motion_code=0x10,
        measurements=_parse_ids("8800 8801 8802"),
        own_reported=_parse_ids("8810 8813 8200 8204 8806 9802 9804 9807 9808"),
    ),
    ProductProfile(
        model=ModelNumber("000F"),
        chip=Chip.NRF51822,
        modes=_UNCONNECTED_MODES,
        firmware=Version.parse("2.0.9"),
        hardware=(2, 1),
        has_button=True,
        motion_code=0x10,
        measurements=_parse_ids("8813"),
        own_reported=_parse_ids(f"8020 8204 8810 9800 9821 {_WEARABLE}"),
        own_commands=_parse_ids("9820"),
    ),
    ProductProfile(
        model=ModelNumber("0011"),
        chip=Chip.NRF52832,
        variant=1,
        modes=_UNCONNECTED_MODES,
        firmware=Version.parse("1.4.0"),
        has_button=True,
        motion_code=0x11,
        measurements=_parse_ids("8800"),
        own_reported=_parse_ids(f"8810 9800 9809 {_WEARABLE}"),
    ),
    ProductProfile(
        model=ModelNumber("0011"),
        chip=Chip.NRF52832,
        variant=4,
        modes=_UNCONNECTED_MODES,
        firmware=Version.parse("1.4.0"),
        has_button=True,
        measurements=_parse_ids("8800"),
        own_reported=_parse_ids(f"9800 {_WEARABLE}"),
    ),
    ProductProfile(
        model=ModelNumber("0018"),
        chip=Chip.NRF52832,
        modes=_ALL_MODES,
        firmware=Version.parse("3.0.0"),
        motion_code=0x20,
        measurements=_parse_ids("8803 8813"),
        own_reported=_parse_ids("8810 8150 8204 9802"),
    ),
    ProductProfile(
        model=ModelNumber("0040"),
        chip=Chip.NRF52840,
        role=NodeRole.EXTENDER,
        modes=_CONNECTED_MODES,
        firmware=Version.parse("4.2.1"),
        has_battery=False,
        measurements=_parse_ids("8800"),
        own_reported=_parse_ids("8210 9802"),
        own_readable=_parse_ids("8009"),
    ),
    ProductProfile(
        model=ModelNumber("0043"),
        chip=Chip.NRF52840,
        role=NodeRole.EXTENDER,
        modes=_CONNECTED_MODES,
        firmware=Version.parse("4.2.0"),
        measurements=_parse_ids("8800"),
        own_reported=_parse_ids("8210 9802"),
    ),
    ProductProfile(
        model=ModelNumber("0050"),
        chip=Chip.NRF52832,
        modes=_CONNECTED_MODES,
        firmware=Version.parse("1.1.0"),
        has_sensor_number=True,
        measurements=_parse_ids("8800"),
        own_reported=_parse_ids("8831 9802"),
    ),
    ProductProfile(
        model=ModelNumber("0060"),
        chip=Chip.NRF52832,
        modes=frozenset({DeviceMode.STORAGE, DeviceMode.UNCONNECTED}),
        firmware=Version.parse("1.0.2"),
        has_button=True,
        motion_code=0x11,
        measurements=_parse_ids("8800"),
        own_reported=_parse_ids(f"8810 9800 {_WEARABLE}"),
    ),
    ProductProfile(
        model=ModelNumber("0063"),
        chip=Chip.NRF52832,
        modes=_UNCONNECTED_MODES,
        firmware=Version.parse("2.2.0-beta.3"),
        has_button=True,
        motion_code=0x10,
        measurements=_parse_ids("8813"),
        own_reported=_parse_ids(f"8810 9800 {_WEARABLE}"),
    ),
)

PRODUCTS_BY_CODE: Final[Mapping[str, ProductProfile]] = {
    f"{product.model}-{product.variant:02d}" if product.variant else product.model: product
    for product in (*PRODUCTS, GATEWAY_PRODUCT)
}
"""Products by product code: the model number, followed by the variant if it is not 0 (`0018`, `0011-04`)."""
