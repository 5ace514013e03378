"""What products are called: their model number, and where one number serves several, the variant (id-30)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meshfleet.wire.ids import ModelNumber

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


def product_code(model: ModelNumber, variant: int = 0) -> str:
    """A product as documents name it: `0018`, or `0011-04` where there are variants."""
    return model if variant in _NO_VARIANT else f"{model}-{variant:02d}"


def product_name(model: ModelNumber, variant: int = 0) -> str | None:
    """What a product is called; None: it is not known here."""
    return _NAMES.get(product_code(model, variant)) or _NAMES.get(model)
