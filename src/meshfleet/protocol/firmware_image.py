"""Firmware images as they are downloaded: bare, or in a Nordic distribution package.

A package is a zip with a `manifest.json`, which names for each part of the firmware a `bin_file`, the bytes
that go over the air, and a `dat_file` for the bootloader. The older form of it also tells in
`init_packet_data` what the part is for and what it must look like: `firmware_crc16`, or `firmware_length` and
`firmware_hash`. The newer form has all that, signed, in the `dat_file` alone: the bootloader's affair.

The older form also has an `application_version`. Its four bytes are those in which devices report their
version (major, minor, patch, beta), as `pack` writes them. A number below 1.0.0 in this reading may as well
be a counter or decimal digits of another tool, and all ones mean that it was not set: these say no version.
The newer form has a number that only grows, in the `dat_file`.

Images come from outside. Nothing is unpacked to disk, and no more than `MAX_SIZE` to memory.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Final, NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError  # noqa: N812 # it is a class

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors import quote_input, quote_name
from meshfleet.errors.protocol import MalformedImage, MalformedVersion
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.ids import ModelNumber, Version, format_model_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# Bare firmware images: the bytes that a Cortex-M chip runs, without a package around them.

MIN_BARE_IMAGE_BYTES: Final = 256
"""Bytes: 16 words of the core, the interrupts of the smallest chip (32 words), and some code."""

MAX_BARE_IMAGE_BYTES: Final = 1024 * 1024
"""Bytes: the flash of the largest chip."""

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
"""The exceptions of the core besides reset. The words between them are reserved and may hold anything."""


def check_bare_image(image: bytes) -> list[str]:
    """Return what keeps a file from being a bare image, in plain words; an empty list: nothing."""
    if len(image) < MIN_BARE_IMAGE_BYTES:
        return [f"it has {len(image)} bytes; a bare image has at least {MIN_BARE_IMAGE_BYTES}"]
    if len(image) > MAX_BARE_IMAGE_BYTES:
        return [f"it has {len(image)} bytes; no chip holds more than {MAX_BARE_IMAGE_BYTES}"]
    return list(_check_vectors(_VECTOR_TABLE.unpack_from(image), len(image)))


def _check_vectors(words: tuple[int, ...], size: int) -> Iterator[str]:
    stack, reset = words[:2]
    if not _RAM < stack <= _RAM_END or stack % 4:
        yield f"its initial stack pointer {stack:#010x} is no address in RAM"
    if not _is_code(reset):
        yield f"its reset vector {reset:#010x} is no address of code in flash"
    handlers = {number: words[number] for number in _HANDLERS if words[number]}
    for number, address in handlers.items():
        if not _is_code(address):
            name = f"exception {number} ({_HANDLERS[number]})"
            yield f"its vector {address:#010x} of {name} is no address of code in flash"
    # The application may begin anywhere in flash, but all its handlers are inside it.
    code = [address for address in (reset, *handlers.values()) if _is_code(address)]
    if code and max(code) - min(code) >= size:
        yield f"its vectors are farther apart than its {size} bytes"


def _is_code(address: int) -> bool:
    """Tell whether a vector points to Thumb code in flash, behind the vector table."""
    return address % 2 == 1 and _VECTOR_TABLE.size < address < MAX_BARE_IMAGE_BYTES


MAX_PACKAGE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a package, packed and unpacked: far more than the flash of any device."""

MAX_BINARY_BYTES: Final = MAX_PACKAGE_BYTES - 4096
"""Bytes of a single part: the rest is for manifest, init packet and what the zip itself takes."""

_MAX_ENTRIES: Final = 64
_MAX_NAME: Final = 255
_MANIFEST: Final = "manifest.json"
_ZIP: Final = b"PK"
_ENTRY: Final = b"PK\x01\x02"
_ENCRYPTED: Final = 0x1

_FIRST_VERSION: Final = 0x01000000
"""The least `application_version` that says a version: 1.0.0."""
_NO_VERSION: Final = 0xFFFFFFFF
_ANY: Final = 0xFFFF
"""As device type or revision: for all of them."""
_ANY_SOFTDEVICE: Final = 0xFFFE
_CRC_START: Final = 0xFFFF
_DFU_VERSION: Final = 0.7
_HAS_HASH: Final = 1
"""The form of init packet that comes with `_DFU_VERSION`."""

