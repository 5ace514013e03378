"""How the field types of payloads are written, and what else is read.

The types of `wire.fields` carry functions where JSON schema has words. A schema tells the one spelling in
which a field is sent; its description adds what readers of ours tolerate.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, get_args

from meshfleet.wire import fields
from meshfleet.wire.diagnostics import Sha256Field

_HEX: Final = "^([0-9a-f]{2})*$"
_EITHER_CASE: Final = "Read in either case."


class Spelt(NamedTuple):
    """One way to write, and the others that are read."""

    schema: dict[str, Any]
    tolerated: str = ""


_SPELT: Final[dict[object, Spelt]] = {
    fields.Time: Spelt(
        {"format": "date-time", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$"},
        "UTC with three fractional digits and `Z`. Read with any number of digits, with any offset or none "
        "(then it is UTC), and in the other spellings of ISO 8601; what is finer than a millisecond is cut.",
    ),
    fields.Seq: Spelt({}, "Also read as quoted text."),
    fields.MacField: Spelt({"pattern": "^[0-9a-f]{12}$"}, _EITHER_CASE),
    fields.ExtenderId: Spelt({"pattern": "^[0-9A-F]{12}$"}, f"Sent in upper case. {_EITHER_CASE}"),
    fields.HexField: Spelt({"pattern": _HEX}, _EITHER_CASE),
    fields.HexOrNull: Spelt({"type": ["string", "null"], "pattern": _HEX}, _EITHER_CASE),
    fields.SecretField: Spelt({"pattern": _HEX}, _EITHER_CASE),
    fields.ModelNumberField: Spelt({"pattern": "^[0-9A-F]{4}$"}, _EITHER_CASE),
    fields.VersionField: Spelt(
        {"pattern": r"^\d{1,5}\.\d{1,5}\.\d{1,5}(-beta\.\d{1,3})?$"},
        "Without a third number that one is 0.",
    ),
    Sha256Field: Spelt({"pattern": "^[0-9a-f]{64}$"}, _EITHER_CASE),
}


def spelling_of(hint: object) -> Spelt:
    """How a field with this annotation is written, be it optional or not."""
    for part in (hint, *get_args(hint)):
        if (found := _SPELT.get(part)) is not None:
            return found
    return Spelt({})
