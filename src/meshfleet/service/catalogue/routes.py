"""`/api/v1/catalogue`."""

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from litestar import Router, get

from meshfleet.wire import rest
from meshfleet.wire.identifiers import BUILTIN, Access, Entry
from meshfleet.wire.products import NamedProduct, named_products
from meshfleet.wire.rest import Catalogue

_ACCESS: Final[Mapping[Access, Literal["r", "w", "rw"] | None]] = {
    Access.READ: "r",
    Access.WRITE: "w",
    Access.READ_WRITE: "rw",
    Access.NONE: None,
}


@get()
async def show_catalogue() -> Catalogue:
    """Show the identifiers that the service knows, and the products.

    They are some dozens, and come at once. They stay as they are until the service is another version.
    """
    return _catalogue()


@cache
def _catalogue() -> Catalogue:
    return Catalogue(
        identifiers=[_entry(each) for each in sorted(BUILTIN, key=lambda entry: entry.id)],
        products=[_product(each) for each in named_products()],
    )


def _entry(entry: Entry) -> rest.CatalogueEntry:
    return rest.CatalogueEntry(
        identifier=entry.id,
        name=entry.name,
        kinds=[each.value for each in sorted(entry.kinds)],
        type=entry.type,
        unit=entry.unit or None,
        access=_ACCESS[entry.access],
        note=entry.note or None,
    )


def _product(product: NamedProduct) -> rest.Product:
    return rest.Product(model_number=product.model, variant=product.variant, name=product.name)


router = Router("/api/v1/catalogue", route_handlers=[show_catalogue], tags=["Catalogue"])
