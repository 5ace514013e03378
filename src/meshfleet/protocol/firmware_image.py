"""Checks and builds firmware image files: bare images, and Nordic DFU packages.

A package is a zip with a `manifest.json`. For each part of the firmware the manifest names a `bin_file` (the
bytes that are sent over the air) and a `dat_file` (for the bootloader). In the older format the manifest also
describes the part in `init_packet_data`: its target device type, and either `firmware_crc16`, or
`firmware_length` and `firmware_hash`. In the newer format these are only in the signed `dat_file`, which the
bootloader checks.

The older format also has an `application_version`, a number of four bytes: major, minor, patch and beta, as
devices report their version and as `build_package` writes it. A number below 1.0.0 in this form is ignored,
as other tools write a counter or decimal digits. All bits set mean that there is no version. The newer format
has only an increasing number in the `dat_file`, which is not read.

Images are untrusted input. Nothing is unpacked to disk, and at most `MAX_PACKAGE_BYTES` to memory.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Final, NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError  # noqa: N812 # a class, despite its name

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors import quote_input, quote_name
from meshfleet.errors.protocol import MalformedImage, MalformedVersion
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.ids import ModelNumber, Version, format_model_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# Bare firmware images: the code of a Cortex-M chip without a package around it.

MIN_BARE_IMAGE_BYTES: Final = 256
"""Minimum bytes of a bare image: 16 core vectors, 32 interrupt vectors of the smallest chip, some code."""

MAX_BARE_IMAGE_BYTES: Final = 1024 * 1024
"""Maximum bytes of a bare image: the flash memory of the largest chip."""

_RAM: Final = 0x20000000
_RAM_END: Final = _RAM + 512 * 1024
_VECTOR_TABLE: Final = struct.Struct("<16I")

_HANDLERS: Final = {
    2: "NMI",
    3: "HardFault",
    4: "MemManage",
    5: "BusFault",
    6: "UsageFault",
    11: "SVCall",
    12: "DebugMonitor",
    14: "PendSV",
    15: "SysTick",
}
"""Names of the core exceptions of a Cortex-M chip besides reset, by index in the vector table. The other
indexes are reserved and may have any value."""


def check_bare_image(image: bytes) -> list[str]:
    """Return the reasons, for users, why a file is not a bare firmware image; an empty list if it is one."""
    if len(image) < MIN_BARE_IMAGE_BYTES:
        return [f"it has {len(image)} bytes; a bare image has at least {MIN_BARE_IMAGE_BYTES}"]
    if len(image) > MAX_BARE_IMAGE_BYTES:
        return [f"it has {len(image)} bytes; no chip holds more than {MAX_BARE_IMAGE_BYTES}"]
    return list(_check_vectors(_VECTOR_TABLE.unpack_from(image), len(image)))


def _check_vectors(words: tuple[int, ...], size: int) -> Iterator[str]:
    """Yield the faults of a vector table; `words` are its first 16 words, `size` the bytes of the image."""
    stack, reset = words[:2]
    if not _RAM < stack <= _RAM_END or stack % 4:
        yield f"its initial stack pointer {stack:#010x} is not an address in RAM"
    if not _is_code_address(reset):
        yield f"its reset vector {reset:#010x} is not a code address in flash"
    handlers = {number: words[number] for number in _HANDLERS if words[number]}
    for number, address in handlers.items():
        if not _is_code_address(address):
            name = f"exception {number} ({_HANDLERS[number]})"
            yield f"its vector {address:#010x} of {name} is not a code address in flash"
    # The application may start anywhere in flash, but all its handlers are within it.
    code_addresses = [address for address in (reset, *handlers.values()) if _is_code_address(address)]
    if code_addresses and max(code_addresses) - min(code_addresses) >= size:
        yield f"its vectors are farther apart than its {size} bytes"


def _is_code_address(address: int) -> bool:
    """Return whether an address is of Thumb code in flash memory, behind the vector table."""
    return address % 2 == 1 and _VECTOR_TABLE.size < address < MAX_BARE_IMAGE_BYTES


MAX_PACKAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a DFU package, packed and unpacked: far more than the flash memory of any device."""

MAX_BINARY_BYTES: Final = MAX_PACKAGE_BYTES - 4096
"""Maximum bytes of a binary in a DFU package; 4096 bytes are for manifest, init packet and zip overhead."""

_MAX_ENTRIES: Final = 64
_MAX_NAME: Final = 255
_MANIFEST: Final = "manifest.json"
_ZIP_SIGNATURE: Final = b"PK"
_ENTRY_SIGNATURE: Final = b"PK\x01\x02"
_ENCRYPTED: Final = 0x1

