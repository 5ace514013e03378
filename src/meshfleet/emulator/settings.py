"""What can be set about an emulated gateway."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import fields

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import WireError
from meshfleet.protocol.api_versions import LATEST_VERSION
from meshfleet.protocol.ids import Mac, Version

# Trouble on request: what can go wrong between a gateway and its broker, and in the mesh (gateway-38).

_MAX_FAULT_SECONDS: Final = 86_400.0
"""Seconds that a fault may be set to."""


class Faults(Struct, frozen=True, kw_only=True, rename="kebab"):
    """How much of each trouble there is: fractions from 0 to 1, but for those in seconds (gateway-39)."""

    loss: float = 0.0
    """Messages that are never published."""
    delay: float = 0.0
    """Seconds that every message comes late."""
    duplicate: float = 0.0
    """Messages that are published twice."""
    reorder: float = 0.0
    """Messages that are overtaken by later ones."""
    quoted_seq: float = 0.0
    """Reports whose `seq` is a string."""
    broken_json: float = 0.0
    """Messages whose payload breaks off."""
    silent: float = 0.0
    """Devices that report and do not answer (gateway-40)."""
    update_fail: float = 0.0
    """Firmware updates that fail."""
    crash: float = 0.0
    """Seconds between crashes; 0: none."""

    @classmethod
    def parse(cls, *texts: str) -> Self:
        """Read faults written as `name=value`; a name that stands twice counts as it stands last."""
        known = {field.encode_name: field.name for field in fields(cls)}
        given = {}
        for text in texts:
            name, _, value = text.partition("=")
            if name not in known:
                raise WireError("fault", f"{quote_input(name)} is not one of {', '.join(known)}")
            given[known[name]] = _parse_amount(name, value)
        return cls(**given)

    @property
    def affects_messages(self) -> bool:
        """Whether messages are not simply published as they are."""
        return any((self.loss, self.delay, self.duplicate, self.reorder, self.quoted_seq, self.broken_json))


_FAULTS_IN_SECONDS: Final = ("delay", "crash")


def _parse_amount(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise WireError(f"fault {name}", f"{quote_input(text)} is not a number") from None
    most = _MAX_FAULT_SECONDS if name in _FAULTS_IN_SECONDS else 1.0
    if not 0.0 <= value <= most:
        what = "seconds" if name in _FAULTS_IN_SECONDS else "a fraction"
        raise WireError(f"fault {name}", f"{quote_input(text)} is not {what} from 0 to {most:g}")
    return value


OLDEST_API_VERSION: Final = Version(1, 2, 0)
"""The first version that an emulated gateway can have (version-13)."""


class ReportMode(StrEnum):
    """How reports are written (gateway-11). Requests work in both."""

    RAW = "raw"
    DECODED = "decoded"


class EmulatorSettings(Struct, frozen=True, kw_only=True):
    """One gateway, apart from its site."""

    mac: Mac
    mode: ReportMode = ReportMode.RAW
    api_version: Version = LATEST_VERSION
    topic_prefix: str = ""
    disable_subscribe: bool = False
    clean_session: bool = False
    """Whether the broker forgets the gateway when it goes, and drops what is asked of it meanwhile."""
    faults: Faults = Faults()

    def __post_init__(self) -> None:
        if not OLDEST_API_VERSION <= self.api_version <= LATEST_VERSION:
            raise WireError(
                "api-version", f"{self.api_version} is not between {OLDEST_API_VERSION} and {LATEST_VERSION}"
            )
