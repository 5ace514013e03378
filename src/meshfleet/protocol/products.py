"""Known products: their names, and the update methods of their firmware.

A product is identified by its model number. Products that share a model number differ in their variant
(id-30).
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
    """Product whose name is known."""

    model: ModelNumber
    variant: int | None
    """Variant of the model; None if only this product has the model number."""
    name: str


class UpdateMethod(StrEnum):
    """Method by which a device gets a firmware update."""

    DOWNLOAD = "download"
    BROADCAST = "broadcast"
    NORDIC_DFU = "nordic-dfu"


_ALL_METHODS: Final = frozenset(UpdateMethod)
_WITHOUT_BROADCAST: Final = frozenset({UpdateMethod.DOWNLOAD, UpdateMethod.NORDIC_DFU})
"""Update methods of models that never stay connected and so cannot receive broadcasts."""
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
"""Models with an nRF51 chip, which keep their MAC in DFU mode and are switched to DFU mode by the gateway."""


def get_update_methods(model: ModelNumber) -> frozenset[UpdateMethod]:
    """Return the firmware update methods of a model; all methods for an unknown model."""
    return _UPDATE_METHODS.get(model, _ALL_METHODS)


def get_default_update_method(model: ModelNumber) -> UpdateMethod:
    """Return the update method for devices of a model if a job requests no method (firmware-32)."""
    return (
        UpdateMethod.DOWNLOAD
        if UpdateMethod.DOWNLOAD in get_update_methods(model)
        else UpdateMethod.NORDIC_DFU
    )


def is_nrf51(model: ModelNumber) -> bool:
    """Return whether the model has an nRF51 chip (firmware-14, firmware-26)."""
    return model in _NRF51


def format_product_code(model: ModelNumber, variant: int = 0) -> str:
    """Return the product code of a model and variant: `0018`, or `0011-04` with a variant."""
    return model if variant in _NO_VARIANT else f"{model}-{variant:02d}"


def list_named_products() -> Iterator[NamedProduct]:
    """List the products with known names, ordered by product code."""
    for code, name in sorted(_NAMES.items()):
        model, _, variant = code.partition("-")
        yield NamedProduct(ModelNumber(model), int(variant) if variant else None, name)


def find_product_name(model: ModelNumber, variant: int = 0) -> str | None:
    """Return the name of a product; None if the product is unknown."""
    return _NAMES.get(format_product_code(model, variant)) or _NAMES.get(model)