_FIRST_VERSION: Final = 0x01000000
"""Lowest `application_version` in a manifest that is taken as a version: 1.0.0."""
_NO_VERSION: Final = 0xFFFFFFFF
_ANY: Final = 0xFFFF
"""Number in an init packet that means "any device type" or "any revision"."""
_ANY_SOFTDEVICE: Final = 0xFFFE
_CRC_START: Final = 0xFFFF
_DFU_VERSION: Final = 0.7
_HAS_HASH: Final = 1
"""Value of `ext_packet_id` for an init packet with length and hash, the format of `_DFU_VERSION`."""

_ZIP_ERRORS = (
    BadZipFile,
    ZlibError,
    struct.error,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""Exceptions that zipfile raises for a damaged zip, depending on the damage."""


class ImageInfo(Struct, frozen=True):
    """Properties of a firmware image that has passed all checks."""

    size: int
    """Number of bytes that are sent over the air."""
    sha256: bytes
    """SHA-256 hash of the whole image file."""
    model_number: ModelNumber | None
    """Number of the device model that the image is for; None if the image does not specify one model."""
    version: Version | None = None
    """Firmware version that the image names; None if the image names no version."""


class _InitPacket(Struct, frozen=True):
    """Field `init_packet_data` of a manifest: checks for one part of the firmware."""

    application_version: int | str | None = None
    device_type: Annotated[int, Meta(ge=0, le=0xFFFF)] | None = None
    firmware_crc16: int | None = None
    firmware_length: int | None = None
    firmware_hash: str | None = None


class _ManifestPart(Struct, frozen=True):
    """Entry of a manifest for one part of the firmware."""

    bin_file: str
    dat_file: str | None = None
    init_packet_data: _InitPacket = _InitPacket()


class _ManifestParts(Struct, frozen=True):
    application: _ManifestPart | None = None
    softdevice_bootloader: _ManifestPart | None = None
    softdevice: _ManifestPart | None = None
    bootloader: _ManifestPart | None = None


class _Manifest(Struct, frozen=True):
    manifest: _ManifestParts


def is_zip(data: bytes) -> bool:
    """Return whether a firmware file starts like a zip package; any other file is a bare image."""
    return data.startswith(_ZIP_SIGNATURE)


def inspect_image(data: bytes) -> ImageInfo:
    """Verify a firmware image and return its properties. Raise `MalformedImage` if a check fails."""
    if not data:
        raise MalformedImage("image", "is empty")
    digest = sha256(data).digest()
    if not is_zip(data):
        return ImageInfo(len(data), digest, None)
    files = _unzip(data)
    parts = _list_parts(files)
    size = sum(_verify_part(part, files) for part in parts)
    device_types = (part.init_packet_data.device_type for part in parts)
    device_type = next((device_type for device_type in device_types if device_type not in (None, _ANY)), None)
    version = _parse_version(parts[0].init_packet_data)
    return ImageInfo(size, digest, None if device_type is None else format_model_number(device_type), version)


def build_package(binary: bytes, *, model_number: ModelNumber, version: Version) -> bytes:
    """Build a Nordic DFU package of an application binary. Equal input always gives equal bytes."""
    if not 0 < len(binary) <= MAX_BINARY_BYTES:
        raise MalformedImage("image", f"has {len(binary)} bytes; a package holds 1 to {MAX_BINARY_BYTES}")
    device_type, version_number, digest = (
        int(model_number, 16),
        _pack_version(version),
        sha256(binary).digest(),
    )
    init_packet = {
        "application_version": version_number,
        "device_revision": _ANY,
        "device_type": device_type,
        "ext_packet_id": _HAS_HASH,
        "firmware_hash": digest.hex(),
        "firmware_length": len(binary),
        "softdevice_req": [_ANY_SOFTDEVICE],
    }
    part = {"bin_file": "application.bin", "dat_file": "application.dat", "init_packet_data": init_packet}
    manifest = {"manifest": {"application": part, "dfu_version": _DFU_VERSION}}
    packet_header = struct.pack("<HHIHH", device_type, _ANY, version_number, 1, _ANY_SOFTDEVICE)
    return _build_zip(
        {
            "application.bin": binary,
            "application.dat": packet_header + struct.pack("<II32s", _HAS_HASH, len(binary), digest),
            _MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=4),
        }
    )


def _parse_version(init_packet: _InitPacket) -> Version | None:
    """Return the firmware version in an init packet; None if the packet contains no version."""
    number = init_packet.application_version
    if not isinstance(number, int) or not _FIRST_VERSION <= number < _NO_VERSION:
        return None
    return Version(*number.to_bytes(4))


def _pack_version(version: Version) -> int:
    """Return a version as the four-byte number in `application_version` of a manifest."""
    try:
        return int.from_bytes((*version[:3], version.beta), "big")
    except ValueError as exc:
        raise MalformedVersion("version", f"{version} has a number above 255") from exc


def _build_zip(files: Mapping[str, bytes]) -> bytes:
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        for name, content in files.items():
            entry = ZipInfo(name)  # without a date: the default of 1980 keeps the result reproducible
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, content)
    return packed.getvalue()


def _unzip(data: bytes) -> dict[str, bytes]:
    """Unpack a zip file in memory. Return the content of each file in it, by name."""
    if len(data) > MAX_PACKAGE_BYTES:
        raise MalformedImage("image", f"has {len(data)} bytes; a package has at most {MAX_PACKAGE_BYTES}")
    if data.count(_ENTRY_SIGNATURE) > _MAX_ENTRIES:
        raise MalformedImage("image", f"has more than {_MAX_ENTRIES} files")
    try:
        with ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_zip_entries(entries)
            return {entry.filename: _read_entry(archive, entry) for entry in entries}
    except _ZIP_ERRORS as exc:
        raise MalformedImage("image", "is a damaged zip") from exc


def _check_zip_entries(entries: list[ZipInfo]) -> None:
    """Raise `MalformedImage` for unsupported zip entries, before anything is unpacked."""
    for entry in entries:
        if not _is_valid_name(entry.filename):
            _reject_file(entry.filename, "is not a valid file name")
        if entry.flag_bits & _ENCRYPTED:
            _reject_file(entry.filename, "is encrypted")
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            _reject_file(entry.filename, "uses an unsupported compression method")
    if len({entry.filename for entry in entries}) < len(entries):
        raise MalformedImage("image", "contains two files with the same name")
    if sum(entry.file_size for entry in entries) > MAX_PACKAGE_BYTES:
        raise MalformedImage("image", f"unpacks to more than {MAX_PACKAGE_BYTES} bytes")


def _is_valid_name(name: str) -> bool:
    segments = name.removesuffix("/").split("/")
    return (
        len(name) <= _MAX_NAME
        and name.isprintable()
        and "\\" not in name
        and not {"", ".", ".."} & {*segments}
    )


def _read_entry(archive: ZipFile, entry: ZipInfo) -> bytes:
    """Unpack one file of a zip. Raise `MalformedImage` if the file does not have its declared length."""
    # zipfile checks the CRC only at the end of the file, so one more byte than expected is read.
    with archive.open(entry) as file:
        content = file.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        _reject_file(entry.filename, "does not have the length given in the zip")
    return content


def _list_parts(files: Mapping[str, bytes]) -> list[_ManifestPart]:
    """Return the parts of the firmware that the manifest of a DFU package lists, the application first."""
    if _MANIFEST not in files:
        _reject_file(_MANIFEST, "is missing")
    try:
        manifest = get_decoder(_Manifest).decode(files[_MANIFEST]).manifest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise MalformedImage(_MANIFEST, f"cannot be read: {exc}") from exc
    parts = [manifest.application, manifest.softdevice_bootloader, manifest.softdevice, manifest.bootloader]
    present = [part for part in parts if part is not None]
    if not present:
        _reject_file(_MANIFEST, "lists no firmware")
    return present


def _verify_part(part: _ManifestPart, files: Mapping[str, bytes]) -> int:
    """Verify the files of one part of the firmware against the manifest. Return the bytes of its binary."""
    for name in filter(None, (part.bin_file, part.dat_file)):
        if name not in files:
            _reject_file(name, "is listed in the manifest but missing in the zip")
    binary, init_packet = files.get(part.bin_file, b""), part.init_packet_data
    if not binary:
        _reject_file(part.bin_file, "is empty")
    if init_packet.firmware_length not in (None, len(binary)):
        _reject_file(
            part.bin_file, f"has {len(binary)} bytes, not {quote_input(init_packet.firmware_length)}"
        )
    if init_packet.firmware_crc16 not in (None, crc_hqx(binary, _CRC_START)):
        _reject_file(part.bin_file, "does not match the checksum in the manifest")
    if (
        init_packet.firmware_hash is not None
        and init_packet.firmware_hash.lower() != sha256(binary).hexdigest()
    ):
        _reject_file(part.bin_file, "does not match the hash in the manifest")
    return len(binary)


def _reject_file(name: str, reason: str) -> NoReturn:
    """Raise `MalformedImage` for a file in a DFU package."""
    raise MalformedImage(quote_name(name), reason)
