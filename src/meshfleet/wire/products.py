"""What is known of products: what they are called, and how their firmware is updated.

A product is its model number, and where one number serves several, the variant (id-30).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.wire.ids import ModelNumber

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


class Way(StrEnum):
    """A way of updating firmware."""

    DOWNLOAD = "download"
    BROADCAST = "broadcast"
    NORDIC_DFU = "nordic-dfu"


_EVERY: Final = frozenset(Way)
_ALONE: Final = frozenset({Way.DOWNLOAD, Way.NORDIC_DFU})
"""Who never holds a link hears no broadcast."""
_MESH: Final = frozenset({Way.DOWNLOAD, Way.BROADCAST})

_WAYS: Final = {
    "0005": _EVERY,
    "000F": frozenset({Way.NORDIC_DFU}),
    "0011": _ALONE,
    "0018": _EVERY,
    "0040": _MESH,
    "0043": _MESH,
    "0050": _MESH,
    "0060": frozenset({Way.DOWNLOAD}),
    "0063": _ALONE,
    "2011": frozenset({Way.DOWNLOAD}),
}

_NRF51: Final = frozenset({"000F"})
"""Models that keep their MAC in DFU mode, and are sent there by their gateway."""


def ways_of(model: ModelNumber) -> frozenset[Way]:
    """The ways in which a model can be updated; of one that is not known here, all."""
    return _WAYS.get(model, _EVERY)


def usual_way(model: ModelNumber) -> Way:
    """The way that a model is updated unless somebody wants another (firmware-32)."""
    return Way.DOWNLOAD if Way.DOWNLOAD in ways_of(model) else Way.NORDIC_DFU


def is_legacy(model: ModelNumber) -> bool:
    """Whether it is built on an nRF51 (firmware-14, firmware-26)."""
    return model in _NRF51


def product_code(model: ModelNumber, variant: int = 0) -> str:
    """A product as documents name it: `0018`, or `0011-04` where there are variants."""
    return model if variant in _NO_VARIANT else f"{model}-{variant:02d}"


def named_products() -> Iterator[NamedProduct]:
    """All products whose names are known, by their numbers."""
    for code, name in sorted(_NAMES.items()):
        model, _, variant = code.partition("-")
        yield NamedProduct(ModelNumber(model), int(variant) if variant else None, name)


def product_name(model: ModelNumber, variant: int = 0) -> str | None:
    """What a product is called; None: it is not known here."""
    return _NAMES.get(product_code(model, variant)) or _NAMES.get(model)
