"""What comes with an uploaded image (rest-109)."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import Fault, ImageCheckFailed, InvalidRequest, MalformedImage, WireError, shown
from meshfleet.service.devices.model import three_parts
from meshfleet.wire.bare import check_bare
from meshfleet.wire.diagnostics import FirmwareType
from meshfleet.wire.ids import ModelNumber, Version, parse_model_number
from meshfleet.wire.package import MAX_SIZE, is_zip, read_image
from meshfleet.wire.rest import bidirectional_control

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from meshfleet.service.firmware.arriving import Arrived

    Value = TypeVar("Value")

IMAGE: Final = "image"
MODEL: Final = "modelNumber"
VERSION: Final = "version"
HARDWARE: Final = "hardwareVersions"
MIN_VERSION: Final = "minVersion"
NOTES: Final = "notes"
SHA256: Final = "sha256"
TYPE: Final = "type"
BARE: Final = "bare"
OVERRIDE: Final = "override"

FIELDS: Final = frozenset({MODEL, VERSION, HARDWARE, MIN_VERSION, NOTES, SHA256, TYPE, BARE, OVERRIDE})
"""Besides the image."""

LONGEST_NOTES: Final = 10_000
_LONGEST_NAME: Final = 255
_MOST_HARDWARE: Final = 100
_MOST: Final = 255
"""In each part of a version: a byte is all there is for it in the messages to devices (firmware-1)."""

_TOO_LARGE: Final = f"a Nordic package has at most {MAX_SIZE} (a RAUC bundle is of type 2)"

_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BUNDLE: Final = ".raucb"
_NO_PACKAGE: Final = (
    Fault(IMAGE, "is not a Nordic package (a zip file)"),
    Fault(BARE, "must be true if it is a bare image"),
)
_NOT_BARE: Final = (Fault(BARE, "is true, but the image is a zip file, such as a Nordic package"),)
_TO_OVERRIDE: Final = Fault(OVERRIDE, "must be true to accept it all the same")
_LINES: Final = str.maketrans("", "", "\n\r\t")


class NewFirmware(Struct, frozen=True, kw_only=True):
    """A record that is to be made."""

    model: ModelNumber
    version: Version
    type: FirmwareType
    bare: bool = False
    override: bool = False
    """Accept an image that fails its check (rest-221)."""
    file_name: str
    hardware: tuple[str, ...]
    min_version: Version | None
    notes: str


class _Unfit(Exception):
    """What is wrong with a value."""


class _Reading:
    """Reads fields, and remembers all that is wrong."""

    def __init__(self, fields: Mapping[str, Sequence[str]], faults: Sequence[Fault]) -> None:
        self._fields = fields
        self.faults = [*faults]

    def one(self, field: str, read: Callable[[str], Value], *, needed: bool = False) -> Value | None:
        """The value of a field that comes once, if it comes."""
        given = self._fields.get(field, ())
        if len(given) > 1:
            self.faults.append(Fault(field, "is given more than once"))
        elif not given and needed:
            self.faults.append(Fault(field, "is missing"))
        return self._try(field, read, given[0]) if len(given) == 1 else None

    def all(self, field: str, read: Callable[[str], Value]) -> list[Value]:
        """The values of a field that may come often."""
        given = self._fields.get(field, ())
        found = [self._try(f"{field}[{place}]", read, text) for place, text in enumerate(given)]
        return [each for each in found if each is not None]

    def _try(self, field: str, read: Callable[[str], Value], text: str) -> Value | None:
        try:
            return read(text)
        except WireError as exc:
            self.faults.append(Fault(field, exc.reason))
        except _Unfit as exc:
            self.faults.append(Fault(field, str(exc)))
        return None


def read_form(
    fields: Mapping[str, Sequence[str]], file_name: str, image: Arrived, faults: Sequence[Fault]
) -> NewFirmware:
    """All of it, or all that is wrong with it; `faults` are those that are known already."""
    reading = _Reading(fields, faults)
    model = reading.one(MODEL, parse_model_number, needed=True)
    version = reading.one(VERSION, _version, needed=True)
    hardware = reading.all(HARDWARE, _hardware)
    if len(hardware) > _MOST_HARDWARE:
        reading.faults.append(Fault(HARDWARE, f"has more than {_MOST_HARDWARE} versions"))
    min_version = reading.one(MIN_VERSION, _version)
    if min_version is not None and version is not None and min_version > version:
        reading.faults.append(Fault(MIN_VERSION, f"is newer than the version itself, {version}"))
    notes = reading.one(NOTES, _notes)
    told = reading.one(SHA256, _sha256)
    kind = reading.one(TYPE, _type)
    bare = reading.one(BARE, _flag) or False
    override = reading.one(OVERRIDE, _flag) or False
    if bare and kind is FirmwareType.RAUC_BUNDLE:
        reading.faults.append(Fault(BARE, "does not go with type 2, a RAUC bundle"))
    if told is not None and not faults and told != image.sha256:  # with these the image is not even whole
        reading.faults.append(Fault(SHA256, f"is not that of the image, which is {image.sha256.hex()}"))
    if reading.faults or model is None or version is None:
        raise InvalidRequest(reading.faults)
    return NewFirmware(
        model=model,
        version=version,
        type=kind or (FirmwareType.NORDIC_PACKAGE if bare else _usual_type(file_name)),
        bare=bare,
        override=override,
        file_name=file_name,
        hardware=tuple(dict.fromkeys(hardware)),
        min_version=min_version,
        notes=notes or "",
    )


def read_file_name(text: str) -> str:
    """The name of a file without its place, as it can be shown and be part of an address; may be empty."""
    base = re.split(r"[/\\]", text)[-1]
    name = "".join(char for char in base if char.isprintable()).strip()
    if len(name) > _LONGEST_NAME:
        stem, dot, ending = name.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) < _LONGEST_NAME // 2 else ""
        name = name[: _LONGEST_NAME - len(kept)] + kept
    return "" if name in {".", ".."} else name


def check_image(new: NewFirmware, image: Arrived) -> str:
    """Check an image as gateways and devices will (firmware-17, firmware-44). It may take a while.

    Return what failed and was overridden, "" if nothing was. Raise ImageCheckFailed for what can be
    overridden, and InvalidRequest for what cannot.
    """
    if new.type is not FirmwareType.NORDIC_PACKAGE:
        return ""
    if image.size > MAX_SIZE:  # no chip that Nordic's packages are for holds a tenth of it
        raise InvalidRequest([Fault(IMAGE, f"has {image.size} bytes; {_TOO_LARGE}")])
    content = image.place.read_bytes()
    if is_zip(content) is new.bare:
        raise InvalidRequest(_NOT_BARE if new.bare else _NO_PACKAGE)
    reason = _bare_fault(content) if new.bare else _package_fault(new, content)
    if reason and not new.override:
        raise ImageCheckFailed([Fault(IMAGE, reason), _TO_OVERRIDE])
    return reason


def _bare_fault(content: bytes) -> str:
    faults = "; ".join(check_bare(content))
    return faults and f"does not look like a bare image of a Cortex-M chip: {faults}"


def _package_fault(new: NewFirmware, content: bytes) -> str:
    """Compare a package with its record. Only a difference in version can be overridden.

    A maker may number its packages in another way, but gateways refuse a package for another model.
    """
    try:
        found = read_image(content)
    except MalformedImage as exc:
        reason = exc.reason if exc.field == IMAGE else f"{exc.field} {exc.reason}"
        raise InvalidRequest([Fault(IMAGE, reason)]) from None
    version = ""
    if found.version not in {None, new.version}:
        version = f"is a package of version {found.version}; the record says {new.version}"
    if found.model_number not in {None, new.model}:
        model = f"is a package for model {found.model_number}; the record says {new.model}"
        raise InvalidRequest([Fault(IMAGE, reason) for reason in (model, version) if reason])
    return version


def _usual_type(file_name: str) -> FirmwareType:
    is_bundle = file_name.lower().endswith(_BUNDLE)
    return FirmwareType.RAUC_BUNDLE if is_bundle else FirmwareType.NORDIC_PACKAGE


def _version(text: str) -> Version:
    version = Version.parse(text)
    if max(version[:3]) > _MOST:
        raise _Unfit(f"has a number above {_MOST}")
    return version


def _hardware(text: str) -> str:
    version = _version(text)
    if version.beta:
        raise _Unfit("is a beta, which hardware has none of")
    return three_parts(version)


def _notes(text: str) -> str:
    if len(text) > LONGEST_NOTES:
        raise _Unfit(f"has {len(text)} characters; {LONGEST_NOTES} are allowed")
    if any(unicodedata.category(char) == "Cc" for char in text.translate(_LINES)):
        raise _Unfit("has control characters")
    if (reason := bidirectional_control(text)) is not None:
        raise _Unfit(reason)
    return text


def _sha256(text: str) -> bytes:
    if not _SHA256.fullmatch(text):
        raise _Unfit("is not 64 hex digits")
    return bytes.fromhex(text)


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise _Unfit(f"{shown(text)} is neither true nor false")
    return text == "true"


def _type(text: str) -> FirmwareType:
    if text not in {"1", "2"}:
        raise _Unfit(f"{shown(text)} is neither 1, a Nordic package or a bare image, nor 2, a RAUC bundle")
    return FirmwareType(int(text))
