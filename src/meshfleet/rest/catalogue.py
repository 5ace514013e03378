"""JSON bodies of the REST API: the catalogue of identifiers and products."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import IdentifierText, ResponseBody

CATALOGUE_PATH: Final = "/api/v1/catalogue"


class CatalogueEntry(ResponseBody, frozen=True, kw_only=True):
    """Property, measurement, event or command in the catalogue of identifiers (rest-205)."""

    identifier: IdentifierText
    name: str
    kinds: list[Literal["property", "measurement", "event", "command", "internal"]]
    """Kinds of the identifier; several if it has different kinds on different devices."""
    type: str
    """Binary layout of the identifier's values, in the notation of the catalogue; `raw` if unknown."""
    unit: str | None
    """Unit of the identifier's values; None if the values have no unit."""
    access: Literal["r", "w", "rw"] | None
    """Whether requests may read (`r`) or write (`w`) the identifier; None if devices only report it."""
    note: str | None


class Product(ResponseBody, frozen=True, kw_only=True):
    """Device product in the catalogue (rest-205)."""

    model_number: Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]
    variant: int | None
    """Variant of the model; None if the model number alone identifies the product."""
    name: str


class Catalogue(ResponseBody, frozen=True, kw_only=True):
    """Catalogue of all known identifiers and products, sorted by number."""

    identifiers: list[CatalogueEntry]
    products: list[Product]
