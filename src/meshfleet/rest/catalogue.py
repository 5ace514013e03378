"""Bodies of the catalogue of identifiers and products."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import IdentifierText, ResponseBody

CATALOGUE_PATH: Final = "/api/v1/catalogue"


class CatalogueEntry(ResponseBody, frozen=True, kw_only=True):
    """Identifier in the catalogue (rest-205)."""

    identifier: IdentifierText
    name: str
    kinds: list[Literal["property", "measurement", "event", "command", "internal"]]
    """Kinds of the identifier; several if devices differ."""
    type: str
    """Layout of the values in the notation of the catalogue; `raw` if unknown."""
    unit: str | None
    """Unit of the values; None if they have no unit."""
    access: Literal["r", "w", "rw"] | None
    """Operations that requests may use; None if the identifier is only reported."""
    note: str | None


class Product(ResponseBody, frozen=True, kw_only=True):
    """Product in the catalogue (rest-205)."""

    model_number: Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]
    variant: int | None
    """Variant of the model; None if the model number alone identifies the product."""
    name: str


class Catalogue(ResponseBody, frozen=True, kw_only=True):
    """All known identifiers and products, each in numerical order."""

    identifiers: list[CatalogueEntry]
    products: list[Product]
