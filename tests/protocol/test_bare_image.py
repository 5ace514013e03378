"""Checks of bare firmware images."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.protocol.firmware_image import MAX_BARE_IMAGE_BYTES, MIN_BARE_IMAGE_BYTES, check_bare_image
from tests.firmware_images import bare_image

GOOD = bare_image()
ELF = b"\x7fELF\x01\x01\x01".ljust(MIN_BARE_IMAGE_BYTES, b"\0")
INTEL_HEX = b":020000040002F8\r\n:10600000000001209D6302001D6002001F6002009A\r\n" * 20


def _replace_vector(number: int, word: int, image: bytes = GOOD) -> bytes:
    """Replace one word of the vector table."""
    return image[: 4 * number] + struct.pack("<I", word) + image[4 * number + 4 :]


@pytest.mark.rule("firmware-44")
def test_an_image_with_a_vector_table_passes() -> None:
    valid = {
        "as usual": GOOD,
        "the smallest": bare_image(size=MIN_BARE_IMAGE_BYTES),
        "the largest": bare_image(size=MAX_BARE_IMAGE_BYTES),
        "all of the RAM": _replace_vector(0, 0x20080000),
        "at the beginning of the flash": _replace_vector(1, 0x26041),
        "a Cortex-M0 without the faults of an M4": _replace_vector(
            4, 0, _replace_vector(5, 0, _replace_vector(6, 0))
        ),
        "something in a reserved place": _replace_vector(7, 0x12345678),
    }
    assert {name: reasons for name, image in valid.items() if (reasons := check_bare_image(image))} == {}


@pytest.mark.rule("firmware-44")
def test_each_defect_is_named() -> None:
    invalid = {
        b"": "0 bytes",
        b"my-host\n": "8 bytes",
        bare_image(size=MAX_BARE_IMAGE_BYTES + 1): f"{MAX_BARE_IMAGE_BYTES + 1} bytes",
        _replace_vector(0, 0x20000000): "stack pointer 0x20000000",
        _replace_vector(0, 0x20080004): "stack pointer 0x20080004",
        _replace_vector(0, 0x20010002): "stack pointer 0x20010002",
        _replace_vector(0, 0xFFFFFFFF): "stack pointer 0xffffffff",
        _replace_vector(1, 0x26040): "reset vector 0x00026040",
        _replace_vector(1, 0): "reset vector 0x00000000",
        _replace_vector(1, 0x100001): "reset vector 0x00100001",
        _replace_vector(1, 0x20000101): "reset vector 0x20000101",
        _replace_vector(1, 0xA0001): "farther apart",
        _replace_vector(3, 0x26040): "exception 3 (HardFault)",
        _replace_vector(15, 0xFFFFFFFF): "exception 15 (SysTick)",
        ELF: "stack pointer",
        INTEL_HEX: "stack pointer",
        bytes(MIN_BARE_IMAGE_BYTES): "reset vector 0x00000000",
    }
    missed = {
        image[:16]: reasons
        for image, expected in invalid.items()
        if expected not in (reasons := "; ".join(check_bare_image(image)))
    }
    assert not missed


@pytest.mark.rule("firmware-44")
@given(st.text(min_size=1, max_size=4 * MIN_BARE_IMAGE_BYTES).map(str.encode))
def test_no_text_is_a_bare_image(text: bytes) -> None:
    assert check_bare_image(text)


@given(st.binary(max_size=300))
def test_the_reasons_for_any_bytes_are_short_and_printable(data: bytes) -> None:
    reasons = check_bare_image(data)
    assert all(reason.isprintable() and len(reason) < 200 for reason in reasons)
