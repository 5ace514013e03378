"""Firmware images: what is in them, and what is refused."""

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


def _files(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _package(init_packet: dict[str, Any] | None, *, part: str = "application") -> bytes:
    """A package with this init packet in its manifest, or as the newer tools write it: with none."""
    told: dict[str, Any] = {"bin_file": "app.bin", "dat_file": "app.dat"}
    if init_packet is not None:
        told["init_packet_data"] = init_packet
    manifest = json.dumps({"manifest": {part: told}}).encode()
    return _zip({"app.bin": BINARY, "app.dat": b"\x01", "manifest.json": manifest})


def _rejected(data: bytes) -> MalformedImage:
    with pytest.raises(MalformedImage) as rejected:
        firmware_image.inspect_image(data)
    return rejected.value


@given(st.binary(min_size=1, max_size=200), _model_numbers, _versions)
def test_what_is_packed_is_read(binary: bytes, model_number: ModelNumber, version: Version) -> None:
    packed = firmware_image.build_package(binary, model_number=model_number, version=version)
    is_told = version[0] > 0 and (*version[:3], version.beta) != (255, 255, 255, 255)
    expected = ImageInfo(
        size=len(binary),
        sha256=hashlib.sha256(packed).digest(),
        model_number=model_number,
        version=version if is_told else None,
    )
    assert firmware_image.inspect_image(packed) == expected
    assert _files(packed)["application.bin"] == binary


def test_the_same_is_packed_the_same_every_time() -> None:
    assert firmware_image.build_package(BINARY, model_number=MODEL, version=Version(2, 4, 0, 3)) == GOOD
    with zipfile.ZipFile(io.BytesIO(GOOD)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_package_says_what_it_is_for_in_the_manifest_and_to_the_bootloader() -> None:
    files = _files(GOOD)
    told = json.loads(files["manifest.json"])["manifest"]["application"]
    assert files[told["bin_file"]] == BINARY
    assert told["init_packet_data"] == {
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
    assert files[told["dat_file"]] == start + bytes.fromhex(HASH)


def test_nothing_and_more_than_fits_cannot_be_packed() -> None:
    for binary in (b"", bytes(firmware_image.MAX_BINARY_BYTES + 1)):
        with pytest.raises(MalformedImage):
            firmware_image.build_package(binary, model_number=MODEL, version=Version(1, 0, 0))
    largest = firmware_image.build_package(
        bytes(firmware_image.MAX_BINARY_BYTES), model_number=MODEL, version=Version(1, 0, 0)
    )
    assert firmware_image.inspect_image(largest).size == firmware_image.MAX_BINARY_BYTES


def test_a_version_that_no_device_can_report_cannot_be_packed() -> None:
    with pytest.raises(MalformedVersion):
        firmware_image.build_package(BINARY, model_number=MODEL, version=Version(1, 256, 0))


@given(st.binary(min_size=1).filter(lambda data: not data.startswith(b"PK")))
def test_what_is_no_zip_is_a_bare_image(data: bytes) -> None:
    expected = ImageInfo(size=len(data), sha256=hashlib.sha256(data).digest(), model_number=None)
    assert firmware_image.inspect_image(data) == expected


def test_nothing_is_no_image() -> None:
    assert str(_rejected(b"")) == "image: is empty"


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
def test_a_package_of_the_older_tools_tells_its_model(init_packet: dict[str, Any], part: str) -> None:
    image = firmware_image.inspect_image(_package(init_packet | {"device_type": 15}, part=part))
    assert (image.size, image.model_number) == (len(BINARY), "000F")


@pytest.mark.rule("rest-220")
def test_a_package_tells_its_version_where_its_number_can_be_one() -> None:
    told = {
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
    found = {
        number: firmware_image.inspect_image(_package({"application_version": number})).version
        for number in told
    }
    assert {number: version and str(version) for number, version in found.items()} == told
    assert firmware_image.inspect_image(_package(None)).version is None


@each_row("init_packet", [None, {}, {"device_type": None}, {"device_type": 0xFFFF}])
def test_a_package_for_any_model_tells_none(init_packet: dict[str, Any] | None) -> None:
    image = firmware_image.inspect_image(_package(init_packet))
    assert (image.size, image.model_number) == (len(BINARY), None)


def test_a_compressed_package_is_read() -> None:
    image = firmware_image.inspect_image(_zip(_files(GOOD), zipfile.ZIP_DEFLATED))
    assert (image.size, image.model_number) == (len(BINARY), MODEL)


def test_all_parts_of_a_package_go_over_the_air_and_the_application_tells_the_model() -> None:
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
def test_firmware_that_is_not_what_the_manifest_says_is_refused(
    init_packet: dict[str, Any], reason: str
) -> None:
    error = _rejected(_package(init_packet))
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
def test_a_manifest_that_is_none_is_refused(manifest: bytes) -> None:
    assert _rejected(_zip({"a.bin": BINARY, "manifest.json": manifest})).field == "manifest.json"


@each_row("missing", ["application.bin", "application.dat", "manifest.json"])
def test_a_package_with_a_file_missing_is_refused(missing: str) -> None:
    files = _files(GOOD)
    del files[missing]
    assert _rejected(_zip(files)).field == missing


def test_a_package_with_nothing_to_send_is_refused() -> None:
    manifest = b'{"manifest":{"application":{"bin_file":"a.bin"}}}'
    error = _rejected(_zip({"a.bin": b"", "manifest.json": manifest}))
    assert str(error) == "a.bin: is empty"


@each_row("place", ["application.bin", "application.dat", "manifest.json"])
def test_a_file_that_does_not_match_its_checksum_is_refused(place: str) -> None:
    content = _files(GOOD)[place]
    at = GOOD.index(content) + len(content) // 2
    error = _rejected(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :])
    assert "CRC" in str(error.__cause__)


@each_row("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_unusual_compression_is_refused(method: int) -> None:
    assert "compression" in _rejected(_zip(_files(GOOD), method)).reason


def test_an_encrypted_file_is_refused() -> None:
    # The flags stand behind signature and version, in the header of the file and once more in the directory.
    flags = GOOD.index(b"PK\x01\x02") + 8
    assert "encrypted" in _rejected(GOOD[:flags] + b"\x01" + GOOD[flags + 1 :]).reason


@each_row("name", ["/etc/passwd", "../a", "a/../../b", "a//b", "./a", "a\\b", "a\nb", "\u202ea", "a" * 256])
def test_an_absurd_name_is_refused_and_not_repeated_as_it_is(name: str) -> None:
    error = _rejected(_zip(_files(GOOD) | {name: b""}))
    assert error.reason == "is not a valid file name"
    assert len(error.field) <= 80
    assert error.field.isprintable()


def test_two_files_of_one_name_are_refused() -> None:
    twice = _zip(_files(GOOD) | {"application.bim": b"other"}).replace(b".bim", b".bin")
    assert "the same name" in _rejected(twice).reason


def test_a_package_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    huge = bytes(firmware_image.MAX_PACKAGE_BYTES - 100)
    bomb = _zip(_files(GOOD) | {"huge.bin": huge}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    assert "unpacks to more" in _rejected(bomb).reason


def test_a_file_that_is_longer_than_the_zip_says_is_refused() -> None:
    bomb = _zip(_files(GOOD) | {"x": bytes(1_000_000)}, zipfile.ZIP_DEFLATED)
    size = (1_000_000).to_bytes(4, "little")
    assert firmware_image.inspect_image(bomb).size == len(BINARY)
    assert "CRC" in str(_rejected(bomb.replace(size, (1000).to_bytes(4, "little"))).__cause__)


def test_a_file_that_is_shorter_than_the_zip_says_is_refused() -> None:
    files = _files(GOOD) | {"x": b"123"}
    packed = _zip(files, zipfile.ZIP_DEFLATED)
    directory = packed.rindex(b"PK\x01\x02")
    sizes = directory + 24  # of the last file, unpacked
    assert packed[sizes : sizes + 4] == b"\x03\x00\x00\x00"
    error = _rejected(packed[:sizes] + b"\x04" + packed[sizes + 1 :])
    assert str(error) == "x: does not have the length given in the zip"


def test_too_many_files_are_refused() -> None:
    many = {f"{number}": b"" for number in range(62)}
    error = _rejected(_zip(_files(GOOD) | many))
    assert "more than 64 files" in error.reason
    del many["61"]
    assert firmware_image.inspect_image(_zip(_files(GOOD) | many)).size == len(BINARY)


def test_a_zip_that_is_too_long_is_refused() -> None:
    assert "at most" in _rejected(GOOD.ljust(firmware_image.MAX_PACKAGE_BYTES + 1)).reason


@given(st.binary(max_size=300))
def test_arbitrary_bytes_behind_the_mark_of_a_zip_are_refused(data: bytes) -> None:
    for start in (b"PK", b"PK\x03\x04", b"PK\x05\x06", b"PK\x01\x02"):
        _rejected(start + data)


@given(st.data())
def test_a_damaged_package_is_refused_or_says_the_same(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([GOOD, _zip(_files(GOOD), zipfile.ZIP_DEFLATED)]))
    damage = data.draw(damaged(whole))
    try:
        image = firmware_image.inspect_image(damage)
    except MalformedImage:
        return
    if damage.startswith(b"PK"):  # else it passes for a bare image
        assert (image.size, image.model_number) == (len(BINARY), MODEL)


@given(st.integers(2, len(GOOD) - 1))
def test_a_package_that_is_cut_is_refused(length: int) -> None:
    _rejected(GOOD[:length])
