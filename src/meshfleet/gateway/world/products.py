"""What can be bought: the products that the simulated mesh is made of.

Model numbers, roles, chips, modes and ways of updating are those of the real products, and so are the
default values of MT PocketClip 231, which its relatives share here. Where a product's sensors or versions are
not published they are ours.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.wire.codes import Kind
from meshfleet.wire.ids import Identifier, ModelNumber, Version
from meshfleet.wire.products import Way, product_code, product_name, ways_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(Enum):
    """What a node does in the tree."""

    GATEWAY = auto()
    EXTENDER = auto()
    LEAF = auto()


class Mode(IntEnum):
    """The device mode, as 8110 has it."""

    DFU = 1
    CONNECTED = 2
    STORAGE = 3
    UNCONNECTED = 4


class Chip(Enum):
    """What a device is built on: the powers at which it can send, in dBm."""

    NRF51822 = (-30, -20, -16, -12, -8, -4, 0, 4)
    NRF52832 = (-40, -20, -16, -12, -8, -4, 0, 4)
    NRF52840 = (-40, -20, -16, -12, -8, -4, 0, 2, 3, 4, 5, 6, 7, 8)

    @property
    def is_nrf52(self) -> bool:
        """Whether it advertises under another MAC in DFU mode (firmware-14)."""
        return self is not Chip.NRF51822


class Product(Struct, frozen=True, kw_only=True, dict=True):
    """One product: all that its devices have in common."""

    model: ModelNumber
    variant: int = 0
    chip: Chip
    role: Role = Role.LEAF
    modes: frozenset[Mode]
    usual: Mode
    """The mode it is used in."""
    firmware: Version
    hardware: tuple[int, int] = (1, 0)
    battery: bool = True
    button: bool = False
    """Whether somebody can raise an alarm with it."""
    motion: int = 0
    """What 8810 says while it moves, or sees something move; 0: it does not notice."""
    numbers_sensors: bool = False
    """Whether the number of the sensor stands behind a temperature."""
    measured: tuple[Identifier, ...] = ()
    tells: tuple[Identifier, ...] = ()
    """Properties of its own that it sends by itself."""
    keeps: tuple[Identifier, ...] = ()
    """Properties of its own that it tells when asked."""
    obeys: tuple[Identifier, ...] = ()
    """Commands of its own."""

    @cached_property
    def name(self) -> str:
        """What it is called."""
        return product_name(self.model, self.variant) or product_code(self.model, self.variant)

    @cached_property
    def ways(self) -> frozenset[Way]:
        """The ways in which it can be updated."""
        return ways_of(self.model)

    @cached_property
    def reported(self) -> tuple[Identifier, ...]:
        """Properties that it sends by itself."""
        battery = _BATTERY if self.battery else ()
        updates = _UPDATE_STATE if Way.DOWNLOAD in self.ways else ()
        return (*_IDENTITY, *_HEALTH, *battery, *self.tells, *updates)

    @cached_property
    def silent(self) -> tuple[Identifier, ...]:
        """Properties that are only told when asked for (gateway-26)."""
        return (*_PRODUCTION, *_COUNTER, *self.keeps)

    @cached_property
    def commands(self) -> tuple[Identifier, ...]:
        """Properties that act when they are written."""
        updates = _UPDATE_COMMANDS if Way.DOWNLOAD in self.ways else ()
        return (*_COMMANDS, *self.obeys, *updates)

    @cached_property
    def events(self) -> tuple[Identifier, ...]:
        """What it tells at the moment when it happens."""
        return (*_RESETS, *(each for each in self.tells if each in _NOTICED))

    @cached_property
    def values(self) -> Mapping[Identifier, bytes]:
        """What its writable properties are set to when it is new."""
        return {each: _VALUES[each] for each in (*self.tells, *self.keeps) if each in _VALUES}

    @cached_property
    def identifiers(self) -> frozenset[Identifier]:
        """All that requests can name."""
        return frozenset((*self.measured, *self.reported, *self.silent, *self.commands))

    @cached_property
    def series(self) -> Mapping[tuple[Kind, Identifier | None], int]:
        """A place for each series whose reports are counted by `seq`."""
        counted: list[tuple[Kind, Identifier | None]] = [(Kind.HEARTBEAT, None), (Kind.RSSI, None)]
        counted += ((Kind.PROPERTY, each) for each in (*self.reported, *self.silent))
        counted += ((Kind.MEASUREMENT, each) for each in self.measured)
        counted += ((Kind.MEASUREMENT_ERROR, each) for each in self.measured)
        counted += ((Kind.EVENT, each) for each in self.events)
        return {series: place for place, series in enumerate(counted)}


def _ids(text: str) -> tuple[Identifier, ...]:
    return tuple(map(Identifier, text.split()))


_IDENTITY = _ids("8000 8007 8001 8002")
_PRODUCTION = _ids("8003 8005 8006 8008")
_HEALTH = _ids("8101 8102 8110")
_BATTERY = _ids("8100 8103")
_COMMANDS = _ids("8300 8301 8302 8303")
_UPDATE_STATE = _ids("8120")
_UPDATE_COMMANDS = _ids("8121 8122")
_COUNTER = _ids("8305")
_RESETS = _ids("8112 8113")
_NOTICED = _ids("8810 9800 9809")
"""Properties whose changes are told as events too."""

_VALUES: Final = {
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
"""New devices are set to these."""

_ALL_MODES = frozenset(Mode)
_UNCONNECTED_MODES = frozenset({Mode.STORAGE, Mode.UNCONNECTED, Mode.DFU})


_WEARABLE = "9801 9802 9803 9804 9805 9806 9807 9808 9810"

GATEWAY: Final = Product(
    model=ModelNumber("2011"),
    chip=Chip.NRF52840,
    role=Role.GATEWAY,
    modes=frozenset({Mode.CONNECTED}),
    usual=Mode.CONNECTED,
    firmware=Version.parse("2.6.0"),
    hardware=(1, 2),
    battery=False,
    measured=_ids("8800"),
    tells=_ids("9802 8125 8130"),
    keeps=_ids("8009 8210"),
    obeys=_ids("8111 8124 8126 8131 8304"),
)

PRODUCTS: Final = (
    Product(
        model=ModelNumber("0005"),
        chip=Chip.NRF52832,
        modes=_ALL_MODES,
        usual=Mode.CONNECTED,
        firmware=Version.parse("3.1.4"),
        motion=0x10,
        measured=_ids("8800 8801 8802"),
        tells=_ids("8810 8813 8200 8204 8806 9802 9804 9807 9808"),
    ),
    Product(
        model=ModelNumber("000F"),
        chip=Chip.NRF51822,
        modes=_UNCONNECTED_MODES,
        usual=Mode.UNCONNECTED,
        firmware=Version.parse("2.0.9"),
        hardware=(2, 1),
        button=True,
        motion=0x10,
        measured=_ids("8813"),
        tells=_ids(f"8020 8204 8810 9800 9821 {_WEARABLE}"),
        obeys=_ids("9820"),
    ),
    Product(
        model=ModelNumber("0011"),
        chip=Chip.NRF52832,
        variant=1,
        modes=_UNCONNECTED_MODES,
        usual=Mode.UNCONNECTED,
        firmware=Version.parse("1.4.0"),
        button=True,
        motion=0x11,
        measured=_ids("8800"),
        tells=_ids(f"8810 9800 9809 {_WEARABLE}"),
    ),
    Product(
        model=ModelNumber("0011"),
        chip=Chip.NRF52832,
        variant=4,
        modes=_UNCONNECTED_MODES,
        usual=Mode.UNCONNECTED,
        firmware=Version.parse("1.4.0"),
        button=True,
        measured=_ids("8800"),
        tells=_ids(f"9800 {_WEARABLE}"),
    ),
    Product(
        model=ModelNumber("0018"),
        chip=Chip.NRF52832,
        modes=_ALL_MODES,
        usual=Mode.CONNECTED,
        firmware=Version.parse("3.0.0"),
        motion=0x20,
        measured=_ids("8803 8813"),
        tells=_ids("8810 8150 8204 9802"),
    ),
    Product(
        model=ModelNumber("0040"),
        chip=Chip.NRF52840,
        role=Role.EXTENDER,
        modes=frozenset({Mode.CONNECTED, Mode.STORAGE}),
        usual=Mode.CONNECTED,
        firmware=Version.parse("4.2.1"),
        battery=False,
        measured=_ids("8800"),
        tells=_ids("8210 9802"),
        keeps=_ids("8009"),
    ),
    Product(
        model=ModelNumber("0043"),
        chip=Chip.NRF52840,
        role=Role.EXTENDER,
        modes=frozenset({Mode.CONNECTED, Mode.STORAGE}),
        usual=Mode.CONNECTED,
        firmware=Version.parse("4.2.0"),
        measured=_ids("8800"),
        tells=_ids("8210 9802"),
    ),
    Product(
        model=ModelNumber("0050"),
        chip=Chip.NRF52832,
        modes=frozenset({Mode.CONNECTED, Mode.STORAGE}),
        usual=Mode.CONNECTED,
        firmware=Version.parse("1.1.0"),
        numbers_sensors=True,
        measured=_ids("8800"),
        tells=_ids("8831 9802"),
    ),
    Product(
        model=ModelNumber("0060"),
        chip=Chip.NRF52832,
        modes=frozenset({Mode.STORAGE, Mode.UNCONNECTED}),
        usual=Mode.UNCONNECTED,
        firmware=Version.parse("1.0.2"),
        button=True,
        motion=0x11,
        measured=_ids("8800"),
        tells=_ids(f"8810 9800 {_WEARABLE}"),
    ),
    Product(
        model=ModelNumber("0063"),
        chip=Chip.NRF52832,
        modes=_UNCONNECTED_MODES,
        usual=Mode.UNCONNECTED,
        firmware=Version.parse("2.2.0-beta.3"),
        button=True,
        motion=0x10,
        measured=_ids("8813"),
        tells=_ids(f"8810 9800 {_WEARABLE}"),
    ),
)

BY_CODE: Final[Mapping[str, Product]] = {
    f"{product.model}-{product.variant:02d}" if product.variant else product.model: product
    for product in (*PRODUCTS, GATEWAY)
}
"""By model number, and variant where one number serves several products: `0018`, `0011-04`."""
