"""Bodies about what identifiers mean, and what products are called."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import IdentifierText, ResponseBody

CATALOGUE_PATH: Final = "/api/v1/catalogue"


class CatalogueEntry(ResponseBody, frozen=True, kw_only=True):
    """An identifier that the service knows (rest-205)."""

    identifier: IdentifierText
    name: str
    kinds: list[Literal["property", "measurement", "event", "command", "internal"]]
    """Several where devices differ."""
    type: str
    """The layout of its values, in the notation of the catalogue; `raw`: not known."""
    unit: str | None
    """None: it has none."""
    access: Literal["r", "w", "rw"] | None
    """What requests may do with it; None: it is only ever reported."""
    note: str | None


class Product(ResponseBody, frozen=True, kw_only=True):
    """A product that the service knows by name (rest-205)."""

    model_number: Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]
    variant: int | None
    """None: the model number alone tells the product."""
    name: str


class Catalogue(ResponseBody, frozen=True, kw_only=True):
    """All that the service knows of identifiers and products, each in the order of its number."""

    identifiers: list[CatalogueEntry]
    products: list[Product]
