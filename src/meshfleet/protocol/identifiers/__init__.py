"""The catalogue of identifiers, and their values raw and decoded.

identifiers.table   the identifiers we know, as data; users add theirs in a file of the same form
catalogue           finds identifiers by id and by name
table               reads such a file, and tells its mistakes
entry               one identifier; its raw values to JSON and back
notation            the little language of the columns `type` and `ext`
layouts             what the notation is made of: bytes to JSON and back
composites          layouts made of layouts: records, lists, dictionaries
accelerometer       the one layout whose fields depend on each other
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
