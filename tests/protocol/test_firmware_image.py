"""Inspection and packaging of firmware images."""

from __future__ import annotations

import binascii
import hashlib
import io
import json
import zipfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedImage, MalformedVersion
from meshfleet.protocol import firmware_image
from meshfleet.protocol.firmware_image import ImageInfo
from meshfleet.protocol.ids import ModelNumber, Version
from tests.protocol.strategies import damaged
from tests.row_tables import each_row

BINARY = b"\x00firmware\xff" * 50
MODEL = ModelNumber("20A1")
GOOD = firmware_image.build_package(BINARY, model_number=MODEL, version=Version(2, 4, 0, 3))
HASH = hashlib.sha256(BINARY).hexdigest()
PARTS = ["application", "bootloader", "softdevice", "softdevice_bootloader"]

_model_numbers = st.integers(0, 0xFFFE).map(lambda number: ModelNumber(f"{number:04X}"))
_bytes = st.integers(0, 255)
_versions = st.builds(Version, _bytes, _bytes, _bytes, _bytes)


def _zip(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def _unzip(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _package(init_packet: dict[str, Any] | None, *, part: str = "application") -> bytes:
    """Build a package with this init packet in its manifest, or without one as newer tools do."""
    manifest_part: dict[str, Any] = {"bin_file": "app.bin", "dat_file": "app.dat"}
    if init_packet is not None:
        manifest_part["init_packet_data"] = init_packet
    manifest = json.dumps({"manifest": {part: manifest_part}}).encode()
    return _zip({"app.bin": BINARY, "app.dat": b"\x01", "manifest.json": manifest})


def _reject(data: bytes) -> MalformedImage:
    with pytest.raises(MalformedImage) as rejected:
        firmware_image.inspect_image(data)
    return rejected.value


@given(st.binary(min_size=1, max_size=200), _model_numbers, _versions)
def test_a_built_package_is_inspected_correctly(
    binary: bytes, model_number: ModelNumber, version: Version
) -> None:
    packed = firmware_image.build_package(binary, model_number=model_number, version=version)
    has_version = version[0] > 0 and (*version[:3], version.beta) != (255, 255, 255, 255)
    expected = ImageInfo(
        size=len(binary),
        sha256=hashlib.sha256(packed).digest(),
        model_number=model_number,
        version=version if has_version else None,
    )
    assert firmware_image.inspect_image(packed) == expected
    assert _unzip(packed)["application.bin"] == binary


def test_building_a_package_is_reproducible() -> None:
    assert firmware_image.build_package(BINARY, model_number=MODEL, version=Version(2, 4, 0, 3)) == GOOD
    with zipfile.ZipFile(io.BytesIO(GOOD)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_package_describes_its_target_in_the_manifest_and_the_init_packet() -> None:
    files = _unzip(GOOD)
    manifest_part = json.loads(files["manifest.json"])["manifest"]["application"]
    assert files[manifest_part["bin_file"]] == BINARY
    assert manifest_part["init_packet_data"] == {
        "application_version": 0x02040003,
        "device_revision": 0xFFFF,
        "device_type": 0x20A1,
        "ext_packet_id": 1,
        "firmware_hash": HASH,
        "firmware_length": 500,
        "softdevice_req": [0xFFFE],
    }
    # Little-endian: type, revision, version, one soft device, form of what follows, length, hash.
    start = bytes.fromhex("a120 ffff 03000402 0100 feff 01000000 f4010000")
    assert files[manifest_part["dat_file"]] == start + bytes.fromhex(HASH)


def test_empty_and_too_large_binaries_cannot_be_packaged() -> None:
    for binary in (b"", bytes(firmware_image.MAX_BINARY_BYTES + 1)):
        with pytest.raises(MalformedImage):
            firmware_image.build_package(binary, model_number=MODEL, version=Version(1, 0, 0))
    largest = firmware_image.build_package(
        bytes(firmware_image.MAX_BINARY_BYTES), model_number=MODEL, version=Version(1, 0, 0)
    )
    assert firmware_image.inspect_image(largest).size == firmware_image.MAX_BINARY_BYTES


def test_a_version_that_no_device_can_report_cannot_be_packaged() -> None:
    with pytest.raises(MalformedVersion):
        firmware_image.build_package(BINARY, model_number=MODEL, version=Version(1, 256, 0))


@given(st.binary(min_size=1).filter(lambda data: not data.startswith(b"PK")))
def test_a_file_that_is_not_a_zip_is_a_bare_image(data: bytes) -> None:
    expected = ImageInfo(size=len(data), sha256=hashlib.sha256(data).digest(), model_number=None)
    assert firmware_image.inspect_image(data) == expected


def test_an_empty_file_is_refused() -> None:
    assert str(_reject(b"")) == "image: is empty"


@each_row(
    "init_packet",
    [
        {"firmware_crc16": binascii.crc_hqx(BINARY, 0xFFFF)},
        {"firmware_hash": HASH, "firmware_length": len(BINARY), "ext_packet_id": 1},
        {"firmware_hash": HASH.upper()},
        {"softdevice_req": [0xFFFE], "application_version": 0xFFFFFFFF, "device_revision": None},
    ],
)
@each_row("part", PARTS)
def test_a_package_of_older_tools_contains_its_model(init_packet: dict[str, Any], part: str) -> None:
    image = firmware_image.inspect_image(_package(init_packet | {"device_type": 15}, part=part))
    assert (image.size, image.model_number) == (len(BINARY), "000F")


@pytest.mark.rule("rest-220")
def test_a_package_contains_a_version_if_its_number_is_plausible() -> None:
    expected = {
        0x01000000: "1.0.0",
        0x02040003: "2.4.0-beta.3",
        0xFFFFFF00: "255.255.255",
        0xFFFFFFFF: None,  # not set
        0: None,
        7: None,  # a counter
        10203: None,  # 1.2.3 in the decimal digits of another tool
        0x00FFFFFF: None,
        -1: None,
        2**32: None,
        10**400: None,
        "2.4.0": None,
        None: None,
    }
    versions = {
        number: firmware_image.inspect_image(_package({"application_version": number})).version
        for number in expected
    }
    assert {number: version and str(version) for number, version in versions.items()} == expected
    assert firmware_image.inspect_image(_package(None)).version is None


@each_row("init_packet", [None, {}, {"device_type": None}, {"device_type": 0xFFFF}])
def test_a_package_for_any_model_contains_no_model(init_packet: dict[str, Any] | None) -> None:
    image = firmware_image.inspect_image(_package(init_packet))
    assert (image.size, image.model_number) == (len(BINARY), None)


def test_a_compressed_package_is_inspected() -> None:
    image = firmware_image.inspect_image(_zip(_unzip(GOOD), zipfile.ZIP_DEFLATED))
    assert (image.size, image.model_number) == (len(BINARY), MODEL)


def test_the_size_counts_all_parts_and_the_application_determines_the_model() -> None:
    parts = {
        "bootloader": {"bin_file": "fw/b.bin", "init_packet_data": {"device_type": 1}},
        "application": {"bin_file": "fw/a.bin", "init_packet_data": {"device_type": 2}},
    }
    manifest = json.dumps({"manifest": parts}).encode()
    data = _zip({"fw/": b"", "fw/a.bin": b"12", "fw/b.bin": b"345", "manifest.json": manifest})
    image = firmware_image.inspect_image(data)
    assert (image.size, image.model_number) == (5, "0002")


@each_row(
    ("init_packet", "reason"),
    [
        ({"firmware_hash": "00" * 32}, "hash"),
        ({"firmware_hash": ""}, "hash"),
        ({"firmware_crc16": binascii.crc_hqx(BINARY, 0xFFFF) ^ 1}, "checksum"),
        ({"firmware_length": len(BINARY) - 1}, "bytes"),
        ({"firmware_length": 10**400}, "bytes"),
    ],
)
def test_firmware_that_does_not_match_its_manifest_is_refused(
    init_packet: dict[str, Any], reason: str
) -> None:
    error = _reject(_package(init_packet))
    assert error.field == "app.bin"
    assert reason in error.reason


@each_row(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"manifest":null}',
        b'{"manifest":{}}',
        b'{"manifest":{"dfu_version":0.5}}',
        b'{"manifest":{"application":{}}}',
        b'{"manifest":{"application":{"bin_file":7}}}',
        b'{"manifest":{"application":{"bin_file":"\xff"}}}',
        b'{"manifest":{"application":{"bin_file":"a.bin","init_packet_data":{"device_type":65536}}}}',
        b'{"manifest":{"application":{"bin_file":"a.bin","init_packet_data":{"device_type":-1}}}}',
        b'{"manifest":{"application":{"bin_file":"a.bin","init_packet_data":{"firmware_hash":1}}}}',
        b'{"manifest":' + b"[" * 50_000,
    ],
)
def test_an_invalid_manifest_is_refused(manifest: bytes) -> None:
    assert _reject(_zip({"a.bin": BINARY, "manifest.json": manifest})).field == "manifest.json"


@each_row("missing", ["application.bin", "application.dat", "manifest.json"])
def test_a_package_with_a_file_missing_is_refused(missing: str) -> None:
    files = _unzip(GOOD)
    del files[missing]
    assert _reject(_zip(files)).field == missing


def test_a_package_with_an_empty_binary_is_refused() -> None:
    manifest = b'{"manifest":{"application":{"bin_file":"a.bin"}}}'
    error = _reject(_zip({"a.bin": b"", "manifest.json": manifest}))
    assert str(error) == "a.bin: is empty"


@each_row("name", ["application.bin", "application.dat", "manifest.json"])
def test_a_file_that_does_not_match_its_checksum_is_refused(name: str) -> None:
    content = _unzip(GOOD)[name]
    offset = GOOD.index(content) + len(content) // 2
    error = _reject(GOOD[:offset] + bytes([GOOD[offset] ^ 1]) + GOOD[offset + 1 :])
    assert "CRC" in str(error.__cause__)


@each_row("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_unusual_compression_is_refused(method: int) -> None:
    assert "compression" in _reject(_zip(_unzip(GOOD), method)).reason


def test_an_encrypted_file_is_refused() -> None:
    # The flags follow signature and version, both in the header of the file and in the directory.
    flags = GOOD.index(b"PK\x01\x02") + 8
    assert "encrypted" in _reject(GOOD[:flags] + b"\x01" + GOOD[flags + 1 :]).reason


@each_row("name", ["/etc/passwd", "../a", "a/../../b", "a//b", "./a", "a\\b", "a\nb", "\u202ea", "a" * 256])
def test_an_invalid_name_is_refused_and_escaped_in_the_error(name: str) -> None:
    error = _reject(_zip(_unzip(GOOD) | {name: b""}))
    assert error.reason == "is not a valid file name"
    assert len(error.field) <= 80
    assert error.field.isprintable()


def test_two_files_with_the_same_name_are_refused() -> None:
    duplicated = _zip(_unzip(GOOD) | {"application.bim": b"other"}).replace(b".bim", b".bin")
    assert "the same name" in _reject(duplicated).reason


def test_a_package_that_is_too_large_unpacked_is_refused_before_unpacking() -> None:
    huge = bytes(firmware_image.MAX_PACKAGE_BYTES - 100)
    bomb = _zip(_unzip(GOOD) | {"huge.bin": huge}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    assert "unpacks to more" in _reject(bomb).reason


def test_a_file_that_is_longer_than_the_zip_says_is_refused() -> None:
    bomb = _zip(_unzip(GOOD) | {"x": bytes(1_000_000)}, zipfile.ZIP_DEFLATED)
    size = (1_000_000).to_bytes(4, "little")
    assert firmware_image.inspect_image(bomb).size == len(BINARY)
    assert "CRC" in str(_reject(bomb.replace(size, (1000).to_bytes(4, "little"))).__cause__)


def test_a_file_that_is_shorter_than_the_zip_says_is_refused() -> None:
    files = _unzip(GOOD) | {"x": b"123"}
    packed = _zip(files, zipfile.ZIP_DEFLATED)
    directory = packed.rindex(b"PK\x01\x02")
    size_offset = directory + 24  # unpacked size of the last file
    assert packed[size_offset : size_offset + 4] == b"\x03\x00\x00\x00"
    error = _reject(packed[:size_offset] + b"\x04" + packed[size_offset + 1 :])
    assert str(error) == "x: does not have the length given in the zip"


def test_too_many_files_are_refused() -> None:
    many = {f"{number}": b"" for number in range(62)}
    error = _reject(_zip(_unzip(GOOD) | many))
    assert "more than 64 files" in error.reason
    del many["61"]
    assert firmware_image.inspect_image(_zip(_unzip(GOOD) | many)).size == len(BINARY)


def test_a_zip_that_is_too_large_is_refused() -> None:
    assert "at most" in _reject(GOOD.ljust(firmware_image.MAX_PACKAGE_BYTES + 1)).reason


@given(st.binary(max_size=300))
def test_arbitrary_bytes_after_a_zip_signature_are_refused(data: bytes) -> None:
    for start in (b"PK", b"PK\x03\x04", b"PK\x05\x06", b"PK\x01\x02"):
        _reject(start + data)


@given(st.data())
def test_a_damaged_package_is_refused_or_inspected_the_same(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from([GOOD, _zip(_unzip(GOOD), zipfile.ZIP_DEFLATED)]))
    damaged_package = data.draw(damaged(original))
    try:
        image = firmware_image.inspect_image(damaged_package)
    except MalformedImage:
        return
    if damaged_package.startswith(b"PK"):  # otherwise it counts as a bare image
        assert (image.size, image.model_number) == (len(BINARY), MODEL)


@given(st.integers(2, len(GOOD) - 1))
def test_a_truncated_package_is_refused(length: int) -> None:
    _reject(GOOD[:length])
