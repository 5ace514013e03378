"""REST route of the catalogue of identifiers and products: `/api/v1/catalogue`."""

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from litestar import Router, get

from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierAccess, IdentifierDefinition
from meshfleet.protocol.products import list_named_products
from meshfleet.rest.catalogue import Catalogue, CatalogueEntry, Product

_ACCESS: Final[Mapping[IdentifierAccess, Literal["r", "w", "rw"] | None]] = {
    IdentifierAccess.READ: "r",
    IdentifierAccess.WRITE: "w",
    IdentifierAccess.READ_WRITE: "rw",
    IdentifierAccess.NONE: None,
}


@get()
async def show_catalogue() -> Catalogue:
    """Get all identifiers and products that the service knows.

    The list is short and not paginated. It changes only with the version of the service.
    """
    return _build_catalogue()


@cache
def _build_catalogue() -> Catalogue:
    return Catalogue(
        identifiers=[
            _to_catalogue_entry(each) for each in sorted(BUILTIN_CATALOGUE, key=lambda entry: entry.id)
        ],
        products=[
            Product(model_number=each.model, variant=each.variant, name=each.name)
            for each in list_named_products()
        ],
    )


def _to_catalogue_entry(entry: IdentifierDefinition) -> CatalogueEntry:
    return CatalogueEntry(
        identifier=entry.id,
        name=entry.name,
        kinds=[each.value for each in sorted(entry.kinds)],
        type=entry.type,
        unit=entry.unit or None,
        access=_ACCESS[entry.access],
        note=entry.note or None,
    )


router = Router("/api/v1/catalogue", route_handlers=[show_catalogue], tags=["Catalogue"])
