"""Settings of an emulated gateway."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import fields

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.api_versions import LATEST_VERSION
from meshfleet.protocol.ids import Mac, Version

# Injected faults of the connection to the broker and of the mesh (gateway-38).

_MAX_FAULT_SECONDS: Final = 86_400.0
"""Maximum value of the injected faults `delay` and `crash` in seconds."""


class Faults(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Injected faults: fractions from 0 to 1, except for `delay` and `crash`, in seconds (gateway-39)."""

    loss: float = 0.0
    """Fraction of MQTT messages of the gateway that are never published."""
    delay: float = 0.0
    """Seconds by which every MQTT message of the gateway is delayed."""
    duplicate: float = 0.0
    """Fraction of MQTT messages of the gateway that are published twice."""
    reorder: float = 0.0
    """Fraction of MQTT messages of the gateway that later messages may overtake."""
    quoted_seq: float = 0.0
    """Fraction of reports whose `seq` is sent as a string instead of a number."""
    broken_json: float = 0.0
    """Fraction of MQTT messages of the gateway whose payload is truncated."""
    silent: float = 0.0
    """Fraction of devices that send reports but do not respond to requests (gateway-40)."""
    update_fail: float = 0.0
    """Fraction of firmware updates that fail."""
    crash: float = 0.0
    """Seconds between two crashes of the gateway; 0 for no crashes."""

    @classmethod
    def parse(cls, *texts: str) -> Self:
        """Parse faults given as `name=value`; the last value of a name counts.

        Raise `MalformedInput` for an unknown name or an invalid value.
        """
        field_names = {field.encode_name: field.name for field in fields(cls)}
        amounts = {}
        for text in texts:
            name, _, value = text.partition("=")
            if name not in field_names:
                raise MalformedInput("fault", f"{quote_input(name)} is not one of {', '.join(field_names)}")
            amounts[field_names[name]] = _parse_amount(name, value)
        return cls(**amounts)

    @property
    def affects_messages(self) -> bool:
        """Whether any fault changes, delays or drops MQTT messages of the gateway."""
        return any((self.loss, self.delay, self.duplicate, self.reorder, self.quoted_seq, self.broken_json))


_FAULTS_IN_SECONDS: Final = ("delay", "crash")


def _parse_amount(name: str, text: str) -> float:
    """Parse the value of the fault `name`: a fraction, or a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        raise MalformedInput(f"fault {name}", f"{quote_input(text)} is not a number") from None
    maximum = _MAX_FAULT_SECONDS if name in _FAULTS_IN_SECONDS else 1.0
    if not 0.0 <= value <= maximum:
        unit = "a number of seconds" if name in _FAULTS_IN_SECONDS else "a fraction"
        raise MalformedInput(f"fault {name}", f"{quote_input(text)} is not {unit} from 0 to {maximum:g}")
    return value


OLDEST_API_VERSION: Final = Version(1, 2, 0)
"""Oldest API version that an emulated gateway can have (version-13)."""


class ReportMode(StrEnum):
    """Encoding of values in reports: raw (hex) or decoded (JSON) (gateway-11)."""

    RAW = "raw"
    DECODED = "decoded"


class EmulatorSettings(Struct, frozen=True, kw_only=True):
    """Settings of one emulated gateway. The devices of the gateway are in a `Site`."""

    mac: Mac
    mode: ReportMode = ReportMode.RAW
    api_version: Version = LATEST_VERSION
    topic_prefix: str = ""
    disable_subscribe: bool = False
    clean_session: bool = False
    """Whether the broker discards the MQTT session and queued requests when the gateway disconnects."""
    faults: Faults = Faults()

    def __post_init__(self) -> None:
        if not OLDEST_API_VERSION <= self.api_version <= LATEST_VERSION:
            raise MalformedInput(
                "api-version", f"{self.api_version} is not between {OLDEST_API_VERSION} and {LATEST_VERSION}"
            )
