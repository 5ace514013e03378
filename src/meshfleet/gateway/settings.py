"""What can be set about an emulated gateway."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from meshfleet.errors import WireError
from meshfleet.gateway.faults import Faults
from meshfleet.wire.gating import NEWEST
from meshfleet.wire.ids import Mac, Version

OLDEST: Final = Version(1, 2, 0)
"""The first version that an emulated gateway can have (version-13)."""


class Mode(StrEnum):
    """How reports are written (gateway-11). Requests work in both."""

    RAW = "raw"
    DECODED = "decoded"


class Settings(Struct, frozen=True, kw_only=True):
    """One gateway, apart from its site."""

    mac: Mac
    mode: Mode = Mode.RAW
    api_version: Version = NEWEST
    topic_prefix: str = ""
    disable_subscribe: bool = False
    clean_session: bool = False
    """Whether the broker forgets the gateway when it goes, and drops what is asked of it meanwhile."""
    faults: Faults = Faults()

    def __post_init__(self) -> None:
        if not OLDEST <= self.api_version <= NEWEST:
            raise WireError("api-version", f"{self.api_version} is not between {OLDEST} and {NEWEST}")
