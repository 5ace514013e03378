"""Parses the form fields of a firmware upload, and checks the uploaded image (rest-109)."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.errors import Fault, ImageCheckFailed, InvalidRequest, quote_input
from meshfleet.errors.protocol import MalformedImage, MalformedInput
from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.firmware_image import MAX_PACKAGE_BYTES, check_bare_image, inspect_image, is_zip
from meshfleet.protocol.ids import ModelNumber, Version, parse_model_number
from meshfleet.rest.inputs import find_bidirectional_control
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
"""Names of all form fields of a firmware upload except the image."""

MAX_NOTES_LENGTH: Final = 10_000
_MAX_HARDWARE_VERSIONS: Final = 100
_MAX_VERSION_PART: Final = 255
"""Maximum value of each number in a version: messages to devices have one byte for it (firmware-1)."""

_TOO_LARGE: Final = f"a Nordic package may have at most {MAX_PACKAGE_BYTES} (use type 2 for a RAUC bundle)"

_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BUNDLE_SUFFIX: Final = ".raucb"
_NO_PACKAGE: Final = (
    Fault(IMAGE, "is not a Nordic package (a zip file)"),
    Fault(BARE, "must be true for a bare image"),
)
_NOT_BARE: Final = (Fault(BARE, "must not be true: the image is a zip file, such as a Nordic package"),)
_TO_OVERRIDE: Final = Fault(OVERRIDE, "must be true to accept the image nevertheless")
_WITHOUT_LINE_BREAKS: Final = str.maketrans("", "", "\n\r\t")


class NewFirmware(Struct, frozen=True, kw_only=True):
    """Form fields of an uploaded firmware that is not stored yet."""

    model: ModelNumber
    version: Version
    type: FirmwareType
    bare: bool = False
    override: bool = False
    """Whether the user accepts an image that fails its check (rest-221)."""
    file_name: str
    hardware: tuple[str, ...]
    min_version: Version | None
    notes: str


class _FieldError(Exception):
    """A form field has an invalid value. The message of the error says why."""


class _FieldReader:
    """Parses form fields and collects all faults in their values."""

    def __init__(self, fields: Mapping[str, Sequence[str]], faults: Sequence[Fault]) -> None:
        self._fields = fields
        self.faults = [*faults]

    def read_one(self, field: str, parse: Callable[[str], Value], *, required: bool = False) -> Value | None:
        """Return the parsed value of a field that must not be repeated; None if it is missing or invalid."""
        texts = self._fields.get(field, ())
        if len(texts) > 1:
            self.faults.append(Fault(field, "must not be given more than once"))
        elif not texts and required:
            self.faults.append(Fault(field, "is missing"))
        return self._parse_value(field, parse, texts[0]) if len(texts) == 1 else None

    def read_all(self, field: str, parse: Callable[[str], Value]) -> list[Value]:
        """Return the parsed valid values of a field that can be repeated."""
        texts = self._fields.get(field, ())
        values = [self._parse_value(f"{field}[{index}]", parse, text) for index, text in enumerate(texts)]
        return [each for each in values if each is not None]

    def _parse_value(self, field: str, parse: Callable[[str], Value], text: str) -> Value | None:
        try:
            return parse(text)
        except MalformedInput as exc:
            self.faults.append(Fault(field, exc.reason))
        except _FieldError as exc:
            self.faults.append(Fault(field, str(exc)))
        return None


def parse_form(
    fields: Mapping[str, Sequence[str]], file_name: str, image: ReceivedImage, faults: Sequence[Fault]
) -> NewFirmware:
    """Parse all form fields of a firmware upload. Raise `InvalidRequest` with all faults.

    `faults` are the faults that were found while the form was received.
    """
    reader = _FieldReader(fields, faults)
    model = reader.read_one(MODEL, parse_model_number, required=True)
    version = reader.read_one(VERSION, _parse_version, required=True)
    hardware = reader.read_all(HARDWARE, _parse_hardware_version)
    if len(hardware) > _MAX_HARDWARE_VERSIONS:
        reader.faults.append(Fault(HARDWARE, f"must have at most {_MAX_HARDWARE_VERSIONS} versions"))
    min_version = reader.read_one(MIN_VERSION, _parse_version)
    if min_version is not None and version is not None and min_version > version:
        reader.faults.append(Fault(MIN_VERSION, f"must not be newer than the version itself, {version}"))
    notes = reader.read_one(NOTES, _parse_notes)
    expected_sha256 = reader.read_one(SHA256, _parse_sha256)
    kind = reader.read_one(TYPE, _parse_firmware_type)
    bare = reader.read_one(BARE, _parse_flag) or False
    override = reader.read_one(OVERRIDE, _parse_flag) or False
    if bare and kind is FirmwareType.RAUC_BUNDLE:
        reader.faults.append(Fault(BARE, "must not be true for type 2, a RAUC bundle"))
    # With earlier faults the image is incomplete, so its hash says nothing.
    if expected_sha256 is not None and not faults and expected_sha256 != image.sha256:
        reader.faults.append(
            Fault(SHA256, f"does not match the image, whose SHA-256 is {image.sha256.hex()}")
        )
    if reader.faults or model is None or version is None:
        raise InvalidRequest(reader.faults)
    return NewFirmware(
        model=model,
        version=version,
        type=kind or (FirmwareType.NORDIC_PACKAGE if bare else _guess_firmware_type(file_name)),
        bare=bare,
        override=override,
        file_name=file_name,
        hardware=tuple(dict.fromkeys(hardware)),
        min_version=min_version,
        notes=notes or "",
    )


def check_image(new: NewFirmware, image: ReceivedImage) -> str:
    """Check an image as gateways and devices do (firmware-17, firmware-44). Blocking: call it in a thread.

    Return a fault that `new.override` accepts, or "" if there is no fault. Raise `ImageCheckFailed` for a
    fault that the user can override, and `InvalidRequest` for a fault that the user cannot override.
    """
    if new.type is not FirmwareType.NORDIC_PACKAGE:
        return ""
    if image.size > MAX_PACKAGE_BYTES:  # no chip that Nordic packages are made for has a tenth of that
        raise InvalidRequest([Fault(IMAGE, f"has {image.size} bytes; {_TOO_LARGE}")])
    content = image.path.read_bytes()
    if is_zip(content) is new.bare:
        raise InvalidRequest(_NOT_BARE if new.bare else _NO_PACKAGE)
    reason = _find_bare_image_fault(content) if new.bare else _find_package_fault(new, content)
    if reason and not new.override:
        raise ImageCheckFailed([Fault(IMAGE, reason), _TO_OVERRIDE])
    return reason


def _find_bare_image_fault(content: bytes) -> str:
    """Return why content does not look like a bare image, or "" if it does."""
    faults = "; ".join(check_bare_image(content))
    return faults and f"does not look like a bare image of a Cortex-M chip: {faults}"


def _find_package_fault(new: NewFirmware, content: bytes) -> str:
    """Return the fault of a package that the user can override, or "" if there is none.

    The user can override only a different version, because vendors may number packages differently. Raise
    `InvalidRequest` for other faults, such as a package for another model, which gateways reject.
    """
    try:
        package = inspect_image(content)
    except MalformedImage as exc:
        reason = exc.reason if exc.field == IMAGE else f"{exc.field} {exc.reason}"
        raise InvalidRequest([Fault(IMAGE, reason)]) from None
    version = ""
    if package.version not in {None, new.version}:
        version = f"is a package of version {package.version}; the record says {new.version}"
    if package.model_number not in {None, new.model}:
        model = f"is a package for model {package.model_number}; the record says {new.model}"
        raise InvalidRequest([Fault(IMAGE, reason) for reason in (model, version) if reason])
    return version


def _guess_firmware_type(file_name: str) -> FirmwareType:
    """Guess the type of an image from the ending of its file name."""
    is_bundle = file_name.lower().endswith(_BUNDLE_SUFFIX)
    return FirmwareType.RAUC_BUNDLE if is_bundle else FirmwareType.NORDIC_PACKAGE


def _parse_version(text: str) -> Version:
    version = Version.parse(text)
    if max(version[:3]) > _MAX_VERSION_PART:
        raise _FieldError(f"must not have a number above {_MAX_VERSION_PART}")
    return version


def _parse_hardware_version(text: str) -> str:
    version = _parse_version(text)
    if version.beta:
        raise _FieldError("must not be a beta version")
    return format_base_version(version)


def _parse_notes(text: str) -> str:
    if len(text) > MAX_NOTES_LENGTH:
        raise _FieldError(f"must have at most {MAX_NOTES_LENGTH} characters, not {len(text)}")
    if any(unicodedata.category(char) == "Cc" for char in text.translate(_WITHOUT_LINE_BREAKS)):
        raise _FieldError("must not contain control characters")
    if (reason := find_bidirectional_control(text)) is not None:
        raise _FieldError(reason)
    return text


def _parse_sha256(text: str) -> bytes:
    if not _SHA256.fullmatch(text):
        raise _FieldError("must be 64 hex digits")
    return bytes.fromhex(text)


def _parse_flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise _FieldError(f"must be true or false, not {quote_input(text)}")
    return text == "true"


def _parse_firmware_type(text: str) -> FirmwareType:
    if text not in {"1", "2"}:
        raise _FieldError(
            f"must be 1 (Nordic package or bare image) or 2 (RAUC bundle), not {quote_input(text)}"
        )
    return FirmwareType(int(text))
