"""What is known of products: what they are called, and how their firmware is updated.

A product is its model number, and where one number serves several, the variant (id-30).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.ids import ModelNumber

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_VARIANT: Final = frozenset({0, 255})

_NAMES: Final = {
    "0005": "MT MultiTracker 11x",
    "000F": "MT PocketClip 231",
    "0011-01": "BlueUp SafeX BLE",
    "0011-04": "KKM B1",
    "0018": "MT MotionSensor 15x",
    "0040": "Raytac MDBT50Q-RX",
    "0043": "Minew MBM01",
    "0050": "MOKOSmart S03D",
    "0060": "BlueUp SafeX",
    "0063": "MT Wristband 211",
    "2011": "MT MeshConnect 2011",
    "2031": "Compulab IOT-GATE-IMX8PLUS",
}


class NamedProduct(NamedTuple):
    """A product whose name is known."""

    model: ModelNumber
    variant: int | None
    """None: the model number alone tells it."""
    name: str


class UpdateMethod(StrEnum):
    """A way of updating firmware."""

    DOWNLOAD = "download"
    BROADCAST = "broadcast"
    NORDIC_DFU = "nordic-dfu"


_ALL_METHODS: Final = frozenset(UpdateMethod)
_WITHOUT_BROADCAST: Final = frozenset({UpdateMethod.DOWNLOAD, UpdateMethod.NORDIC_DFU})
"""Who never holds a link hears no broadcast."""
_WITHOUT_NORDIC_DFU: Final = frozenset({UpdateMethod.DOWNLOAD, UpdateMethod.BROADCAST})

_UPDATE_METHODS: Final = {
    "0005": _ALL_METHODS,
    "000F": frozenset({UpdateMethod.NORDIC_DFU}),
    "0011": _WITHOUT_BROADCAST,
    "0018": _ALL_METHODS,
    "0040": _WITHOUT_NORDIC_DFU,
    "0043": _WITHOUT_NORDIC_DFU,
    "0050": _WITHOUT_NORDIC_DFU,
    "0060": frozenset({UpdateMethod.DOWNLOAD}),
    "0063": _WITHOUT_BROADCAST,
    "2011": frozenset({UpdateMethod.DOWNLOAD}),
}

_NRF51: Final = frozenset({"000F"})
"""Models that keep their MAC in DFU mode, and are sent there by their gateway."""


def get_update_methods(model: ModelNumber) -> frozenset[UpdateMethod]:
    """The ways in which a model can be updated; of one that is not known here, all."""
    return _UPDATE_METHODS.get(model, _ALL_METHODS)


def get_default_update_method(model: ModelNumber) -> UpdateMethod:
    """The way that a model is updated unless somebody wants another (firmware-32)."""
    return (
        UpdateMethod.DOWNLOAD
        if UpdateMethod.DOWNLOAD in get_update_methods(model)
        else UpdateMethod.NORDIC_DFU
    )


def is_nrf51(model: ModelNumber) -> bool:
    """Whether it is built on an nRF51 (firmware-14, firmware-26)."""
    return model in _NRF51


def format_product_code(model: ModelNumber, variant: int = 0) -> str:
    """A product as documents name it: `0018`, or `0011-04` where there are variants."""
    return model if variant in _NO_VARIANT else f"{model}-{variant:02d}"


def list_named_products() -> Iterator[NamedProduct]:
    """All products whose names are known, by their numbers."""
    for code, name in sorted(_NAMES.items()):
        model, _, variant = code.partition("-")
        yield NamedProduct(ModelNumber(model), int(variant) if variant else None, name)


def find_product_name(model: ModelNumber, variant: int = 0) -> str | None:
    """What a product is called; None: it is not known here."""
    return _NAMES.get(format_product_code(model, variant)) or _NAMES.get(model)
