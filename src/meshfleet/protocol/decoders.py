"""Decoders of our types, made by one thread at a time.

msgspec learns what a struct is made of when it first decodes one, and shows to other threads what it has not
finished: if they decode the same struct at that moment, the whole process crashes. That takes a struct which
holds others, or an enum. So whoever decodes such a one asks here first, as several threads may do it.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

from msgspec.json import Decoder

_Value = TypeVar("_Value")

_learning = Lock()
_known: dict[type, Decoder[Any]] = {}


def get_decoder(kind: type[_Value]) -> Decoder[_Value]:
    """The decoder of a type."""
    found = _known.get(kind)
    if found is None:
        with _learning:
            found = _known.setdefault(kind, Decoder(kind))
    return found
