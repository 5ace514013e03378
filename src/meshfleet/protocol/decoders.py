"""Cache of msgspec decoders, each created by one thread at a time.

msgspec inspects a struct when its first decoder is created, and other threads can see the unfinished result:
if they decode the same struct at that moment, the process crashes. It happens with structs that contain
structs or enums. Code that decodes them in several threads must get its decoder here.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

from msgspec.json import Decoder

_Value = TypeVar("_Value")

_lock = Lock()
_decoders: dict[type, Decoder[Any]] = {}


def get_decoder(kind: type[_Value]) -> Decoder[_Value]:
    """Return the decoder of a type, creating it under a lock."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _lock:
            decoder = _decoders.setdefault(kind, Decoder(kind))
    return decoder
