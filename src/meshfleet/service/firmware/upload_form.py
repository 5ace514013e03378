"""What comes with an uploaded image (rest-109)."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import Fault, ImageCheckFailed, InvalidRequest, quote_input
from meshfleet.errors.protocol import MalformedImage, WireError
from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.firmware_image import MAX_PACKAGE_BYTES, check_bare_image, inspect_image, is_zip
from meshfleet.protocol.ids import ModelNumber, Version, parse_model_number
from meshfleet.rest import find_bidirectional_control
from meshfleet.service.devices.model import format_base_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from meshfleet.service.firmware.partial_images import ReceivedImage

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

FORM_FIELDS: Final = frozenset({MODEL, VERSION, HARDWARE, MIN_VERSION, NOTES, SHA256, TYPE, BARE, OVERRIDE})
"""Besides the image."""

MAX_NOTES_LENGTH: Final = 10_000
_MAX_NAME_LENGTH: Final = 255
_MAX_HARDWARE_VERSIONS: Final = 100
_MAX_VERSION_PART: Final = 255
"""In each part of a version: a byte is all there is for it in the messages to devices (firmware-1)."""

_TOO_LARGE: Final = f"a Nordic package has at most {MAX_PACKAGE_BYTES} (a RAUC bundle is of type 2)"

_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BUNDLE_SUFFIX: Final = ".raucb"
_NO_PACKAGE: Final = (
    Fault(IMAGE, "is not a Nordic package (a zip file)"),
    Fault(BARE, "must be true if it is a bare image"),
)
_NOT_BARE: Final = (Fault(BARE, "is true, but the image is a zip file, such as a Nordic package"),)
_TO_OVERRIDE: Final = Fault(OVERRIDE, "must be true to accept it all the same")
_WITHOUT_LINE_BREAKS: Final = str.maketrans("", "", "\n\r\t")


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


class _FieldError(Exception):
    """What is wrong with a value."""


class _FieldReader:
    """Reads fields, and remembers all that is wrong."""

    def __init__(self, fields: Mapping[str, Sequence[str]], faults: Sequence[Fault]) -> None:
        self._fields = fields
        self.faults = [*faults]

    def read_one(self, field: str, read: Callable[[str], Value], *, required: bool = False) -> Value | None:
        """The value of a field that comes once, if it comes."""
        given = self._fields.get(field, ())
        if len(given) > 1:
            self.faults.append(Fault(field, "is given more than once"))
        elif not given and required:
            self.faults.append(Fault(field, "is missing"))
        return self._try(field, read, given[0]) if len(given) == 1 else None

    def read_all(self, field: str, read: Callable[[str], Value]) -> list[Value]:
        """The values of a field that may come often."""
        given = self._fields.get(field, ())
        found = [self._try(f"{field}[{place}]", read, text) for place, text in enumerate(given)]
        return [each for each in found if each is not None]

    def _try(self, field: str, read: Callable[[str], Value], text: str) -> Value | None:
        try:
            return read(text)
        except WireError as exc:
            self.faults.append(Fault(field, exc.reason))
        except _FieldError as exc:
            self.faults.append(Fault(field, str(exc)))
        return None


def parse_form(
    fields: Mapping[str, Sequence[str]], file_name: str, image: ReceivedImage, faults: Sequence[Fault]
) -> NewFirmware:
    """All of it, or all that is wrong with it; `faults` are those that are known already."""
    reading = _FieldReader(fields, faults)
    model = reading.read_one(MODEL, parse_model_number, required=True)
    version = reading.read_one(VERSION, _parse_version, required=True)
    hardware = reading.read_all(HARDWARE, _parse_hardware)
    if len(hardware) > _MAX_HARDWARE_VERSIONS:
        reading.faults.append(Fault(HARDWARE, f"has more than {_MAX_HARDWARE_VERSIONS} versions"))
    min_version = reading.read_one(MIN_VERSION, _parse_version)
    if min_version is not None and version is not None and min_version > version:
        reading.faults.append(Fault(MIN_VERSION, f"is newer than the version itself, {version}"))
    notes = reading.read_one(NOTES, _parse_notes)
    told = reading.read_one(SHA256, _parse_sha256)
    kind = reading.read_one(TYPE, _parse_type)
    bare = reading.read_one(BARE, _parse_flag) or False
    override = reading.read_one(OVERRIDE, _parse_flag) or False
    if bare and kind is FirmwareType.RAUC_BUNDLE:
        reading.faults.append(Fault(BARE, "does not go with type 2, a RAUC bundle"))
    if told is not None and not faults and told != image.sha256:  # with these the image is not even whole
        reading.faults.append(Fault(SHA256, f"is not that of the image, which is {image.sha256.hex()}"))
    if reading.faults or model is None or version is None:
        raise InvalidRequest(reading.faults)
    return NewFirmware(
        model=model,
        version=version,
        type=kind or (FirmwareType.NORDIC_PACKAGE if bare else _guess_type(file_name)),
        bare=bare,
        override=override,
        file_name=file_name,
        hardware=tuple(dict.fromkeys(hardware)),
        min_version=min_version,
        notes=notes or "",
    )


def sanitize_file_name(text: str) -> str:
    """The name of a file without its place, as it can be shown and be part of an address; may be empty."""
    base = re.split(r"[/\\]", text)[-1]
    name = "".join(char for char in base if char.isprintable()).strip()
    if len(name) > _MAX_NAME_LENGTH:
        stem, dot, ending = name.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) < _MAX_NAME_LENGTH // 2 else ""
        name = name[: _MAX_NAME_LENGTH - len(kept)] + kept
    return "" if name in {".", ".."} else name


def check_image(new: NewFirmware, image: ReceivedImage) -> str:
    """Check an image as gateways and devices will (firmware-17, firmware-44). It may take a while.

    Return what failed and was overridden, "" if nothing was. Raise ImageCheckFailed for what can be
    overridden, and InvalidRequest for what cannot.
    """
    if new.type is not FirmwareType.NORDIC_PACKAGE:
        return ""
    if image.size > MAX_PACKAGE_BYTES:  # no chip that Nordic's packages are for holds a tenth of it
        raise InvalidRequest([Fault(IMAGE, f"has {image.size} bytes; {_TOO_LARGE}")])
    content = image.path.read_bytes()
    if is_zip(content) is new.bare:
        raise InvalidRequest(_NOT_BARE if new.bare else _NO_PACKAGE)
    reason = _find_bare_fault(content) if new.bare else _find_package_fault(new, content)
    if reason and not new.override:
        raise ImageCheckFailed([Fault(IMAGE, reason), _TO_OVERRIDE])
    return reason


def _find_bare_fault(content: bytes) -> str:
    faults = "; ".join(check_bare_image(content))
    return faults and f"does not look like a bare image of a Cortex-M chip: {faults}"


def _find_package_fault(new: NewFirmware, content: bytes) -> str:
    """Compare a package with its record. Only a difference in version can be overridden.

    A maker may number its packages in another way, but gateways refuse a package for another model.
    """
    try:
        found = inspect_image(content)
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


def _guess_type(file_name: str) -> FirmwareType:
    is_bundle = file_name.lower().endswith(_BUNDLE_SUFFIX)
    return FirmwareType.RAUC_BUNDLE if is_bundle else FirmwareType.NORDIC_PACKAGE


def _parse_version(text: str) -> Version:
    version = Version.parse(text)
    if max(version[:3]) > _MAX_VERSION_PART:
        raise _FieldError(f"has a number above {_MAX_VERSION_PART}")
    return version


def _parse_hardware(text: str) -> str:
    version = _parse_version(text)
    if version.beta:
        raise _FieldError("is a beta, which hardware has none of")
    return format_base_version(version)


def _parse_notes(text: str) -> str:
    if len(text) > MAX_NOTES_LENGTH:
        raise _FieldError(f"has {len(text)} characters; {MAX_NOTES_LENGTH} are allowed")
    if any(unicodedata.category(char) == "Cc" for char in text.translate(_WITHOUT_LINE_BREAKS)):
        raise _FieldError("has control characters")
    if (reason := find_bidirectional_control(text)) is not None:
        raise _FieldError(reason)
    return text


def _parse_sha256(text: str) -> bytes:
    if not _SHA256.fullmatch(text):
        raise _FieldError("is not 64 hex digits")
    return bytes.fromhex(text)


def _parse_flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise _FieldError(f"{quote_input(text)} is neither true nor false")
    return text == "true"


def _parse_type(text: str) -> FirmwareType:
    if text not in {"1", "2"}:
        raise _FieldError(
            f"{quote_input(text)} is neither 1, a Nordic package or a bare image, nor 2, a RAUC bundle"
        )
    return FirmwareType(int(text))
