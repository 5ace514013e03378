"""Cache of msgspec decoders, each created by one thread at a time.

msgspec inspects a struct type when its first decoder is created. If another thread decodes the same type at
that moment, that thread uses the unfinished result, and the process crashes. This happens with structs that
contain structs or enums. Code that decodes such structs in several threads must get its decoder here.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

from msgspec.json import Decoder

_Value = TypeVar("_Value")

_lock = Lock()
_decoders: dict[type, Decoder[Any]] = {}


def get_decoder(kind: type[_Value]) -> Decoder[_Value]:
    """Return the msgspec JSON decoder of a type; the first call for the type creates it under a lock."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _lock:
            decoder = _decoders.setdefault(kind, Decoder(kind))
    return decoder
