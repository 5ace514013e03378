"""Typed ids. Text becomes one of these at the door, once, and is never checked again inside.

They are new types over `str`, not subclasses: JSON, SQL drivers and dictionaries take them as they are,
at no cost on the hot path, and the type checker still keeps them apart.
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
"""The Bluetooth address of a gateway or device, in lowercase hex (id-1)."""

DeviceId = NewType("DeviceId", str)
"""A device in the REST interface: `bmac-` and its MAC."""

Identifier = NewType("Identifier", str)
"""What a property, measurement or event is, as the lowercase hex of 1 to 4 bytes."""

IdentifierName = NewType("IdentifierName", str)
"""The same as a word of the catalogue. A gateway may know words that we do not."""

RequestId = NewType("RequestId", str)
"""Pairs a response with its request. Any text; the client keeps it unique."""

ModelNumber = NewType("ModelNumber", str)
"""Four upper-case hex digits, such as `2011` or `000F`."""

EVERY_GATEWAY: Final = Mac("ffffffffffff")
"""In a request to all gateways: each gateway itself."""

_MAC = re.compile(r"[0-9a-f]{12}")
_DEVICE_ID = re.compile(r"bmac-([0-9a-f]{12})")
# The vendor's own identifiers mark their last byte (below 80), but others may be in use (id-8).
_IDENTIFIER = re.compile(r"(?:[0-9a-f]{2}){1,4}")
_MODEL_NUMBER = re.compile(r"[0-9A-Fa-f]{4}")
# A level of a topic without MQTT's wildcards, control characters and what UTF-8 cannot say.
_NAME = re.compile(r"[^/+#\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_VERSION = re.compile(r"([0-9]{1,5})\.([0-9]{1,5})(?:\.([0-9]{1,5})(?:-beta\.([0-9]{1,3}))?)?")


def parse_mac(text: str, field: str = "mac") -> Mac:
    """Read a MAC in lower case, as topics and ids spell it."""
    if not _MAC.fullmatch(text):
        raise MalformedMac(field, f"{quote_input(text)} is not 12 lowercase hex digits")
    return Mac(text)


def parse_device_id(text: str, field: str = "id") -> DeviceId:
    """Read a device id."""
    if not _DEVICE_ID.fullmatch(text):
        raise MalformedDeviceId(field, f"{quote_input(text)} is not 'bmac-' and 12 lowercase hex digits")
    return DeviceId(text)


def to_device_id(mac: Mac) -> DeviceId:
    """Name the device with this MAC as REST does."""
    return DeviceId(f"bmac-{mac}")


def to_mac(device: DeviceId) -> Mac:
    """Name the device with this id as MQTT does."""
    return Mac(device.removeprefix("bmac-"))


def is_identifier(text: str) -> bool:
    """Tell a raw identifier, the lowercase hex of any 1 to 4 bytes, from a name (id-7 to id-9)."""
    return _IDENTIFIER.fullmatch(text) is not None


def parse_identifier(text: str, field: str = "identifier") -> Identifier:
    """Read an identifier in lowercase hex."""
    if not is_identifier(text):
        raise MalformedIdentifier(field, f"{quote_input(text)} is not 2, 4, 6 or 8 lowercase hex digits")
    return Identifier(text)


def parse_identifier_name(text: str, field: str = "identifier") -> IdentifierName:
    """Read a name, known to the catalogue or not."""
    if not _NAME.fullmatch(text):
        raise MalformedIdentifier(field, f"{quote_input(text)} is not the name of an identifier")
    return IdentifierName(text)


def parse_model_number(text: str, field: str = "modelNumber") -> ModelNumber:
    """Read a model number in either case; leading zeros count (id-29)."""
    if not _MODEL_NUMBER.fullmatch(text):
        raise MalformedModelNumber(field, f"{quote_input(text)} is not 4 hex digits")
    return ModelNumber(text.upper())


def format_model_number(number: int) -> ModelNumber:
    """Spell the model number that a device reports as a number."""
    return ModelNumber(f"{number:04X}")


def to_dfu_mac(mac: Mac) -> Mac:
    """Name the address that an nRF52 device advertises in DFU mode: one more (firmware-14)."""
    return Mac(f"{(int(mac, 16) + 1) % (1 << 48):012x}")


@final
class Version(tuple[int, int, int, int]):
    """major.minor.patch of an API or a firmware; `-beta.n` sorts before its release."""

    __slots__ = ()

    _RELEASE = 256
    """Stands where a beta has its number (1-255), so that the release sorts after all of them."""

    def __new__(cls, major: int, minor: int, patch: int, beta: int | None = None) -> Self:
        """Beta 0, like None, is a release: that is how devices write it."""
        if not 0 <= (beta or 0) < cls._RELEASE:
            raise ValueError(f"a beta has a number up to 255, not {beta}")
        return super().__new__(cls, (major, minor, patch, beta or cls._RELEASE))

    @classmethod
    def parse(cls, text: str, field: str = "version") -> Self:
        """Read `M.m.p`, `M.m.p-beta.b` or `M.m`."""
        found = _VERSION.fullmatch(text)
        if found is None or not 0 < int(found[4] or 1) < cls._RELEASE:
            raise MalformedVersion(
                field, f"{quote_input(text)} is not a version such as 2.4.0 or 2.4.0-beta.1"
            )
        major, minor, patch, beta = (int(part or 0) for part in found.groups())
        return cls(major, minor, patch, beta)

    def __getnewargs__(self) -> tuple[int, int, int, int]:
        """For copies: not the tuple as a whole, which is what tuples give."""
        return (*self[:3], self.beta)

    @property
    def beta(self) -> int:
        """The number of the beta, 0 for a release."""
        return self[3] % self._RELEASE

    def __str__(self) -> str:
        tail = f"-beta.{self.beta}" if self.beta else ""
        return f"{self[0]}.{self[1]}.{self[2]}{tail}"

    def __repr__(self) -> str:
        return f"Version({str(self)!r})"


def mac_to_int(mac: Mac) -> int:
    """A MAC as a number, as it is stored: it sorts as the text does."""
    return int(mac, 16)


def mac_from_int(number: int) -> Mac:
    """The MAC of a number."""
    return Mac(f"{number:012x}")
