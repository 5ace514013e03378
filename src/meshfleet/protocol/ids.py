"""Types of ids. A string from outside is parsed into one of these types once and never checked again.

The types are NewTypes of `str`, not subclasses: at run time they are plain strings, which JSON, SQL drivers
and dictionaries accept at no cost. Only the type checker distinguishes them.
"""

from __future__ import annotations

import re
from typing import Final, NewType, Self, final

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import (
    MalformedDeviceId,
    MalformedIdentifier,
    MalformedMac,
    MalformedModelNumber,
    MalformedVersion,
)

Mac = NewType("Mac", str)
"""Bluetooth address of a gateway or device, in lower-case hex (id-1)."""

DeviceId = NewType("DeviceId", str)
"""Device id in the REST API: `bmac-` followed by the MAC."""

Identifier = NewType("Identifier", str)
"""Identifier of a property, measurement or event: the lower-case hex of 1 to 4 bytes."""

IdentifierName = NewType("IdentifierName", str)
"""Name of a property, measurement or event. A gateway may use names that are not in the catalogue."""

RequestId = NewType("RequestId", str)
"""Id of a request, which the response repeats: any string. A client must never use an id twice."""

ModelNumber = NewType("ModelNumber", str)
"""Model number: four upper-case hex digits, such as `2011` or `000F`."""

EVERY_GATEWAY: Final = Mac("ffffffffffff")
"""MAC that stands for each receiving gateway itself, in a request to all gateways."""

_MAC = re.compile(r"[0-9a-f]{12}")
_DEVICE_ID = re.compile(r"bmac-([0-9a-f]{12})")
# In the vendor's identifiers only the last byte is below 0x80, but others may be in use (id-8).
_IDENTIFIER = re.compile(r"(?:[0-9a-f]{2}){1,4}")
_MODEL_NUMBER = re.compile(r"[0-9A-Fa-f]{4}")
# One topic level without MQTT wildcards, control characters and characters that UTF-8 cannot encode.
_NAME = re.compile(r"[^/+#\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_VERSION = re.compile(r"([0-9]{1,5})\.([0-9]{1,5})(?:\.([0-9]{1,5})(?:-beta\.([0-9]{1,3}))?)?")


def parse_mac(text: str, field: str = "mac") -> Mac:
    """Parse a MAC in lower case, as written in topics and ids."""
    if not _MAC.fullmatch(text):
        raise MalformedMac(field, f"{quote_input(text)} is not 12 lowercase hex digits")
    return Mac(text)


def parse_device_id(text: str, field: str = "id") -> DeviceId:
    """Parse a device id of the REST API: `bmac-` followed by the MAC in lower case."""
    if not _DEVICE_ID.fullmatch(text):
        raise MalformedDeviceId(field, f"{quote_input(text)} is not 'bmac-' and 12 lowercase hex digits")
    return DeviceId(text)


def to_device_id(mac: Mac) -> DeviceId:
    """Return the device id in the REST API of the device with this MAC."""
    return DeviceId(f"bmac-{mac}")


def to_mac(device: DeviceId) -> Mac:
    """Return the MAC in a device id of the REST API."""
    return Mac(device.removeprefix("bmac-"))


def is_identifier(text: str) -> bool:
    """Return whether a string is a hex identifier of 1 to 4 bytes, not a name (id-7 to id-9)."""
    return _IDENTIFIER.fullmatch(text) is not None


def parse_identifier(text: str, field: str = "identifier") -> Identifier:
    """Parse an identifier in lower-case hex."""
    if not is_identifier(text):
        raise MalformedIdentifier(field, f"{quote_input(text)} is not 2, 4, 6 or 8 lowercase hex digits")
    return Identifier(text)


def parse_identifier_name(text: str, field: str = "identifier") -> IdentifierName:
    """Parse the name of a property, measurement or event, which need not be in the catalogue."""
    if not _NAME.fullmatch(text):
        raise MalformedIdentifier(field, f"{quote_input(text)} is not the name of an identifier")
    return IdentifierName(text)


def parse_model_number(text: str, field: str = "modelNumber") -> ModelNumber:
    """Parse a model number in upper or lower case; leading zeros are significant (id-29)."""
    if not _MODEL_NUMBER.fullmatch(text):
        raise MalformedModelNumber(field, f"{quote_input(text)} is not 4 hex digits")
    return ModelNumber(text.upper())


def format_model_number(number: int) -> ModelNumber:
    """Return the model number for the integer that a device reports."""
    return ModelNumber(f"{number:04X}")


def to_dfu_mac(mac: Mac) -> Mac:
    """Return the address that an nRF52 device advertises in DFU mode: its MAC plus one (firmware-14)."""
    return Mac(f"{(int(mac, 16) + 1) % (1 << 48):012x}")


@final
class Version(tuple[int, int, int, int]):
    """Interface or firmware version `major.minor.patch[-beta.n]`; a beta sorts before its release."""

    __slots__ = ()

    _RELEASE = 256
    """Fourth element of the tuple for a release: higher than any beta number (1-255), for sorting."""

    def __new__(cls, major: int, minor: int, patch: int, beta: int | None = None) -> Self:
        """Create a version. For a release, `beta` is None or 0, as devices report it."""
        if not 0 <= (beta or 0) < cls._RELEASE:
            raise ValueError(f"the beta number must be between 0 and 255, not {beta}")
        return super().__new__(cls, (major, minor, patch, beta or cls._RELEASE))

    @classmethod
    def parse(cls, text: str, field: str = "version") -> Self:
        """Parse a version: `M.m.p`, `M.m.p-beta.b` or `M.m` (patch 0)."""
        match = _VERSION.fullmatch(text)
        if match is None or not 0 < int(match[4] or 1) < cls._RELEASE:
            raise MalformedVersion(
                field, f"{quote_input(text)} is not a version such as 2.4.0 or 2.4.0-beta.1"
            )
        major, minor, patch, beta = (int(part or 0) for part in match.groups())
        return cls(major, minor, patch, beta)

    def __getnewargs__(self) -> tuple[int, int, int, int]:
        """Return the arguments of `__new__`, for copying and pickling."""
        return (*self[:3], self.beta)

    @property
    def beta(self) -> int:
        """Number of the beta; 0 for a release."""
        return self[3] % self._RELEASE

    def __str__(self) -> str:
        suffix = f"-beta.{self.beta}" if self.beta else ""
        return f"{self[0]}.{self[1]}.{self[2]}{suffix}"

    def __repr__(self) -> str:
        return f"Version({str(self)!r})"


def mac_to_int(mac: Mac) -> int:
    """Convert a MAC to the number that the database stores. The numbers sort like the MACs."""
    return int(mac, 16)


def mac_from_int(number: int) -> Mac:
    """Convert a number from `mac_to_int` back to the MAC."""
    return Mac(f"{number:012x}")
