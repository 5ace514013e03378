"""Catalogue of identifiers, and conversion of their values between raw bytes and JSON.

The built-in catalogue is the text file `identifiers.table`; users can add tables of the same format. The
columns `type` and `ext` describe binary values in a small notation (`notation`), which is compiled to layouts
(`layouts`, `composites`).
"""

from meshfleet.protocol.identifiers.catalogue import BUILTIN_CATALOGUE, IdentifierCatalogue
from meshfleet.protocol.identifiers.definition import (
    DecodedValue,
    IdentifierAccess,
    IdentifierDefinition,
    IdentifierKind,
)

__all__ = [
    "BUILTIN_CATALOGUE",
    "DecodedValue",
    "IdentifierAccess",
    "IdentifierCatalogue",
    "IdentifierDefinition",
    "IdentifierKind",
]