_BROKEN = (
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
"""What zipfile raises for broken zips, depending on where they are broken."""


class ImageInfo(Struct, frozen=True):
    """A firmware image that is whole as far as it can tell."""

    size: int
    """Bytes that go over the air."""
    sha256: bytes
    """Of the file as it was downloaded."""
    model_number: ModelNumber | None
    """The model that it says it is for."""
    version: Version | None = None
    """The version that it says it is."""


class _InitPacket(Struct, frozen=True):
    application_version: int | str | None = None
    device_type: Annotated[int, Meta(ge=0, le=0xFFFF)] | None = None
    firmware_crc16: int | None = None
    firmware_length: int | None = None
    firmware_hash: str | None = None


class _ManifestPart(Struct, frozen=True):
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
    """Whether an image begins as a package does; else it is a bare one."""
    return data.startswith(_ZIP)


def inspect_image(data: bytes) -> ImageInfo:
    """Look into an image, and check what can be checked."""
    if not data:
        raise MalformedImage("image", "is empty")
    digest = sha256(data).digest()
    if not is_zip(data):
        return ImageInfo(len(data), digest, None)
    files = _unzip(data)
    parts = _parts(files)
    size = sum(_checked_size(part, files) for part in parts)
    types = (part.init_packet_data.device_type for part in parts)
    number = next((number for number in types if number not in (None, _ANY)), None)
    version = _version(parts[0].init_packet_data)
    return ImageInfo(size, digest, None if number is None else format_model_number(number), version)


def build_package(binary: bytes, *, model_number: ModelNumber, version: Version) -> bytes:
    """Make the package of an application; the same one every time."""
    if not 0 < len(binary) <= MAX_BINARY_BYTES:
        raise MalformedImage("image", f"has {len(binary)} bytes; a package takes 1 to {MAX_BINARY_BYTES}")
    device, number, digest = int(model_number, 16), _version_number(version), sha256(binary).digest()
    told = {
        "application_version": number,
        "device_revision": _ANY,
        "device_type": device,
        "ext_packet_id": _HAS_HASH,
        "firmware_hash": digest.hex(),
        "firmware_length": len(binary),
        "softdevice_req": [_ANY_SOFTDEVICE],
    }
    part = {"bin_file": "application.bin", "dat_file": "application.dat", "init_packet_data": told}
    manifest = {"manifest": {"application": part, "dfu_version": _DFU_VERSION}}
    start = struct.pack("<HHIHH", device, _ANY, number, 1, _ANY_SOFTDEVICE)
    return _zip(
        {
            "application.bin": binary,
            "application.dat": start + struct.pack("<II32s", _HAS_HASH, len(binary), digest),
            _MANIFEST: msgspec.json.format(msgspec.json.encode(manifest), indent=4),
        }
    )


def _version(told: _InitPacket) -> Version | None:
    """Read the version of the first part, the application where there is one."""
    number = told.application_version
    if not isinstance(number, int) or not _FIRST_VERSION <= number < _NO_VERSION:
        return None
    return Version(*number.to_bytes(4))


def _version_number(version: Version) -> int:
    """The bytes in which a device reports its version, as one number."""
    try:
        return int.from_bytes((*version[:3], version.beta), "big")
    except ValueError as exc:
        raise MalformedVersion("version", f"{version} has a part beyond 255") from exc


def _zip(files: Mapping[str, bytes]) -> bytes:
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        for name, content in files.items():
            entry = ZipInfo(name)  # of 1980, for want of a date
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, content)
    return packed.getvalue()


def _unzip(data: bytes) -> dict[str, bytes]:
    if len(data) > MAX_PACKAGE_BYTES:
        raise MalformedImage("image", f"has {len(data)} bytes; a package has at most {MAX_PACKAGE_BYTES}")
    if data.count(_ENTRY) > _MAX_ENTRIES:
        raise MalformedImage("image", f"has more than {_MAX_ENTRIES} files")
    try:
        with ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            return {entry.filename: _read(archive, entry) for entry in entries}
    except _BROKEN as exc:
        raise MalformedImage("image", "is a zip that cannot be read") from exc


def _check_entries(entries: list[ZipInfo]) -> None:
    """Refuse what we will not read, before anything is unpacked."""
    for entry in entries:
        if not _is_sane(entry.filename):
            _reject(entry.filename, "is no name for a file")
        if entry.flag_bits & _ENCRYPTED:
            _reject(entry.filename, "is encrypted")
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            _reject(entry.filename, "is compressed in a way that packages are not")
    if len({entry.filename for entry in entries}) < len(entries):
        raise MalformedImage("image", "has two files of one name")
    if sum(entry.file_size for entry in entries) > MAX_PACKAGE_BYTES:
        raise MalformedImage("image", f"unpacks to more than {MAX_PACKAGE_BYTES} bytes")


def _is_sane(name: str) -> bool:
    steps = name.removesuffix("/").split("/")
    return (
        len(name) <= _MAX_NAME and name.isprintable() and "\\" not in name and not {"", ".", ".."} & {*steps}
    )


def _read(archive: ZipFile, entry: ZipInfo) -> bytes:
    # zipfile compares the checksum at the end, so it is asked for a byte more than there should be.
    with archive.open(entry) as file:
        content = file.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        _reject(entry.filename, "is not as long as the zip says")
    return content


def _parts(files: Mapping[str, bytes]) -> list[_ManifestPart]:
    """The parts of the firmware, the application first."""
    if _MANIFEST not in files:
        _reject(_MANIFEST, "is missing")
    try:
        told = get_decoder(_Manifest).decode(files[_MANIFEST]).manifest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise MalformedImage(_MANIFEST, f"cannot be read: {exc}") from exc
    parts = [told.application, told.softdevice_bootloader, told.softdevice, told.bootloader]
    there = [part for part in parts if part is not None]
    if not there:
        _reject(_MANIFEST, "names no firmware")
    return there


def _checked_size(part: _ManifestPart, files: Mapping[str, bytes]) -> int:
    for name in filter(None, (part.bin_file, part.dat_file)):
        if name not in files:
            _reject(name, "is in the manifest and not in the zip")
    binary, told = files.get(part.bin_file, b""), part.init_packet_data
    if not binary:
        _reject(part.bin_file, "is empty")
    if told.firmware_length not in (None, len(binary)):
        _reject(part.bin_file, f"has {len(binary)} bytes, and not {quote_input(told.firmware_length)}")
    if told.firmware_crc16 not in (None, crc_hqx(binary, _CRC_START)):
        _reject(part.bin_file, "has not the checksum of the manifest")
    if told.firmware_hash is not None and told.firmware_hash.lower() != sha256(binary).hexdigest():
        _reject(part.bin_file, "has not the hash of the manifest")
    return len(binary)


def _reject(name: str, reason: str) -> NoReturn:
    raise MalformedImage(quote_name(name), reason)
